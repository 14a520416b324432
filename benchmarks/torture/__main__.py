"""Hurt the engine in every way that is known, at random, and look for what was lost, done twice, or told wrong.

    python -m benchmarks.torture [--minutes 5] [--seed N] [--per-second 60] [--json FILE]

On a broker of its own, `recallflow run` serves a producer that never rests, while one fault follows the other: kills,
pauses beyond the session, a second member, brokers that go away, a full disk, checkpoints, open
transactions. The order of the faults follows from the seed; each comes once before any comes again. Then everything
that stands in the topics is counted, every memory is asked for and compared with a small model of what was told, and
the state's hash is compared with that of an engine that nothing happened to. Nothing here knows the engine's code.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.broker import Broker
from benchmarks.torture.faults import FAULTS
from benchmarks.torture.report import as_json, show
from benchmarks.torture.trial import Report, Trial

SESSION_S = 6.0


def schedule(seed: int, names: list[str]) -> Iterator[tuple[str, float]]:
    """Faults without end, each with the seconds of work before it."""
    draw = random.Random(seed)
    while True:
        for name in draw.sample(names, len(names)):
            yield name, draw.uniform(0.5, 3.0)


def torture(seed: int, minutes: float, per_second: float, names: list[str]) -> Report:
    report = Report(seed)
    began = time.monotonic()
    with (
        Broker() as broker,
        tempfile.TemporaryDirectory(prefix="recallflow-torture-") as folder,
        closing(Trial(broker, Path(folder), report, per_second, SESSION_S)) as trial,
    ):
        try:
            _run(trial, schedule(seed, names), began + 60 * minutes)
        except (RuntimeError, TimeoutError) as error:
            report.broken.append(f"{trial.fault}: {error!r}")
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _run(trial: Trial, faults: Iterator[tuple[str, float]], until: float) -> None:
    trial.fault = "kill starting"
    for _ in range(3):  # the very first start, killed early
        trial.start()
        trial.rest(trial.draw.uniform(0.2, 2.0))
        trial.kill()
    trial.again()
    trial.producer.start()
    while time.monotonic() < until:
        name, before_s = next(faults)
        trial.rest(before_s)
        trial.keep_up()  # what the fault before did to it may show only now
        trial.fault = name
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        FAULTS[name](trial)
        trial.keep_up()
        report = trial.report
        report.faults[name] = report.faults.get(name, 0) + 1
    trial.finish()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults; the verdict comes after (default: 5)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--per-second", type=float, default=60.0, help="records a second (default: 60)")
    parser.add_argument("--only", action="append", choices=FAULTS, metavar="FAULT", help="one of its kinds; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    report = torture(chosen.seed, chosen.minutes, chosen.per_second, chosen.only or list(FAULTS))
    show(report)
    if chosen.json:
        chosen.json.write_bytes(as_json(report))
    if not report.clean():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
