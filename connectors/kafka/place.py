"""Progress of a partition in a compact encoding, from which the next owner continues.

It is committed as metadata of the group's offsets, and kept in the partition's folder, because Kafka expires the
offsets of an inactive group.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import orjson

TEXT_MOST = 4_000  # characters: brokers accept 4,096 by default
AHEAD_MOST = 200  # limit of each list of offsets in commit metadata

Tails = Mapping[str, Mapping[int, int]]  # output topic → partition → an offset


class LogProgress(NamedTuple):
    """Progress of one log.

    All records below `next_offset` are done except those in `open`; so are the records in `ahead`. `since_ms` is the
    append time of the record before, 0 where it is unknown.
    """

    next_offset: int
    since_ms: int = 0
    open: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """Return the offset of the first record that is not done."""
        return min((self.next_offset, *self.open))

    def is_done(self, offset: int) -> bool:
        """Return whether the outputs of a record are known to be delivered."""
        return offset in self.ahead or (offset < self.next_offset and offset not in self.open)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Progress of a partition: in its memories, which have no open records, and in its queries.

    `tails` are the output offsets from which outputs of unfinished records may lie; a partition that is not named has
    to be searched whole. `at_ms` is the time of the search by the writer's clock. `clean` means that no output was sent
    for unfinished records. `deployment` and `partitions` identify the state. `began` is the memory offset of the
    deployment's first record, after retention. `generation` counts the owners of the partition.
    """

    memory: LogProgress
    queries: LogProgress
    partitions: int
    tails: Tails = field(default_factory=dict)
    at_ms: int = 0
    clean: bool = False
    deployment: str = ""
    began: int = 0
    generation: int = 0

    def encode(self) -> bytes:
        """Return the full encoding for a partition's folder."""
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
        """Return the value that `encode` encoded. Raise ValueError for other data."""
        try:
            said = orjson.loads(data)
            memory, queries = (_reached(*said.pop(name)) for name in ("memory", "queries"))
            tails = {topic: _numbered(offsets) for topic, offsets in said.pop("tails").items()}
            return cls(memory, queries, tails=tails, **said)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a place: {str(data)[:200]!r}") from error

    @classmethod
    def found(cls, text: str | None) -> Self | None:
        """Parse commit metadata. Return None without metadata, or for that of another version: the sent outputs then
        show the progress."""
        try:
            return cls.decode(text) if text else None
        except ValueError:
            return None

    def text(self) -> str:
        """Return the commit metadata. Above the size limit, tails are found by time, and some records done ahead are
        done again. The progress is not clean then, and the next owner finds in the tails that their outputs were sent.
        """
        for one in (self, replace(self, tails={}), self._least()):
            if len(text := one.encode().decode()) <= TEXT_MOST:
                return text
        raise ValueError("a place is longer than its bound")

    def _least(self) -> "PartitionProgress":
        """Return the smallest correct progress: open records must not be lost, so reading continues at the first of
        them."""
        still = sorted(self.queries.open)
        if len(still) <= AHEAD_MOST:
            queries = self.queries._replace(ahead=())
        else:
            queries = LogProgress(still[AHEAD_MOST], 0, tuple(still[:AHEAD_MOST]))
        return replace(self, queries=queries, tails={}, clean=False)


def progress_of(stored: bytes) -> tuple[str, tuple[int, int, int]]:
    """Return the deployment of a progress that a folder keeps, and its generation, next memory offset and first open
    query: later values of a partition are larger. Return no deployment and zeros for the encoding of another version.
    """
    place = PartitionProgress.found(stored.decode())
    if place is None:
        return "", (0, 0, 0)
    return place.deployment, (place.generation, place.memory.next_offset, place.queries.first)


def _encoded(reached: LogProgress) -> tuple[Any, ...]:
    """Return a log with its lists of offsets as differences, which are shorter."""
    lists = (sorted(one) for one in (reached.open, reached.ahead))
    return (reached.next_offset, reached.since_ms, *([b - a for a, b in pairwise([0, *one])] for one in lists))


def _reached(next_offset: int, since_ms: int, still: list[int], ahead: list[int]) -> LogProgress:
    return LogProgress(int(next_offset), int(since_ms), tuple(accumulate(still)), tuple(accumulate(ahead)))


def _spread(offsets: Mapping[int, int]) -> list[int]:
    """Return offsets in the order of their partitions; -1 where one is not known."""
    return [offsets.get(number, -1) for number in range(max(offsets, default=-1) + 1)]


def _numbered(offsets: Iterable[int]) -> dict[int, int]:
    return {number: offset for number, offset in enumerate(offsets) if offset >= 0}
