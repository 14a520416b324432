"""What happens to members: drawn from a seed, with the moments when it began and when its members came back."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.fleet.members import Fleet

KILL, PAUSE, STOP, LOSE = "kill", "pause beyond the session", "stop", "disk lost"
BACK = "start"  # what every fault ends with
WEIGHTS = {KILL: 6, PAUSE: 2, STOP: 2}
TWO_AT_ONCE = 0.2
LOSE_EVERY = 3  # kills
BETWEEN_S = (1.0, 4.0)
SHORT_S = (0.0, 2.0)
BEYOND_S = (1.0, 4.0)
LOOK_S = 0.1


class Fault(NamedTuple):
    """`away_s`: for how long its members are gone; `after_s`: how long all goes well once they are ready again."""

    kind: str
    members: tuple[int, ...]
    away_s: float
    after_s: float


class Span(NamedTuple):
    """What was so between two moments."""

    cause: str
    from_s: float
    to_s: float


class Episode(NamedTuple):
    """A fault until its members were brought back, and from then until the next one."""

    fault: Span
    back: Span


def schedule(seed: int, members: int, kills: int, session_s: float, *, lose_disk: bool) -> Iterator[Fault]:
    """So many SIGKILLs, with pauses and stops between them; some take two members at once, but never all. A member is
    away for so short that nobody takes over, or for so long that somebody does."""
    draw = random.Random(seed)
    killed = 0
    while killed < kills:
        kind = draw.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        who = draw.sample(range(members), 2 if members > 2 and draw.random() < TWO_AT_ONCE else 1)
        beyond_s = session_s + draw.uniform(*BEYOND_S)
        away_s = beyond_s if kind == PAUSE else draw.choice((draw.uniform(*SHORT_S), beyond_s))
        if kind == KILL:
            killed += 1
            kind = LOSE if lose_disk and killed % LOSE_EVERY == 0 else KILL
        yield Fault(kind, tuple(who), away_s, draw.uniform(*BETWEEN_S))


@dataclass
class Chaos:
    """Does to a fleet what a schedule says. `rest` lets time pass, and reads what comes meanwhile."""

    fleet: Fleet
    rest: Callable[[float], None]
    episodes: list[Episode] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def run(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            began_s = time.monotonic()
            self._strike(fault)
            self.rest(fault.away_s)
            back_s = time.monotonic()
            self._bring_back(fault)
            self.fleet.await_ready(lambda: self.rest(LOOK_S))
            self.rest(fault.after_s)
            spans = Span(fault.kind, began_s, back_s), Span(BACK, back_s, time.monotonic())
            self.episodes.append(Episode(*spans))

    def counts(self) -> Counter[str]:
        """How often each kind of fault came."""
        return Counter(episode.fault.cause for episode in self.episodes)

    def _strike(self, fault: Fault) -> None:
        if fault.kind == STOP:
            found = self.fleet.stop(*fault.members)
            self.unexpected += [f"{STOP}: {ended}" for ended in found if ended.code or not ended.plain]
            return
        for number in fault.members:
            if fault.kind == PAUSE:
                self.fleet.pause(number)
            else:
                self.fleet.kill(number)
            if fault.kind == LOSE:
                self.fleet.lose_disk(number)

    def _bring_back(self, fault: Fault) -> None:
        for number in fault.members:
            if fault.kind == PAUSE:
                self.fleet.go_on(number)
            else:
                self.fleet.start(number)
