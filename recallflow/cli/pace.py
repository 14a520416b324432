"""Rate limit and progress display of a replay."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from recallflow.cli.output import clean, console
from recallflow.connectors.lines import BATCH_RECORDS

SHOWN_EVERY_S = 0.1
SAID_EVERY_S = 10.0  # without a terminal

Clock = Callable[[], float]


class Pace:
    """Rate limit in events per second, from the first event on."""

    def __init__(self, rate: float, clock: Clock = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._begun: float | None = None
        self._taken = 0

    def room(self) -> int:
        """Return how many more events may pass now."""
        if self._begun is None:
            self._begun = self._clock()
        return int((self._clock() - self._begun) * self._rate) + 1 - self._taken

    def take(self, count: int) -> None:
        self._taken += count

    def rest(self) -> None:
        """Wait for a short time."""
        time.sleep(min(1 / self._rate, SHOWN_EVERY_S))

    def wait(self) -> None:
        """Take one event once the rate permits it."""
        while self.room() < 1:
            self.rest()
        self.take(1)


class ProgressMeter:
    """Progress display on standard error with share, rate and remaining time: a bar on a terminal, and else a line
    at intervals."""

    def __init__(self, name: str, done: Callable[[], int], total: int, clock: Clock = time.monotonic) -> None:
        """`done` returns how many of `total` bytes are read."""
        self._name, self._done, self._total, self._clock = clean(name), done, total, clock
        self.events = 0
        target = console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(),
            TextColumn("{task.fields[said]}"), TimeRemainingColumn(),
            console=target, disable=not target.is_terminal, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task(self._name, total=total, said="")
        self._begun = clock()
        self._shown = self._said = self._begun

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def add(self, count: int = 1) -> None:
        self.events += count
        now = self._clock()
        if now - self._shown < SHOWN_EVERY_S:
            return
        self._shown = now
        if not self._bar.disable:
            said = f"{self.events:,} events, {self.rate():,.0f}/s"
            self._bar.update(self._task, completed=self._done(), said=said)
        elif now - self._said >= SAID_EVERY_S:
            self._said = now
            self._bar.console.print(self._line())

    def rate(self) -> float:
        """Return the events per second so far."""
        return self.events / max(self._clock() - self._begun, 1e-3)

    def _line(self) -> str:
        share = self._done() / max(1, self._total)
        left = (self._clock() - self._begun) * (1 - share) / max(share, 1e-3)
        return f"{self._name}: {self.events:,} events, {self.rate():,.0f}/s, {share:.0%} read, {left:,.0f} s left"


class PacedFeed:
    """Feed under a rate limit."""

    def __init__(self, lines: Iterator[bytes], pace: Pace) -> None:
        self._lines, self._pace = lines, pace

    def take(self) -> list[bytes]:
        if (room := min(self._pace.room(), BATCH_RECORDS)) < 1:
            self._pace.rest()
            return []
        if not (batch := list(islice(self._lines, room))):
            raise StopIteration
        self._pace.take(len(batch))
        return batch
