"""Initial progress of partitions without a committed one: in a new deployment, or after Kafka and the folders lost it.

A new state directory reads memories, or enrichment results, from their beginning. An earlier engine may have sent their
outputs already; then these records give no outputs. Before a crash, an engine may have sent only some of the outputs of
its last records. So the last 20,000 records with outputs are compared with the output topics one by one. In a new
deployment, memory is read from its beginning and queries from their end."""

import logging
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Consumer

from recallflow.connectors.kafka.cluster import EndOffsetPoller
from recallflow.connectors.kafka.messages import identity_of, time_ms
from recallflow.connectors.kafka.partition import LogProgress, PartitionProgress, TopicOffsets
from recallflow.connectors.kafka.topic_reader import TAIL, UNCOMMITTED, NewConsumer, TopicReader
from recallflow.flows.settings import TopicNames
from recallflow.kafka_options import KafkaOptions
from recallflow.records import Position
from recallflow.state.directory import StateDirectory

COMPARED = 20_000  # records before the last record with an output

_log = logging.getLogger(__name__)


class DeliveredOffsets(NamedTuple):
    """Offsets up to which outputs were sent."""

    below: dict[str, int]  # source (`topic:partition`) → the offset below which all outputs were sent
    tails: dict[str, int]  # output partition → the offset from which outputs are compared one by one


class _Source(NamedTuple):
    """The current range of a source partition. Outputs before `begins_ms` belong to a deleted topic of the same
    name."""

    low: int
    high: int
    begins_ms: int


def sent_before(
    options: KafkaOptions, topic: str, outputs: Sequence[str], new_consumer: NewConsumer = Consumer
) -> DeliveredOffsets:
    """Read the output topics from the time of the first record of `topic`. Raise SourceError."""
    output_offsets: dict[str, dict[str, deque[tuple[int, int]]]] = {}  # part → source → (record offset, output offset)
    last: dict[str, int] = defaultdict(lambda: -1)
    with TopicReader(options, TAIL, new_consumer=new_consumer) as reader:
        sources = _sources(reader, topic)
        begins_ms = min((source.begins_ms for source in sources.values()), default=0)
        for (output, number), (_, high) in reader.spans(outputs).items() if sources else ():
            if (begin := reader.offset_at(output, number, begins_ms)) >= high:
                continue
            found = output_offsets.setdefault(f"{output}:{number}", defaultdict(lambda: deque(maxlen=COMPARED)))
            for message in reader.read_to_end(output, number, begin):
                if (position := _source_of(message, sources)) is not None:
                    found[position.source].append((position.offset, message.offset()))
                    last[position.source] = max(last[position.source], position.offset)
    below = {source: max(0, offset + 1 - COMPARED) for source, offset in last.items()}
    tails: dict[str, int] = {}
    for part, by_source in output_offsets.items():
        compared = [at for source, pairs in by_source.items() for offset, at in pairs if offset >= below[source]]
        if compared:
            tails[part] = min(compared)
    return DeliveredOffsets(below, tails)


def _sources(reader: TopicReader, topic: str) -> dict[str, _Source]:
    spans = reader.spans((topic,))
    firsts = reader.firsts(spans).items()
    return {f"{topic}:{number}": _Source(*spans[topic, number], time_ms(first)) for (_, number), first in firsts}


def _source_of(message: Any, sources: dict[str, _Source]) -> Position | None:
    """Return the record that an output was derived from, if it is still in a source."""
    for position in _positions_in(message):
        known = sources.get(position.source)
        if known and known.low <= position.offset < known.high and known.begins_ms <= time_ms(message):
            return position
    return None


