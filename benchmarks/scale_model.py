"""A model of 1,000 partitions on 50 machines: what queries take, how long a loss lasts, and what breaks first.

    python -m benchmarks.scale_model [--seed N] [--quick] [--json benchmarks/results/scale_model.json]
    python -m benchmarks.scale_model --check [--fleet FILE]

What one partition costs is measured (`benchmarks.partition_cost`, benchmarks/results/partition_cost.json), and what is
assumed says so. The same seed gives the same figures. `--check` puts the model beside the engine itself, and beside
what several processes did (`benchmarks.fleet --json FILE`).
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.scale import recovery
from benchmarks.scale.check import against_engine, against_fleet
from benchmarks.scale.cluster import Outcome, asked, run
from benchmarks.scale.costs import MEASURED, Costs
from benchmarks.scale.limits import first_to_break, growth
from benchmarks.scale.recovery import Course
from benchmarks.scale.shape import Load, Shape, in_memory, partition_bytes

SEED = 18
AT_S, SECONDS, STEADY_S = 10.0, 180.0, 20.0
JOINING = 5
HOT_TENANT, HOT_OWNER = 0.3, 0.002  # of all that comes in
GROWN = (0.5, 1.0, 1.25, 1.5, 1.75, 2.0)  # times the load

Happens = Callable[[Shape, np.random.Generator], Course]


def scenarios(costs: Costs) -> dict[str, tuple[Shape, Happens, float]]:
    """What is looked at: a deployment, what happens to it, and for how long."""
    usual = Shape()

    def lost(shape: Shape, rng: np.random.Generator) -> Course:
        return recovery.machine_lost(shape, costs, AT_S, rng)

    def joined(shape: Shape, rng: np.random.Generator) -> Course:
        return recovery.machines_join(shape, costs, AT_S, JOINING, rng)

    def nothing(shape: Shape, _: np.random.Generator) -> Course:
        return recovery.nothing_happens(shape)

    return {
        "nothing happens": (usual, nothing, STEADY_S),
        "a machine is lost": (usual, lost, SECONDS),
        "the same, session of 6 s": (replace(usual, session_timeout_s=6.0), lost, SECONDS),
        "the same, with standbys": (replace(usual, session_timeout_s=6.0, standby=True), lost, SECONDS),
        f"{JOINING} machines join": (usual, joined, SECONDS),
        f"a tenant has {HOT_TENANT:.0%}": (replace(usual, hot_share=HOT_TENANT), nothing, STEADY_S),
        f"an owner has {HOT_OWNER:.1%}": (replace(usual, hot_owner_share=HOT_OWNER), nothing, STEADY_S),
    }


def outcome(shape: Shape, costs: Costs, happens: Happens, seconds: float, seed: int) -> tuple[Load, Course, Outcome]:
    """One run of the model."""
    rng = np.random.default_rng(seed)
    load = Load.drawn(shape, rng)
    course = happens(shape, rng)
    queries = asked(shape, costs, load, seconds, rng)
    return load, course, run(shape, costs, load, course, queries, seconds, rng)


def figures(shape: Shape, load: Load, course: Course, found: Outcome) -> dict[str, Any]:
    """What a scenario shows: of partitions that moved, of those beside them, and of all others."""
    moves = [move.partition for move in course.moves]
    hot = found.asked.tenant == 0
    moved = np.isin(found.asked.partition, moves)
    receivers = {move.after for move in course.moves} | {move.before for move in course.moves}
    hottest = int(load.hot.argmax())
    if shape.hot_share or shape.hot_owner_share:
        receivers |= {course.after[hottest]}
    near = [partition for partition, member in course.after.items() if member in receivers]
    beside = np.isin(found.asked.partition, near) & ~moved & ~hot
    late = found.asked.at_s >= course.at_s
    classes = {"moved": moved & late, "beside": beside & late, "hot": hot, "others": ~moved & ~beside & ~hot & late}
    busy = [*found.busy.values()]
    return {
        "query_ms": {name: found.percentiles_ms(mask) for name, mask in classes.items() if mask.any()},
        "silent_s": _spread(found.silent_s),
        "behind_s": _spread(found.behind_s),
        "moved": len(moves),
        "busy": {"mean": float(np.mean(busy)), "most": float(np.max(busy))},
    }


def _spread(seconds: dict[int, float]) -> list[float]:
    return [float(one) for one in np.percentile([*seconds.values()], (50, 95, 100))] if seconds else []


def measure(costs: Costs, seed: int, *, quick: bool) -> dict[str, Any]:
    found = {}
    for name, (shape, happens, seconds) in scenarios(costs).items():
        if quick:
            shape, seconds = small(shape), min(seconds, 60.0)
        found[name] = figures(shape, *outcome(shape, costs, happens, seconds, seed))
    usual = small(Shape()) if quick else Shape()
    return {
        "seed": seed,
        "costs": {name: one._asdict() for name, one in costs.figures().items()},
        "partition_bytes": partition_bytes(usual, costs),
        "in_memory": in_memory(usual, costs, Load.drawn(usual, np.random.default_rng(seed)).owners),
        "scenarios": found,
        "growth": growth(usual, costs, GROWN, seed),
        "breaks": first_to_break(usual, costs, seed),
    }


def small(shape: Shape) -> Shape:
    """A tenth of a deployment, as much on each machine."""
    return replace(
        shape,
        machines=shape.machines // 10,
        partitions=shape.partitions // 10,
        owners=shape.owners // 10,
        messages_per_s=shape.messages_per_s / 10,
        queries_per_s=shape.queries_per_s / 10,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--costs", type=Path, default=MEASURED, metavar="FILE", help="of benchmarks.partition_cost")
    parser.add_argument("--quick", action="store_true", help="a tenth of the deployment, for a shorter time")
    parser.add_argument("--check", action="store_true", help="put the model beside what is real")
    parser.add_argument("--fleet", type=Path, metavar="FILE", help="what benchmarks.fleet measured, for --check")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    if chosen.check:
        found: dict[str, Any] = {"engine": against_engine(chosen.seed, quick=chosen.quick)}
        if chosen.fleet:
            found["fleet"] = against_fleet(orjson.loads(chosen.fleet.read_bytes()), chosen.seed, chosen.costs)
        show_check(found)
    else:
        found = measure(Costs.measured(chosen.costs), chosen.seed, quick=chosen.quick)
        show(found)
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))


def show(found: dict[str, Any]) -> None:
    for name, one in found["costs"].items():
        print(f"{name:52}{one['value']:10.1f} {one['unit']:12}{one['source']}")
    print(f"a partition: {found['partition_bytes'] / 1e9:.2f} GB; asked owners in memory: {found['in_memory']:.0%}")
    print(f"\n{'':26}{'core busy':>12}  {'queries, p50 / p95 ms':48}{'silent s':>18}{'behind its log s':>20}")
    for name, one in found["scenarios"].items():
        busy = f"{one['busy']['mean']:.0%}, {one['busy']['most']:.0%}"
        times = "; ".join(f"{kind} {p50:,.0f} / {p95:,.0f}" for kind, (p50, p95) in one["query_ms"].items())
        silent, behind = (" / ".join(f"{s:.0f}" for s in one[key]) for key in ("silent_s", "behind_s"))
        print(f"{name:26}{busy:>12}  {times:48}{silent:>18}{behind:>20}")
    print(f"\n{'load':>6}{'core busy: mean':>18}{'most':>8}{'p50':>8}{'p95 ms':>8}")
    for one in found["growth"]:
        busy, times = one["busy"], one["query_ms"]
        print(f"{one['times']:5.2f}×{busy['mean']:18.0%}{busy['most']:8.0%}{times[0]:8.1f}{times[1]:8.1f}")
    print("\nwhat is full, and at how many times the load")
    for skew, limits in found["breaks"].items():
        full = "; ".join(f"{name} {times:.1f}×" for name, times in sorted(limits.items(), key=lambda item: item[1]))
        print(f"  skew {skew}: {full}")


def show_check(found: dict[str, Any]) -> None:
    for name, rows in found.items():
        print(f"{name:32}{'real':>10}{'model':>10}{'ratio':>8}")
        for row in rows:
            print(f"  {row['what']:30}{row['real']:10.2f}{row['model']:10.2f}{row['model'] / row['real']:8.2f}")


if __name__ == "__main__":
    main()
