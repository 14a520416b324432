"""Names and ids of the topics of a state directory, as it was started first.

Positions belong to the topics that it reads: another topic would be a second log on top of the first. By its id a topic
differs from one that was made in its place.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from recallflow.connectors.kafka.admin import Described
from recallflow.errors import SourceError
from recallflow.state.files import read_checked, write_checked
from recallflow.state.sources import TOPICS

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class KnownTopics:
    """The topics of one state directory."""

    path: Path
    read: dict[str, str]  # by the flag that names each
    ids: dict[str, str]  # of every topic that is read or written

    @classmethod
    def open(cls, state_dir: Path, found: Mapping[str, Described], read: Mapping[str, str]) -> Self:
        """`found`: the topics there are; `read`: the name of the topic for each flag. Raises SourceError where an input
        is another topic than before."""
        path = state_dir / TOPICS
        known = cls._stored(path, read) if path.exists() else cls(path, dict(read), {})
        known.check(found)
        known._write()
        return known

    @classmethod
    def check_names(cls, state_dir: Path, read: Mapping[str, str]) -> None:
        """Raises SourceError where a directory has read other topics than it is given, or is of another flow."""
        if (path := state_dir / TOPICS).exists():
            cls._stored(path, read)

    def check(self, found: Mapping[str, Described]) -> None:
        """Compares ids. Brokers before 2.8 have none."""
        for topic, described in found.items():
            known = self.ids.setdefault(topic, described.id)
            if known == described.id:
                continue
            if topic in self.read.values():
                raise SourceError(
                    f"{topic} was deleted and made anew (its id is {described.id}, and was {known}): what this state "
                    "directory had read is not in it. Start with another state directory"
                )
            _log.warning(
                "%s was made anew (its id is %s, and was %s): written on from now on", topic, described.id, known
            )
            self.ids[topic] = described.id
            self._write()

    @classmethod
    def _stored(cls, path: Path, read: Mapping[str, str]) -> Self:
        kept = read_checked(path)
        for flag, name in kept["read"].items():
            if (given := read.get(flag)) is None:
                raise SourceError(
                    f"{path.parent} is of a flow that reads {name}: give this one a --state-dir of its own"
                )
            if given != name:
                raise SourceError(
                    f"{path.parent} has read {name}, and is given {given} ({flag}): two logs would be mixed. Give "
                    f"{flag} {name}, or start with another state directory"
                )
        return cls(path, dict(read), kept["ids"])

    def _write(self) -> None:
        write_checked(self.path, {"read": self.read, "ids": self.ids})
