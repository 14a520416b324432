"""Where a state directory began to read and write, from before the first record on: a first run that is killed before
its first snapshot has no other memory of it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.partitions import part_name
from recallflow.connectors.kafka.topic_reader import UNCOMMITTED, TopicReader
from recallflow.errors import StateError, UsageError
from recallflow.flows.sent import sent_before
from recallflow.flows.topics import Topics
from recallflow.parsing import asks
from recallflow.state.directory import BEGIN
from recallflow.state.files import read_checked, write_checked

_log = logging.getLogger(__name__)


class Begin(NamedTuple):
    """Offsets by part (`part_name`): from where outputs are known by what their topics hold, where the query topic
    ended, and up to where queries that are gone from their topic were given up. By `topic:partition`: `sent`, up to
    where another directory sent what comes of memories, or of results of enrichment; and `answered`, which requests for
    enrichment have their results, from the first up to the end of each span."""

    outputs: dict[str, int]
    queries: dict[str, int]
    given_up: dict[str, int]
    sent: dict[str, int] = {}
    answered: dict[str, list[list[int]]] = {}

    @classmethod
    def now(cls, options: KafkaOptions, topics: Topics, written: tuple[str, ...]) -> "Begin":
        """What a new state directory begins with, where these topics are `written`. Raises SourceError, and UsageError
        where the memory topic is one of queries."""
        _check_memories(options, topics.memory)
        outputs = ends(options, written, UNCOMMITTED)
        queries = ends(options, (topics.queries,))
        holding = [one for one in (topics.receipts, topics.dead_letters, topics.enrichment) if one in written]
        sent = sent_before(options, topics.memory, holding)
        for source, offset in sent.below.items():
            _log.info(
                "%s: what comes of records below offset %d was sent before, and is not sent again", source, offset
            )
        return cls(outputs | sent.tails, queries, {}, sent.below)

    @classmethod
    def read(cls, state_dir: Path) -> "Begin | None":
        """What the state directory began with; None where no run began yet. Raises StateError."""
        path = state_dir / BEGIN
        try:
            return cls(**read_checked(path))
        except FileNotFoundError:
            return None
        except TypeError as error:
            raise StateError(f"{path} cannot be read ({error}): restore a checkpoint") from error

    def write(self, state_dir: Path) -> None:
        write_checked(state_dir / BEGIN, self._asdict())


def ends(options: KafkaOptions, topics: tuple[str, ...], chosen: Mapping[str, object] | None = None) -> dict[str, int]:
    """By part, where it ends: where what is committed ends, or with `chosen` UNCOMMITTED all there is."""
    with TopicReader(options, chosen) as reader:
        return {part_name(*part): end for part, (_, end) in reader.spans(topics).items()}


def _check_memories(options: KafkaOptions, topic: str) -> None:
    """A topic of queries that is read as one of memories would have all of them answered a second time."""
    with TopicReader(options) as reader:
        values = [first.value() or b"" for first in reader.firsts(reader.spans((topic,))).values()]
    if values and all(map(asks, values)):
        raise UsageError(
            f"{topic} begins with queries in each partition, and is given as --memory-topic: give the topic of memory "
            "events there, and that of queries as --query-topic"
        )
