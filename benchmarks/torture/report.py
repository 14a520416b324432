"""What a run came to, as a table and as JSON."""

from dataclasses import asdict

import orjson

from benchmarks.torture.trial import Report

SHOWN = 5


def show(report: Report) -> None:
    """A table of counts; below it what is wrong."""
    found = report.findings
    rows = [
        ("faults", sum(report.faults.values())),
        *((f"  {name}", count) for name, count in sorted(report.faults.items())),
        ("starts", report.starts),
        ("second engines on its directory refused", report.refused),
        *((f"  exit after {name}", count) for name, count in sorted(report.exits.table.items())),
        ("exits outside the table", len(report.exits.unexpected)),
        ("records sent", report.records),
        ("outputs", found.outputs),
        ("  lost", len(found.lost)),
        ("  twice", len(found.twice)),
        ("  unasked", len(found.unasked)),
        ("  wrong", len(found.wrong)),
        ("answers that had what they waited for", found.waited),
        ("  that said why not", found.excused),
        ("memories asked for at the end", found.audited),
        ("state verify", "agrees" if report.verified else "DISAGREES"),
        ("state hash", "equal" if report.state_equal else "DIFFERENT"),
        ("seconds", report.seconds),
    ]
    print(f"seed {report.seed}")
    for name, figure in rows:
        print(f"  {name:<44} {figure:>12}")
    for kind in ("lost", "twice", "unasked", "wrong"):
        for line in getattr(found, kind)[:SHOWN]:
            print(f"{kind}: {line}")
    for line in (*report.exits.unexpected[:SHOWN], *report.broken[:SHOWN]):
        print(f"FOUND {line}")


def as_json(report: Report) -> bytes:
    return orjson.dumps(asdict(report) | {"clean": report.clean()}, option=orjson.OPT_INDENT_2)
