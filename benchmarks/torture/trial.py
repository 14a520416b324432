"""One run: an engine on a broker of its own, a producer that never rests, faults, and the verdict."""

import math
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.broker import Broker
from benchmarks.torture.checker import Findings, check, open_records
from benchmarks.torture.engine import GIVE_UP_S, Engine
from benchmarks.torture.exits import Exits
from benchmarks.torture.log import Log
from benchmarks.torture.producer import Producer
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics
from benchmarks.torture.undisturbed import undisturbed

STARTS_MAX = 5  # in a row, before a fault counts as one that it does not come back from
RESTART_S = (
    2.0  # between them: together longer than a session, for which the group keeps the partitions of a killed member
)
PARTITIONS = 2
SILENT_S = 60.0  # nothing more comes


@dataclass
class Report:
    """What a run came to."""

    seed: int
    faults: dict[str, int] = field(default_factory=dict)
    exits: Exits = field(default_factory=Exits)
    findings: Findings = field(default_factory=Findings)
    records: int = 0
    starts: int = 0
    refused: int = 0  # starts of a second engine that were refused
    verified: bool = False
    state_equal: bool = False
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)  # what kept the run from its end

    def clean(self) -> bool:
        sound = self.findings.clean() and self.verified and self.state_equal
        return sound and not self.exits.unexpected and not self.broken


class Trial:
    """What the faults work on. `draw` decides all that is drawn at random while it runs."""

    def __init__(self, broker: Broker, folder: Path, report: Report, per_second: float, session_s: float) -> None:
        self.broker, self.folder, self.report, self.session_s = broker, folder, report, session_s
        self.draw = random.Random(report.seed)
        self.topics = Topics(broker)
        self.topics.make(PARTITIONS)
        self.log = Log(self.topics)
        self.reader = Reader(self.topics)
        self.engine = Engine(self.topics, folder, *self.options())
        self.producer = Producer(self.log, report.seed, per_second)
        self.orders: list[str] = []  # what every start is told beside
        self.fault = "start"

    def options(self) -> tuple[str, ...]:
        return ("--epoch-ms", "200", "--cache-bytes", "8MiB", "--session-timeout-s", f"{self.session_s:g}")

    # ------------------------------------------------------------------ on the way

    def rest(self, seconds: float) -> None:
        """Lets it work, and reads what comes."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.reader.read()

    def start(self) -> None:
        self.engine.start(*self.orders)

    def stop(self) -> None:
        self.note(self.engine.stop())

    def kill(self) -> None:
        self.engine.kill()
        self.note(self.engine.ended())

    def note(self, ended: Any) -> None:
        self.report.exits.note(self.fault, ended)

    def keep_up(self) -> None:
        """As a supervisor does: starts it whenever it ended, until it is ready. RuntimeError where it does not get
        there, or no nearer for long."""
        deadline = time.monotonic() + GIVE_UP_S
        ended, behind = 0, math.inf
        while not self.engine.running() or not self.engine.ready():
            if not self.engine.running():
                if self.engine.starts:
                    self.note(self.engine.ended())
                ended += 1
                if ended > STARTS_MAX:
                    raise RuntimeError(f"{self.fault}: it does not come back: {self.engine.ended()}")
                self.rest(RESTART_S)
                self.start()
            if time.monotonic() > deadline:
                before, behind = behind, self.engine.behind()
                deadline = time.monotonic() + GIVE_UP_S
                if behind < before:
                    continue
                raise RuntimeError(f"{self.fault}: not ready after {GIVE_UP_S:.0f} s: {self.engine.said()[-1_500:]}")
            self.reader.read()

    def again(self) -> None:
        """Starts it after the fault ended it, and waits until it is ready."""
        self.start()
        self.keep_up()

    # --------------------------------------------------------------------- verdict

    def finish(self) -> None:
        """Waits until everything is through, and judges."""
        self.fault = "end"
        self.producer.end()
        self.log.flush()
        self.keep_up()
        self._settle()
        self.report.findings = check(self.log, self.reader)
        self.fault = "stop"
        self.stop()
        verified = self.engine.state("verify")
        self.report.verified = verified.code == 0
        if not self.report.verified:
            self.report.broken.append(f"verify: {verified.out[-500:]} {verified}")
        self.report.state_equal = self._hash(self.engine) == self._hash(self._undisturbed())

    def _settle(self) -> None:
        """Waits until all has come to its end, or nothing more comes for long."""
        left, since = -1, time.monotonic()
        while still := len(open_records(self.log, self.reader)):
            if still != left:
                left, since = still, time.monotonic()
            if time.monotonic() - since > SILENT_S:
                return
            self.rest(0.5)
            self.keep_up()

    def _hash(self, engine: Engine) -> str:
        done = engine.state("hash")
        if done.code or not done.out.strip():
            self.report.broken.append(f"hash: {done}")
        return done.out.strip()

    def _undisturbed(self) -> Engine:
        told = len(self.log.of(["memory"]))
        return undisturbed(self.topics, self.folder, told, *self.options(), *self.orders)

    def close(self) -> None:
        self.report.records, self.report.starts = len(self.log.sent), self.engine.starts
        self.engine.__exit__()
        self.reader.close()
        shutil.rmtree(self.engine.state_dir, ignore_errors=True)
