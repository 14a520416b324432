"""A fleet: processes of one deployment, each with a state directory of its own, to be hurt and started again."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from benchmarks.torture.engine import GIVE_UP_S, POLL_S, Ended, Engine, command
from benchmarks.torture.topics import Topics


class Fleet:
    """`recallflow run`, several times. Members are known by their numbers."""

    def __init__(self, topics: Topics, folder: Path, count: int, *options: str) -> None:
        self.topics, self.folder = topics, folder
        self.deployment = f"fleet-{topics.suffix}"
        self._options = ("--deployment", self.deployment, *options)
        self.members = [self._make(number) for number in range(count)]
        self._paused: set[int] = set()
        self._down: set[int] = set()  # by order, so that nobody wonders why they do not run

    def _make(self, number: int) -> Engine:
        return Engine(self.topics, self.folder, *self._options, name=f"member{number}")

    # ------------------------------------------------------------------ life

    def start(self, *numbers: int) -> None:
        """Starts these members, or all, and does not wait."""
        for number in numbers or range(len(self.members)):
            self.members[number].start()
            self._down.discard(number)

    def up(self) -> None:
        """Starts all, and waits until they are ready."""
        self.start()
        self.await_ready()

    def await_ready(self, rest: Callable[[], None] = lambda: time.sleep(POLL_S)) -> None:
        """Rests until all are ready. RuntimeError where a member that should run has ended, or does not get there."""
        deadline = time.monotonic() + GIVE_UP_S
        while not self.ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all were ready after {GIVE_UP_S:.0f} s:\n{self.said()}")
            rest()

    def ready(self) -> bool:
        """Whether every member that should run is ready. RuntimeError where one has ended by itself."""
        for number in self.at_work():
            if not self.members[number].running():
                raise RuntimeError(f"member {number} ended by itself: {self.members[number].ended()}")
        return all(self.members[number].ready() for number in self.at_work())

    def at_work(self) -> list[int]:
        """The members that were started, and neither ended nor paused since."""
        return [number for number in range(len(self.members)) if number not in self._down | self._paused]

    def running(self) -> bool:
        """Whether all that should run do, and there is one at least."""
        at_work = self.at_work()
        return bool(at_work) and all(self.members[number].running() for number in at_work)

    def kill(self, number: int) -> None:
        self._down.add(number)
        self._paused.discard(number)
        self.members[number].kill()

    def stop(self, *numbers: int) -> list[Ended]:
        """SIGTERM for all of these at the same moment, so that none takes over from another, and how each ended."""
        self._down.update(numbers)
        for number in numbers:
            self.members[number].ask_to_stop()
        return [self.members[number].ended() for number in numbers]

    def stop_all(self) -> list[Ended]:
        """Every member that runs."""
        return self.stop(*self.at_work())

    def pause(self, number: int) -> None:
        self._paused.add(number)
        self.members[number].pause()

    def go_on(self, number: int) -> None:
        self.members[number].go_on()
        self._paused.discard(number)

    def lose_disk(self, number: int) -> None:
        """What a machine that is gone takes with it. The member must not run."""
        shutil.rmtree(self.members[number].state_dir, ignore_errors=True)

    # ---------------------------------------------------------------- looking

    def hash(self) -> Ended:
        """The hash of what all of them hold together. Nobody may run."""
        return command("state", "hash", *self.directories())

    def merge(self, target: Path) -> list[Ended]:
        """Bring all partitions into one new directory, and hash it. Nobody may run."""
        return [command("state", "merge", *self.directories(), "--into", target), command("state", "hash", target)]

    def verify(self) -> list[Ended]:
        """What `state verify` says of each directory. Nobody may run."""
        return [command("state", "verify", "--state-dir", path) for path in self.directories()]

    def directories(self) -> list[Path]:
        """Those that there are."""
        return [member.state_dir for member in self.members if member.state_dir.exists()]

    def said(self, most: int = 2_000) -> str:
        """The last words of every member."""
        return "\n".join(f"--- member {n}: {member.said()[-most:]}" for n, member in enumerate(self.members))

    def cpu_s(self) -> list[float]:
        """The processor time that each member at work has taken so far."""
        return [self.members[number].metrics()["process_cpu_seconds_total"] for number in self.at_work()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.__exit__()
