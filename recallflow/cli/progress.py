"""How far a log was sent to a topic: kept per log, cluster and topic, in the user's state folder.

A topic that was made anew has another id, and so nothing of the log is in it. A topic that was emptied holds fewer
records than were sent.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import orjson

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import TopicAsker
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import RecallflowError, UsageError
from recallflow.private_files import make_private_folder
from recallflow.state.files import write_whole


class Target(NamedTuple):
    """A topic as it is now. `records`: how many are in it; `ends`: how many there ever were, about."""

    cluster: str
    topic: str
    topic_id: str
    records: int
    ends: int

    @classmethod
    def of(cls, options: KafkaOptions, topic: str) -> "Target":
        """Raises SourceError where Kafka cannot be reached, refuses us, or has no such topic."""
        topic_id = TopicAsker(options, [topic]).first()[topic].id
        with TopicReader(options) as reader:
            spans = [*reader.spans([topic]).values()]
            cluster = reader.cluster_id()
        return cls(cluster, topic, topic_id, sum(high - low for low, high in spans), sum(high for _, high in spans))


class Progress:
    """How far a log was sent to a target. `log` names the log."""

    def __init__(self, log: str, target: Target, environment: Mapping[str, str] = os.environ) -> None:
        """Raises RecallflowError where what was kept cannot be read."""
        key = "\n".join((log, target.cluster, target.topic, target.topic_id))
        self.path = state_home(environment) / "replay" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        self.events = self.sent = 0
        self.emptied = False  # what was sent before is not in the topic any more
        try:
            if self.path.exists():
                stored = orjson.loads(self.path.read_bytes())
                self.events, self.sent = int(stored["events"]), int(stored["sent"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecallflowError(f"{self.path} cannot be read ({error}): remove it, and all is sent again") from error
        if self.sent and (target.records == 0 or target.ends < self.sent):
            self.emptied, self.events, self.sent = True, 0, 0

    def save(self, events: int, sent: int) -> None:
        """Raises RecallflowError where it cannot be written."""
        try:
            make_private_folder(self.path.parent)
            write_whole(self.path, orjson.dumps({"events": events, "sent": sent}))
        except OSError as error:
            raise RecallflowError(f"cannot write {self.path}: {error.strerror}; set XDG_STATE_HOME") from error


def state_home(environment: Mapping[str, str]) -> Path:
    """The user's folder for what a program remembers: `$XDG_STATE_HOME`, or `~/.local/state`."""
    given = environment.get("XDG_STATE_HOME", "")
    if Path(given).is_absolute():  # the standard wants a relative path to be ignored
        return Path(given) / "recallflow"
    try:
        return Path.home() / ".local" / "state" / "recallflow"
    except RuntimeError:
        raise UsageError("there is no home folder to remember the progress in: set XDG_STATE_HOME") from None
