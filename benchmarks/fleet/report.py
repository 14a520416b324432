"""What a run came to, as a table."""

from collections.abc import Iterator

import numpy as np

from benchmarks.fleet.trial import Report

SHOWN = 5


def show(report: Report) -> None:
    """A table of counts; below it what is wrong."""
    plan, found = report.plan, report.findings
    print(f"seed {plan.seed}, {plan.members} members, {plan.partitions} partitions")
    for name, figure in rows(report):
        print(f"  {name:<52} {figure:>16}")
    for kind in ("lost", "twice", "unasked", "wrong"):
        for line in getattr(found, kind)[:SHOWN]:
            print(f"{kind}: {line}")
    for line in report.broken[:SHOWN]:
        print(f"FOUND {line}")


def rows(report: Report) -> Iterator[tuple[str, object]]:
    found, silence = report.findings, report.silence
    yield "faults", sum(report.faults.values())
    yield from ((f"  {name}", count) for name, count in sorted(report.faults.items()))
    yield "starts", report.starts
    yield "records sent", report.records
    yield "  of them astray", report.astray
    yield "probes", report.probes
    yield "outputs", found.outputs
    yield from ((f"  {name}", len(getattr(found, name))) for name in ("lost", "twice", "unasked", "wrong"))
    yield "answers that had what they waited for", found.waited
    yield "  that said why not", found.excused
    yield "memories and lists asked for at the end", found.audited
    yield "state hash", "equal" if report.state_equal else "DIFFERENT"
    yield "partitions of each member at the end", "/".join(map(str, report.spread))
    for cause, times_ms in sorted(silence.longest.items()):
        yield f"{cause}: partitions that moved", len(times_ms)
        yield "  longest silence, p50 and most, ms", f"{np.median(times_ms):,.0f} {max(times_ms):,.0f}"
    yield "idle, p50 and p95, ms", f"{silence.idle_p50:,.1f} {silence.idle_p95:,.1f}"
    yield "others while some moved, p50 and p95, ms", f"{silence.still_p50:,.1f} {silence.still_p95:,.1f}"
    yield "seconds", report.seconds
