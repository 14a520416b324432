"""How far a partition is, in few words: what whoever has it next goes on from.

It stands beside the offsets that the consumer group commits, which Kafka keeps for us, and in the partition's folder,
as Kafka forgets offsets of a group that is away for long.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import orjson

TEXT_MOST = 4_000  # characters: brokers take 4,096 unless they are told otherwise
AHEAD_MOST = 200  # of each list of offsets that the group is told

Tails = Mapping[str, Mapping[int, int]]  # output topic → partition → an offset


class Reached(NamedTuple):
    """How far one log is. Everything below `next_offset` is done, but for what is `open`; so is what was done `ahead`
    of its turn. `since_ms`: when the record before was appended, 0 where nobody knows."""

    next_offset: int
    since_ms: int = 0
    open: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """The offset of the first record that is not done."""
        return min((self.next_offset, *self.open))

    def is_done(self, offset: int) -> bool:
        """Whether what comes of a record was delivered, as far as this says."""
        return offset in self.ahead or (offset < self.next_offset and offset not in self.open)


@dataclass(frozen=True, slots=True)
class Place:
    """How far a partition is: in its memories, of which nothing is open, and in its queries.

    `tails`: what was sent for records that are not done stands there in output partitions, or behind; in one that is
    not named, anywhere. `at_ms`: when that was found out, by the writer's clock. `clean`: nothing was sent for any of
    them. `deployment`: whose place it is; `partitions`: of the deployment's state. `began`: the offset of
    memory that the deployment began with, as retention had taken what was before. `generation`: how many owners the
    partition has had.
    """

    memory: Reached
    queries: Reached
    partitions: int
    tails: Tails = field(default_factory=dict)
    at_ms: int = 0
    clean: bool = False
    deployment: str = ""
    began: int = 0
    generation: int = 0

    def encode(self) -> bytes:
        """All of it, as a partition's folder keeps it."""
        return orjson.dumps(
            {
                "memory": _encoded(self.memory),
                "queries": _encoded(self.queries),
                "partitions": self.partitions,
                "tails": {topic: _spread(offsets) for topic, offsets in self.tails.items()},
                "at_ms": self.at_ms,
                "clean": self.clean,
                "deployment": self.deployment,
                "began": self.began,
                "generation": self.generation,
            }
        )

    @classmethod
    def decode(cls, data: bytes | str) -> Self:
        """What `encode` gave. Raises ValueError for anything else."""
        try:
            said = orjson.loads(data)
            memory, queries = (_reached(*said.pop(name)) for name in ("memory", "queries"))
            tails = {topic: _numbered(offsets) for topic, offsets in said.pop("tails").items()}
            return cls(memory, queries, tails=tails, **said)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a place: {str(data)[:200]!r}") from error

    @classmethod
    def found(cls, text: str | None) -> Self | None:
        """What stands beside a committed offset. None where nothing does, or what another version wrote there: what was
        sent then says how far the partition is."""
        try:
            return cls.decode(text) if text else None
        except ValueError:
            return None

    def text(self) -> str:
        """As much of it as stands beside a committed offset. Where it is too much, tails are found by their time, and
        some of what was done ahead of its turn is done once more: it is no clean place then, and whoever goes on from
        it finds in the tails that its outputs were sent."""
        for one in (self, replace(self, tails={}), self._least()):
            if len(text := one.encode().decode()) <= TEXT_MOST:
                return text
        raise ValueError("a place is longer than its bound")

    def _least(self) -> "Place":
        """The least that is right: what is not named as open would be lost, so the log is read on from there."""
        still = sorted(self.queries.open)
        if len(still) <= AHEAD_MOST:
            queries = self.queries._replace(ahead=())
        else:
            queries = Reached(still[AHEAD_MOST], 0, tuple(still[:AHEAD_MOST]))
        return replace(self, queries=queries, tails={}, clean=False)


def progress_of(stored: bytes) -> tuple[str, tuple[int, int, int]]:
    """Return the deployment of a place that a folder keeps, and its generation, next memory offset and first open
    query: later places of a partition are larger. Return no deployment and zeros for what another version wrote."""
    place = Place.found(stored.decode())
    if place is None:
        return "", (0, 0, 0)
    return place.deployment, (place.generation, place.memory.next_offset, place.queries.first)


def _encoded(reached: Reached) -> tuple[Any, ...]:
    """Return a log with its lists of offsets as differences, which are shorter."""
    lists = (sorted(one) for one in (reached.open, reached.ahead))
    return (reached.next_offset, reached.since_ms, *([b - a for a, b in pairwise([0, *one])] for one in lists))


def _reached(next_offset: int, since_ms: int, still: list[int], ahead: list[int]) -> Reached:
    return Reached(int(next_offset), int(since_ms), tuple(accumulate(still)), tuple(accumulate(ahead)))


def _spread(offsets: Mapping[int, int]) -> list[int]:
    """Offsets in the order of their partitions; -1 where one is not known."""
    return [offsets.get(number, -1) for number in range(max(offsets, default=-1) + 1)]


def _numbered(offsets: Iterable[int]) -> dict[int, int]:
    return {number: offset for number, offset in enumerate(offsets) if offset >= 0}