def initial_progress(
    options: KafkaOptions,
    topics: TopicNames,
    ends: EndOffsetPoller,
    directory: StateDirectory,
    deployment: str,
    numbers: Collection[int],
) -> dict[int, PartitionProgress]:
    """Return the initial progress of each partition.

    Partitions beyond the state's count were added to the topics later, and are read from their beginning. For all
    others the output topics are searched, because an engine of another deployment may have sent outputs, even if a
    member of this deployment has started already. Raise SourceError."""
    own = directory.fingerprint.partitions
    end_offsets, at_ms = ends.latest()
    inputs = {topics.memory, topics.queries}
    memory = queries = DeliveredOffsets({}, {})
    searched_whole = set[str]()
    if any(number < own for number in numbers):
        filled = [topic for topic, lasts in end_offsets.items() if any(lasts.values())]
        outputs = [topic for topic in filled if topic not in {*inputs, topics.control}]
        memory, queries = (sent_before(options, topic, outputs) for topic in (topics.memory, topics.queries))
        # Any deployment may have forwarded misrouted records, to any offset of an input topic.
        searched_whole = inputs
    compared = [memory.tails, queries.tails]
    tails: TopicOffsets = {
        topic: {
            number: 0 if topic in searched_whole else min(found.get(f"{topic}:{number}", end) for found in compared)
            for number, end in lasts.items()
        }
        for topic, lasts in end_offsets.items()
    }
    progress: dict[int, PartitionProgress] = {}
    with TopicReader(options) as reader:
        tails = since_first_record(reader, tails, [(topic, n) for n in numbers if n >= own for topic in inputs])
        for number in numbers:
            low = reader.span(topics.memory, number)[0]
            first, last = reader.span(topics.queries, number)
            query_start = queries.below.get(f"{topics.queries}:{number}", last if number < own else first)
            memory_start = memory.below.get(f"{topics.memory}:{number}", low)
            progress[number] = PartitionProgress(
                LogProgress(max(low, memory_start)), LogProgress(max(first, query_start)), own, tails, at_ms,
                deployment=deployment, began=low,
            )  # fmt: skip
    for source, offset in (memory.below | queries.below).items():
        _log.info("%s: outputs of records below offset %d were sent before, and are not sent again", source, offset)
    return progress


def since_first_record(reader: TopicReader, tails: TopicOffsets, added: Collection[tuple[str, int]]) -> TopicOffsets:
    """Return tails from before the first record of added partitions: their misrouted records were forwarded later."""
    spans = {part: reader.span(*part) for part in added}
    times_ms = [time_ms(first) for first in reader.firsts(spans).values()]
    if not times_ms:
        return tails
    return {
        topic: {number: min(end, reader.offset_at(topic, number, min(times_ms))) for number, end in ends.items()}
        for topic, ends in tails.items()
    }


def initial_enrichment_progress(
    options: KafkaOptions, topics: TopicNames, ends: EndOffsetPoller, deployment: str, numbers: Collection[int]
) -> dict[int, PartitionProgress]:
    """Return the progress of each partition of requests and results: requests with an output are done."""
    end_offsets, at_ms = ends.latest()
    sent = sent_before(options, topics.results, (topics.memory, topics.receipts, topics.dead_letters))
    answered = answered_requests(options, topics)
    progress: dict[int, PartitionProgress] = {}
    with TopicReader(options, UNCOMMITTED) as reader:
        spans = reader.spans((topics.results, topics.enrichment))
        for number in numbers:
            low = spans[topics.results, number][0]
            results = max(low, sent.below.get(f"{topics.results}:{number}", low))
            requests = answered.get(number, LogProgress(spans[topics.enrichment, number][0]))
            tails = {
                topic: {part: sent.tails.get(f"{topic}:{part}", end) for part, end in lasts.items()}
                for topic, lasts in end_offsets.items()
            }
            progress[number] = PartitionProgress(
                LogProgress(results), requests, len(end_offsets[topics.results]), tails, at_ms, deployment=deployment
            )
    return progress


def answered_requests(options: KafkaOptions, topics: TopicNames) -> dict[int, LogProgress]:
    """Return the answered offsets of each partition of requests, according to the output topics. If retention deleted
    the first results, requests older than the first remaining result count as answered."""
    with TopicReader(options, UNCOMMITTED) as reader:
        spans = {number: span for (_, number), span in reader.spans((topics.enrichment,)).items() if span[0] < span[1]}
        marks = {number: np.zeros(high - low, np.bool_) for number, (low, high) in spans.items()}
        outputs = reader.spans((topics.results, topics.dead_letters)) if spans else {}
        for (topic, number), (low, _) in outputs.items():
            for message in reader.read_to_end(topic, number, low):
                if topic == topics.results and message.offset() == low > 0:
                    for part, mark in marks.items():
                        older = reader.offset_at(topics.enrichment, part, time_ms(message))
                        mark[: max(0, older - spans[part][0])] = True
                for position in _positions_in(message):
                    first, end = spans.get(position.partition, (0, 0))
                    if position.topic == topics.enrichment and first <= position.offset < end:
                        marks[position.partition][position.offset - first] = True
    return {number: _answered_progress(mark, spans[number][0]) for number, mark in marks.items()}


def _answered_progress(mark: "np.ndarray[Any, np.dtype[np.bool_]]", low: int) -> LogProgress:
    answered = np.flatnonzero(mark)
    after = int(answered[-1]) + 1 if len(answered) else 0
    unanswered = np.flatnonzero(~mark[:after]) + low
    return LogProgress(low + after, 0, tuple(unanswered.tolist()))


def _positions_in(message: Any) -> Iterator[Position]:
    for source, _ in identity_of(message):
        try:
            yield Position.parse(source.decode())
        except ValueError:  # not written by recallflow
            return
