"""Where partitions begin whose place nobody knows: in a new deployment, or where Kafka forgot its offsets and the
folders are gone.

What was sent says what is done. Far back all of it is: silently up to there. Near the last record that anything was
sent for, an earlier engine had sent some outputs and not others, so each is compared. Where nothing was ever sent,
memory is read from its beginning and queries from their end: nobody waits for an answer from before there was an
engine.
"""

import logging
from collections.abc import Collection, Mapping

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.partitions import part_name
from recallflow.connectors.kafka.place import Place, Reached
from recallflow.connectors.kafka.tails import Ends
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.flows.sent import Sent, sent_before
from recallflow.flows.topics import Topics
from recallflow.state.directory import StateDirectory

_log = logging.getLogger(__name__)


def first_places(
    options: KafkaOptions,
    topics: Topics,
    ends: Ends,
    directory: StateDirectory,
    numbers: Collection[int],
    deployment: str,
) -> dict[int, Place]:
    """A place for each of the partitions. Those beyond the state's were added to the topics, and are read from their
    beginning. Of any other an engine may have sent something under another deployment's name, also where a member that
    came before us has begun with the rest. Raises SourceError."""
    own = directory.fingerprint.partitions
    looks = any(number < own for number in numbers)
    now, at_ms = ends.latest()
    inputs = {topics.memory, topics.queries}
    outputs = [topic for topic, lasts in now.items() if topic not in {*inputs, topics.control} and any(lasts.values())]
    memory = sent_before(options, topics.memory, outputs) if looks else Sent({}, {})
    queries = sent_before(options, topics.queries, outputs) if looks else Sent({}, {})
    # What was sent on to its home may stand anywhere in the log, whoever sent it: another deployment's outputs, as of
    # one that is compared with ours, need not be in our topics.
    anywhere = inputs if looks else set[str]()
    tails = {
        topic: {
            number: 0 if topic in anywhere else _least(part_name(topic, number), memory, queries, end)
            for number, end in lasts.items()
        }
        for topic, lasts in now.items()
    }
    places: dict[int, Place] = {}
    with TopicReader(options) as reader:
        for number in numbers:
            low = reader.span(topics.memory, number)[0]
            first, last = reader.span(topics.queries, number)
            asked = queries.below.get(f"{topics.queries}:{number}", last if number < own else first)
            known = memory.below.get(f"{topics.memory}:{number}", low)
            places[number] = Place(
                Reached(max(low, known)), Reached(max(first, asked)), own, tails, at_ms,
                deployment=deployment, began=low,
            )  # fmt: skip
    for source, offset in (memory.below | queries.below).items():
        _log.info("%s: what comes of records below offset %d was sent before, and is not sent again", source, offset)
    return places


def _least(part: str, memory: Sent, queries: Sent, end: int) -> int:
    found: Mapping[str, int] = memory.tails
    return min(found.get(part, end), queries.tails.get(part, end))
