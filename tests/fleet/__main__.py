"""Hurt the processes of one deployment at random, and look for what was lost, done twice, or told wrong.

    python -m tests.fleet [--members 4] [--partitions 16] [--kills 30] [--seed N] [--lose-disk]
                               [--checkpoints URL] [--misrouted 0.1] [--standby 1]

Processes of `recallflow run` with a directory each share the partitions of a deployment, while about 200 owners of
three tenants talk and ask. Members are killed, stopped beyond their
session, shut down and started again, by a schedule that follows from the seed; with --lose-disk every third kill takes
the member's directory along. Then everything that stands in the topics is counted, all memories are asked for and
compared with a small model of what was told, and the state of all members together with that of one fresh process that
read the same topics alone. Who has which partition is asked of the brokers.
"""

import argparse
import random
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import orjson

from tests.fleet.members import Fault, schedule
from tests.fleet.trial import Plan, Report, Trial
from tools.broker import connect_or_start


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = Plan()
    parser.add_argument("--members", type=int, default=usual.members, help="processes (default: 4)")
    parser.add_argument("--partitions", type=int, default=usual.partitions)
    parser.add_argument("--kills", type=int, default=30, help="SIGKILLs; pauses and stops come on top")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--lose-disk", action="store_true", help="with every third kill")
    parser.add_argument("--misrouted", type=float, default=0.0, metavar="SHARE", help="of the records (default: 0)")
    parser.add_argument("--per-second", type=float, default=usual.per_second, help="records a second (default: 60)")
    chosen, options = parser.parse_known_args()  # the rest goes to `recallflow run`
    names = ("members", "partitions", "seed", "misrouted", "per_second")
    plan = Plan(**{name: getattr(chosen, name) for name in names}, options=tuple(options))
    print(f"seed {plan.seed}", flush=True)
    report = run(plan, schedule(plan.seed, plan.members, chosen.kills, plan.session_s, lose_disk=chosen.lose_disk))
    print(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2).decode())
    if not report.clean():
        raise SystemExit(1)


def run(plan: Plan, faults: Iterable[Fault]) -> Report:
    with (
        connect_or_start() as cluster,
        tempfile.TemporaryDirectory(prefix="recallflow-fleet-") as folder,
        closing(Trial(cluster, Path(folder), plan)) as trial,
    ):
        trial.run(faults)
    return trial.report


if __name__ == "__main__":
    main()
