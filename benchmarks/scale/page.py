"""The tables of docs/scaling.md, made of what the benchmarks wrote down: `python -m benchmarks.scale.page`.

A table stands between `<!-- name -->` and `<!-- end -->`; what stands there is replaced. A test compares.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from benchmarks.scale.costs import MEASURED, RESULTS, Costs

PAGE = RESULTS.parents[1] / "docs" / "scaling.md"
MODEL, CHECK = RESULTS / "scale_model.json", RESULTS / "scale_check.json"
BUSY = 0.6  # of its core, that a member is planned to be
PARTITIONS_A_MEMBER = 5
PARTITION_BYTES = 20e9  # at most, of one that may have to be fetched
KEPT_S = 30 * 86_400
PLANS = ((100, 10), (1_000, 100), (10_000, 1_000), (100_000, 10_000))  # messages and queries a second
PLACE = re.compile(r"(<!-- (?!end)(\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)

Cells = Sequence[str]


def table(head: Cells, rows: Sequence[Cells]) -> str:
    """Markdown: words to the left, figures to the right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def cost() -> str:
    """What one partition costs, by how many memories its owners have."""
    found = orjson.loads(MEASURED.read_bytes())
    owners, run, partition = found["owners"], found["run"], found["partition"]
    rows = [
        ["a message, µs of processor time in the engine", *(f"{one['message_us']:.0f}" for one in owners.values())],
        ["a question to an owner in memory, ms of the same", *(f"{one['query_ms']:.1f}" for one in owners.values())],
        ["an owner's first question", *(f"{one['first_query_ms']:.1f}" for one in owners.values())],
        ["an owner in memory, KiB", *(f"{one['resident_bytes'] / 1024:,.0f}" for one in owners.values())],
        ["a message on disk, bytes", *(f"{one['disk_bytes_a_message']:,.0f}" for one in owners.values())],
    ]
    gib = partition["bytes"] / 1024**3
    whole = [
        ["a message in the whole of `run`, of a backlog", f"{run['message_us']:.0f} µs of processor time"],
        ["a question in the whole of `run`, owners of 1,000 memories", f"{run['query_ms']:.1f} ms of the same"],
        ["a process that has nothing to do", f"{run['idle_cores'] * 100:.1f} % of a core"],
        [f"opening a partition of {partition['memories']:,} memories, {gib * 1024:,.0f} MiB",
         f"{partition['open_s'] * 1000:.0f} ms"],
        ["copying a GiB of it to another folder of the same disk, synced", f"{partition['copy_s_a_gib']:.1f} s"],
        ["of one partition's log, applied again on a core", f"{1e6 / run['message_us']:,.0f} messages/s"],
        ["the parts of a message alone, measured beside (`benchmarks/floor.py`)", f"{found['floor_us']:.0f} µs"],
        ["load of the two cores meanwhile", f"{found['load']:.1f}"],
    ]  # fmt: skip
    head = ["memories of an owner", *(f"{int(size):,}" for size in owners)]
    return table(head, rows) + table(["of a process, or of a partition", ""], whole)


def plan() -> str:
    """What a load takes, by the formulas of the page."""
    costs = Costs.measured()
    rows = []
    for messages, queries in PLANS:
        cores = messages * costs.message_s + queries * costs.query_s
        members = max(1, -int(-cores // (BUSY - costs.idle_cores)))
        disk = messages * KEPT_S * costs.disk_bytes_a_message
        partitions = max(16, members * PARTITIONS_A_MEMBER, math.ceil(disk / PARTITION_BYTES))
        restore_s = disk / partitions / costs.stream_bytes_a_s
        rows.append(
            [
                f"{messages:,} messages/s, {queries:,} queries/s",
                f"{cores:,.1f}",
                f"{members:,}",
                f"{partitions:,}",
                f"{messages * costs.message_bytes / 1e6:,.2f} MB/s",
                f"{disk / 1e9:,.0f} GB",
                f"{restore_s:,.0f} s",
            ]
        )
    return table(
        ["load", "cores", "members", "partitions", "network", "disk, 30 days kept", "a partition fetched"], rows
    )


def loss() -> str:
    """What a loss takes, in the model."""
    found = orjson.loads(MODEL.read_bytes())
    rows = []
    for name, one in found["scenarios"].items():
        times = one["query_ms"]
        kinds = [kind for kind in ("moved", "beside", "others") if kind in times]
        rows.append(
            [
                name,
                f"{one['busy']['mean']:.0%}, {one['busy']['most']:.0%}",
                f"{one['moved']}",
                *(f"{times[kind][0]:,.0f} / {times[kind][1]:,.0f}" if kind in kinds else ""
                  for kind in ("moved", "beside", "others")),
                *(" / ".join(f"{s:,.0f}" for s in one[key]) for key in ("silent_s", "behind_s")),
            ]
        )  # fmt: skip
    head = ["what happens", "cores busy: mean, most", "partitions that move", "their queries, p50 / p95 ms"]
    head += ["of the same members", "all others", "silent, p50 / p95 / most s", "behind their log, the same"]
    return table(head, rows)


def grow() -> str:
    """What more load does, in the model."""
    found = orjson.loads(MODEL.read_bytes())
    rows = [
        [f"{one['times']:.2f} ×", *(f"{one['busy'][key]:.0%}" for key in ("mean", "most")),
         *(f"{ms:.0f}" for ms in one["query_ms"])]
        for one in found["growth"]
    ]  # fmt: skip
    return table(["load", "cores busy: mean", "the busiest", "query p50 ms", "p95 ms"], rows)


def full() -> str:
    """What is full first, in the model."""
    breaks = orjson.loads(MODEL.read_bytes())["breaks"]
    names = [*next(iter(breaks.values()))]
    rows = [[skew, *(f"{limits[name]:,.1f} ×" for name in names)] for skew, limits in breaks.items()]
    return table(["skew", *names], rows)


def real() -> str:
    """The model beside what is real."""
    found = orjson.loads(CHECK.read_bytes())
    rows = [
        [f"{name}: {row['what']}", f"{row['real']:.2f}", f"{row['model']:.2f}", f"{row['model'] / row['real']:.2f}"]
        for name, of in found.items()
        for row in of
    ]
    return table(["", "real", "model", "ratio"], rows)


def used() -> str:
    """What the model is given."""
    found: dict[str, dict[str, Any]] = orjson.loads(MODEL.read_bytes())["costs"]
    rows = [
        [
            name,
            f"{one['value']:,.1f} {one['unit']}",
            one["source"] if one["source"] == "assumed" else f"`{one['source']}`",
        ]
        for name, one in found.items()
    ]
    return table(["parameter", "value", "from"], rows)


TABLES: dict[str, Callable[[], str]] = {made.__name__: made for made in (cost, plan, loss, grow, full, real, used)}


def page(text: str) -> str:
    """The page with its tables as they are now."""
    return PLACE.sub(lambda found: found[1] + TABLES[found[2]](), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
