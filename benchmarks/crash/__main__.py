"""Kill the Kafka flow again and again, and look for what was lost, done twice, or answered from the wrong state.

    python -m benchmarks.crash [--events 20000] [--kills 20] [--member static] [--seed N] [--quick] [--json FILE]

A log of events and queries is drawn from a seed and produced while processes that run the flow are killed (SIGKILL):
at random moments, and once at each of the four named points (POINTS) where a mistake would show. Then every output is
compared with a reference: the same partition logic in this process, without Kafka, Bytewax or crashes, fed each source
partition in offset order. An answer says which positions were applied, so the reference answers the same query at the
same place.
"""

import argparse
import random
import sys
from dataclasses import asdict
from pathlib import Path

import orjson

from benchmarks.broker import connect_or_start
from benchmarks.crash.process import Plan, child
from benchmarks.crash.report import show
from benchmarks.crash.trial import run

MEMBERS = ("static", "dynamic")


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(Plan(**orjson.loads(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20, help="at random moments; the named points come on top")
    parser.add_argument("--member", choices=MEMBERS, help="of the consumer group (default: one, then the other)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    events, kills = (2_000, 4) if chosen.quick else (chosen.events, chosen.kills)
    print(f"seed {chosen.seed}")
    with connect_or_start() as cluster:
        reports = []
        for member in (chosen.member,) if chosen.member else MEMBERS:
            reports.append(run(cluster, events, kills, chosen.seed, static=member == "static"))
            show(reports[-1])
    if chosen.json:
        figures = {"seed": chosen.seed, "runs": [asdict(report) for report in reports]}
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    if not all(report.clean() for report in reports):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
