"""What a state directory remembers of its topics: the names of those it reads, their ids, and with how many partitions
it began.

Positions are of the topics it reads: others would be a second log on top of the first. By its id a topic differs from
another one that was made in its place. The number of the source's parts never changes, as a part's place in the log is
kept under its name: what is added to a topic later is read by parts that are there. And an output goes to the partition
that the topic's count gave when its record was appended, whatever the topic has grown to since: where else would it be
looked for after a crash?
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from recallflow.connectors.kafka.admin import Described
from recallflow.errors import SourceError
from recallflow.records import Position
from recallflow.state.files import read_checked, write_checked
from recallflow.state.sources import TOPICS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Count:
    """How many partitions of an output topic are used, for records from the given offset of their source on; for all of
    a source that is not named."""

    partitions: int
    since: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class KnownTopics:
    """Of one state directory; every change is written at once."""

    path: Path
    read: dict[str, str]  # by what it is read for
    parts: int  # of the source
    ids: dict[str, str]  # of every topic that is read or written
    counts: dict[str, list[Count]]  # of topics that are written, the oldest first
    anew: set[str]  # written topics that were made again: where they ended when the directory was new is of no use

    @classmethod
    def open(
        cls,
        state_dir: Path,
        found: Mapping[str, Described],
        read: Mapping[str, str],
        written: Iterable[str],
        ends: Callable[[], dict[str, int]],
    ) -> Self:
        """`found`: the topics there are; `read`: the name of the topic for each flag of `run`; `ends` says where each
        partition of the source's ends now (`topic:partition` → offset). A directory that knows nothing yet begins with
        what there is. Raises SourceError where an input is not the topic it was."""
        path, written = state_dir / TOPICS, frozenset(written)
        if path.exists():
            known = cls._stored(path, read)
        else:
            parts = max(found[topic].partitions for topic in {*read.values()} - written)
            known = cls(path, dict(read), parts, {}, {}, set())
        known.check(found)
        for topic in written:
            known._count(topic, found[topic].partitions, ends)
        known._write()
        return known

    @classmethod
    def check_names(cls, state_dir: Path, read: Mapping[str, str]) -> None:
        """Raises SourceError where a directory has read other topics than it is given, or is of another flow."""
        if (path := state_dir / TOPICS).exists():
            cls._stored(path, read)

    def partitions(self, topic: str, position: Position) -> int:
        """How many partitions of an output topic are used for what comes of a record."""
        counts = self.counts[topic]
        if len(counts) == 1:
            return counts[0].partitions
        return next(c.partitions for c in reversed(counts) if position.offset >= c.since.get(position.source, 0))

    def latest(self) -> dict[str, int]:
        """How many partitions each topic that is written has now."""
        return {topic: counts[-1].partitions for topic, counts in self.counts.items()}

    def check(self, found: Mapping[str, Described]) -> None:
        """Compares ids. Brokers before 2.8 have none."""
        for topic, described in found.items():
            known = self.ids.setdefault(topic, described.id)
            if known != described.id:
                self._replaced(topic, known, described)

    def _replaced(self, topic: str, known: str, described: Described) -> None:
        if topic in self.read.values():
            raise SourceError(
                f"{topic} was deleted and made anew (its id is {described.id}, and was {known}): what this state "
                "directory had read is not in it. Start with another state directory"
            )
        _log.warning("%s was made anew (its id is %s, and was %s): written on from now on", topic, described.id, known)
        self.ids[topic] = described.id
        self.anew.add(topic)
        self._write()

    def _count(self, topic: str, partitions: int, ends: Callable[[], dict[str, int]]) -> None:
        counts = self.counts.setdefault(topic, [Count(partitions)])
        if partitions < counts[-1].partitions:  # only another topic of this name can have fewer
            self.counts[topic] = [Count(partitions)]
        elif partitions > counts[-1].partitions:
            counts.append(Count(partitions, ends()))

    @classmethod
    def _stored(cls, path: Path, read: Mapping[str, str]) -> Self:
        kept = read_checked(path)
        for flag, name in kept.get("read", {}).items():  # {}: from before names were kept
            if (given := read.get(flag)) is None:
                raise SourceError(
                    f"{path.parent} is of a flow that reads {name}: give this one a --state-dir of its own"
                )
            if given != name:
                raise SourceError(
                    f"{path.parent} has read {name}, and is given {given} ({flag}): two logs would be mixed. Give "
                    f"{flag} {name}, or start with another state directory"
                )
        counts = {topic: [Count(**count) for count in steps] for topic, steps in kept["counts"].items()}
        return cls(path, dict(read), kept["parts"], kept["ids"], counts, set(kept["anew"]))

    def _write(self) -> None:
        kept = {
            "read": self.read,
            "parts": self.parts,
            "ids": self.ids,
            "counts": {topic: [asdict(count) for count in counts] for topic, counts in self.counts.items()},
            "anew": sorted(self.anew),
        }
        write_checked(self.path, kept)
