"""First offsets of partitions without a committed place: in a new deployment, or after Kafka and the folders lost it.

A new state directory reads memories, or results of enrichment, from their beginning. An earlier engine may have sent
their outputs long ago: then these records give no outputs. Near the last record with an output, an earlier engine that
was killed had sent some outputs and not others, so each is compared with the topic. Where nothing was ever sent, memory
is read from its beginning and queries from their end: nobody waits for answers from before there was an engine.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Consumer

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.messages import identity_of, time_ms
from recallflow.connectors.kafka.place import Place, Reached
from recallflow.connectors.kafka.tails import Ends
from recallflow.connectors.kafka.topic_reader import TAIL, UNCOMMITTED, NewConsumer, TopicReader
from recallflow.flows.topics import Topics
from recallflow.records import Position
from recallflow.state.directory import StateDirectory

COMPARED = 20_000  # records before the last one that anything was sent for

_log = logging.getLogger(__name__)


class Sent(NamedTuple):
    """`below`: per source (`topic:partition`), up to where everything was sent. `tails`: per output partition, from
    where its outputs are compared one by one."""

    below: dict[str, int]
    tails: dict[str, int]


class _Source(NamedTuple):
    """A partition of the topic as it is now: what begins before it, in time or in place, was another one's."""

    low: int
    high: int
    begins_ms: int


def sent_before(
    options: KafkaOptions, topic: str, outputs: Sequence[str], new_consumer: NewConsumer = Consumer
) -> Sent:
    """Reads the topics of `outputs`, from when on `topic` begins. Raises SourceError."""
    places: dict[str, dict[str, deque[tuple[int, int]]]] = {}  # part → source → offsets of a record, and its output
    last: dict[str, int] = defaultdict(lambda: -1)
    with TopicReader(options, TAIL, new_consumer=new_consumer) as reader:
        sources = _sources(reader, topic)
        begins_ms = min((source.begins_ms for source in sources.values()), default=0)
        for (output, number), (_, high) in reader.spans(outputs).items() if sources else ():
            if (begin := reader.offset_at(output, number, begins_ms)) >= high:
                continue
            found = places.setdefault(f"{output}:{number}", defaultdict(lambda: deque(maxlen=COMPARED)))
            for message in reader.read_to_end(output, number, begin):
                if (position := _source_of(message, sources)) is not None:
                    found[position.source].append((position.offset, message.offset()))
                    last[position.source] = max(last[position.source], position.offset)
    below = {source: max(0, offset + 1 - COMPARED) for source, offset in last.items()}
    tails: dict[str, int] = {}
    for part, by_source in places.items():
        compared = [at for source, pairs in by_source.items() for offset, at in pairs if offset >= below[source]]
        if compared:
            tails[part] = min(compared)
    return Sent(below, tails)


def _sources(reader: TopicReader, topic: str) -> dict[str, _Source]:
    """The partitions of a topic that hold anything."""
    spans = reader.spans((topic,))
    firsts = reader.firsts(spans).items()
    return {f"{topic}:{number}": _Source(*spans[topic, number], time_ms(first)) for (_, number), first in firsts}


def _source_of(message: Any, sources: dict[str, _Source]) -> Position | None:
    """The record that an output came of, where that is one of the sources' still."""
    for source, _ in identity_of(message):
        try:
            position = Position.parse(source.decode())
        except ValueError:  # of somebody else's making
            return None
        known = sources.get(position.source)
        if known and known.low <= position.offset < known.high and known.begins_ms <= time_ms(message):
            return position
    return None


def first_places(
    options: KafkaOptions,
    topics: Topics,
    ends: Ends,
    directory: StateDirectory,
    deployment: str,
    numbers: Collection[int],
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
            number: 0 if topic in anywhere else _least(f"{topic}:{number}", memory, queries, end)
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


def first_enrichment_places(
    options: KafkaOptions, topics: Topics, ends: Ends, deployment: str, numbers: Collection[int]
) -> dict[int, Place]:
    """Return a place for each of the partitions of requests and results. Requests with an output are done; all others
    are open, whoever had the partition. Raises SourceError."""
    now, at_ms = ends.latest()
    sent = sent_before(options, topics.results, (topics.memory, topics.receipts, topics.dead_letters))
    answered = answered_requests(options, topics)
    places: dict[int, Place] = {}
    with TopicReader(options, UNCOMMITTED) as reader:
        spans = reader.spans((topics.results, topics.enrichment))
        for number in numbers:
            low = spans[topics.results, number][0]
            results = max(low, sent.below.get(f"{topics.results}:{number}", low))
            requests = answered.get(number, Reached(spans[topics.enrichment, number][0]))
            tails = {
                topic: {part: sent.tails.get(f"{topic}:{part}", end) for part, end in lasts.items()}
                for topic, lasts in now.items()
            }
            places[number] = Place(
                Reached(results), requests, len(now[topics.results]), tails, at_ms, deployment=deployment
            )
    return places


def answered_requests(options: KafkaOptions, topics: Topics) -> dict[int, Reached]:
    """Return how far each partition of requests is answered, by the outputs in their topics. Where retention removed
    the first results, requests that are older than the first one left count as answered."""
    with TopicReader(options, UNCOMMITTED) as reader:
        spans = {number: span for (_, number), span in reader.spans((topics.enrichment,)).items() if span[0] < span[1]}
        marks = {number: np.zeros(high - low, np.bool_) for number, (low, high) in spans.items()}
        outputs = reader.spans((topics.results, topics.dead_letters)) if spans else {}
        for (topic, number), (low, _) in outputs.items():
            for message in reader.read_to_end(topic, number, low):
                if topic == topics.results and message.offset() == low > 0:
                    for asked, mark in marks.items():
                        older = reader.offset_at(topics.enrichment, asked, time_ms(message))
                        mark[: max(0, older - spans[asked][0])] = True
                for position in _answered_by(message):
                    low_asked, high_asked = spans.get(position.partition, (0, 0))
                    if position.topic == topics.enrichment and low_asked <= position.offset < high_asked:
                        marks[position.partition][position.offset - low_asked] = True
    return {number: _reached(mark, spans[number][0]) for number, mark in marks.items()}


def _reached(mark: "np.ndarray[Any, np.dtype[np.bool_]]", low: int) -> Reached:
    answered = np.flatnonzero(mark)
    after = int(answered[-1]) + 1 if len(answered) else 0
    still = np.flatnonzero(~mark[:after]) + low
    return Reached(low + after, 0, tuple(still.tolist()))


def _answered_by(message: Any) -> Iterator[Position]:
    """Yield the record that an output comes from, if the output names it."""
    for source, _ in identity_of(message):
        try:
            yield Position.parse(source.decode())
        except ValueError:  # not written by recallflow
            return
