"""What is full first as more comes in, and what queries take until then."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.scale.cluster import asked, run
from benchmarks.scale.costs import Costs
from benchmarks.scale.recovery import nothing_happens
from benchmarks.scale.shape import Load, Shape, in_memory

SECONDS = 10.0
SKEWS = (0.3, 0.5, 0.6, 0.7, 0.8)


def grown(shape: Shape, times: float) -> Shape:
    """The same owners, who say and ask so many times as much."""
    return replace(shape, messages_per_s=shape.messages_per_s * times, queries_per_s=shape.queries_per_s * times)


def growth(shape: Shape, costs: Costs, times: Sequence[float], seed: int) -> list[dict[str, Any]]:
    """What queries take, and how busy members are, at so many times the load."""
    found = []
    for one in times:
        rng = np.random.default_rng(seed)
        larger = grown(shape, one)
        load = Load.drawn(larger, rng)
        queries = asked(larger, costs, load, SECONDS, rng)
        outcome = run(larger, costs, load, nothing_happens(larger), queries, SECONDS, rng)
        busy = [*outcome.busy.values()]
        found.append(
            {
                "times": one,
                "busy": {"mean": float(np.mean(busy)), "most": float(np.max(busy))},
                "query_ms": outcome.percentiles_ms(np.full(len(outcome.took_s), True)),
            }
        )
    return found


def used(shape: Shape, costs: Costs, load: Load) -> dict[str, float]:
    """How much of each resource the load takes, 1 being all of it; more of the load takes as much more of it."""
    cold = 1 - in_memory(shape, costs, load.owners)
    work_s = shape.messages_per_s * costs.message_s + shape.queries_per_s * (costs.query_s + costs.cold_query_s * cold)
    owners = nothing_happens(shape).before
    of_members = np.bincount([*owners.values()], load.shares[[*owners]], shape.members)
    of_machines = of_members.reshape(shape.machines, shape.cores).sum(axis=1)
    core = 1 - costs.idle_cores
    taken_in = shape.messages_per_s * costs.message_bytes * (2 if shape.standby else 1)
    return {
        "all cores": float(of_members.mean()) * work_s / core,
        "the busiest member's core": float(of_members.max()) * work_s / core,
        "a core for the busiest partition": float(load.shares.max()) * work_s / core,
        "a core for the busiest owner": float(load.owners.max()) * work_s / core,
        "a machine's network": float(of_machines.max()) * taken_in / shape.network_bytes_a_s,
    }


def first_to_break(shape: Shape, costs: Costs, seed: int) -> dict[str, dict[str, float]]:
    """At how many times the load each resource is full, by how skewed owners are."""
    found = {}
    for skew in SKEWS:
        skewed = replace(shape, skew=skew)
        load = Load.drawn(skewed, np.random.default_rng(seed))
        found[f"{skew}"] = {name: 1 / share for name, share in used(skewed, costs, load).items()}
    return found
