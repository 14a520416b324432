"""Take the broker away from a running flow, and look for what was lost, done twice, or answered from the wrong state.

    python -m benchmarks.broker_away [--away-s 30] [--events 4000] [--seed N] [--quick] [--json FILE]

The broker is killed (SIGKILL) while the flow works on a log, and comes back later on the same data. Meanwhile records
go on being produced: they wait in their producer's queue. One process of the flow has to get through all of it; then
every output is compared with a reference, as `benchmarks.crash` does.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from benchmarks.broker import Broker
from benchmarks.crash.layout import GIVE_UP_S
from benchmarks.crash.process import Child
from benchmarks.crash.report import Report, show
from benchmarks.crash.trial import Trial

BEFORE, MEANWHILE = 0.3, 0.4  # shares of the log


@dataclass(frozen=True)
class Outcome:
    """What came of an outage. `away_s`: from the kill until the broker answered again; `first_answer_s`: from then
    until the next response was in its topic."""

    report: Report
    away_s: float
    first_answer_s: float


class Outage(Trial):
    """A trial in which the broker dies, and the flow lives on."""

    def through(self, broker: Broker, away_s: float) -> Outcome:
        """One process of the flow from the first record to the last, with the broker away for at least so long.
        RuntimeError where the process ends by itself, or nothing comes out of it."""
        self.prime()
        self.produce(BEFORE)
        with self._started() as process:
            self._await(process, lambda: self._watcher.count > 0)
            broker.stop(hard=True)
            gone_s, answered = time.monotonic(), len(self._watcher.answered)
            self._hand_over(MEANWHILE)
            time.sleep(away_s)
            broker.start()
            back_s = time.monotonic()
            self._await(process, lambda: len(self._watcher.answered) > answered)
            first_answer_s = time.monotonic() - back_s
            self.produce(1.0)
            self._await(process, lambda: self._closing <= self._watcher.answered)
            process.stop()
        self._watcher.drain()
        self._judge()
        self.report.seconds = round(time.monotonic() - self._began_s, 1)
        return Outcome(self.report, round(back_s - gone_s, 1), round(first_answer_s, 2))

    def _hand_over(self, share: float) -> None:
        """Appends the next share of the log to the producer's queue; it goes out when it can."""
        until = self._produced + int(share * len(self._lines))
        for line in self._lines[self._produced : until]:
            self._producer.produce(line.topic, line.value, line.key, line.partition)
        self._produced = until

    def _await(self, process: Child, true: Callable[[], bool]) -> None:
        came = self._watcher.until(lambda: true() or not process.running(), GIVE_UP_S)
        if not process.running():
            process.ended(0)
            raise RuntimeError("the flow stopped by itself")
        if not came:
            raise RuntimeError(f"nothing came out for {GIVE_UP_S:.0f} s")


def outage(away_s: float, events: int, seed: int) -> Outcome:
    """The whole run, on a broker of its own."""
    with (
        Broker() as broker,
        tempfile.TemporaryDirectory(prefix="recallflow-away-") as folder,
        closing(Outage(broker, Path(folder), events, seed=seed)) as made,
    ):
        return made.through(broker, away_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--away-s", type=float, default=30.0, help="how long at least (default: 30)")
    parser.add_argument("--events", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--quick", action="store_true", help="the same work smaller, and 5 s away")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    away_s, events = (5.0, 800) if chosen.quick else (chosen.away_s, chosen.events)
    print(f"seed {chosen.seed}")
    outcome = outage(away_s, events, chosen.seed)
    show(outcome.report)
    print(f"  away {outcome.away_s} s, first answer {outcome.first_answer_s} s after the return")
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps({"seed": chosen.seed} | asdict(outcome), option=orjson.OPT_INDENT_2))
    if not outcome.report.clean():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
