"""Initial progress of partitions without a committed one: in a new deployment, or after Kafka and the folders lost it.

A new state directory reads memories, or enrichment results, from their beginning, and queries from their end. An
earlier engine may have sent outputs of these records already; then the records give no outputs again. A crashed engine
may have sent only some of the outputs of its last records. Therefore, the outputs of 20,000 records, up to the last one
with an output, are compared one by one."""

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

COMPARED = 20_000  # records up to the last record with an output

_log = logging.getLogger(__name__)


class DeliveredOffsets(NamedTuple):
    """Offsets of records whose outputs were sent, and of these outputs."""

    below: dict[str, int]  # input partition (`topic:number`) → the offset below which all outputs were sent
    tails: dict[str, int]  # output partition → the offset from which outputs are compared one by one


class _InputRange(NamedTuple):
    """The offsets of an input partition. Outputs before its first record belong to a deleted topic of the same name."""

    low: int
    high: int
    first_ms: int


def find_delivered(
    options: KafkaOptions, topic: str, outputs: Sequence[str], new_consumer: NewConsumer = Consumer
) -> DeliveredOffsets:
    """Read the output topics from the time of the first record of `topic`. Raise SourceError."""
    # Output partition → input partition → pairs of an input and an output offset.
    pairs_of: dict[str, dict[str, deque[tuple[int, int]]]] = {}
    last: dict[str, int] = defaultdict(lambda: -1)
    with TopicReader(options, TAIL, new_consumer=new_consumer) as reader:
        spans = reader.spans((topic,))
        firsts = reader.first_records(spans).items()
        ranges = {f"{topic}:{number}": _InputRange(*spans[topic, number], time_ms(one)) for (_, number), one in firsts}
        begin_ms = min((one.first_ms for one in ranges.values()), default=0)
        for (output, number), (_, high) in reader.spans(outputs).items() if ranges else ():
            if (begin := reader.offset_at(output, number, begin_ms)) >= high:
                continue
            pairs = pairs_of.setdefault(f"{output}:{number}", defaultdict(lambda: deque(maxlen=COMPARED)))
            for message in reader.read_to_end(output, number, begin):
                if (position := _input_of(message, ranges)) is not None:
                    pairs[position.source].append((position.offset, message.offset()))
                    last[position.source] = max(last[position.source], position.offset)
    below = {source: max(0, offset + 1 - COMPARED) for source, offset in last.items()}
    tails: dict[str, int] = {}
    for output_partition, by_source in pairs_of.items():
        compared = [at for source, pairs in by_source.items() for offset, at in pairs if offset >= below[source]]
        if compared:
            tails[output_partition] = min(compared)
    return DeliveredOffsets(below, tails)


def _input_of(message: Any, ranges: dict[str, _InputRange]) -> Position | None:
    """Return the position of the record that an output was derived from, if that is still in its topic."""
    for position in positions_in(message):
        found = ranges.get(position.source)
        if found and found.low <= position.offset < found.high and found.first_ms <= time_ms(message):
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
    """Return the initial progress of each partition. Raise SourceError.

    Partitions that were added to the topics after the state was created are read from their beginning: their numbers
    are not below that of state partitions. For all others, the output topics are searched, because an engine of another
    deployment may have sent outputs, even if a member of this deployment has started already."""
    count = directory.fingerprint.partitions
    end_offsets, at_ms = ends.latest()
    inputs = {topics.memory, topics.queries}
    memory = queries = DeliveredOffsets({}, {})
    searched_whole: TopicOffsets = {}
    if any(number < count for number in numbers):
        filled = [topic for topic, ends_of in end_offsets.items() if any(ends_of.values())]
        outputs = [topic for topic in filled if topic not in {*inputs, topics.control}]
        memory, queries = (find_delivered(options, topic, outputs) for topic in (topics.memory, topics.queries))
        # Any deployment may have forwarded misrouted records, to any offset of an input topic.
        searched_whole = {topic: dict.fromkeys(end_offsets[topic], 0) for topic in inputs & end_offsets.keys()}
    tails: TopicOffsets = {**_tails(end_offsets, memory, queries), **searched_whole}
    progress: dict[int, PartitionProgress] = {}
    with TopicReader(options) as reader:
        tails = since_first_record(reader, tails, [(topic, n) for n in numbers if n >= count for topic in inputs])
        for number in numbers:
            memory_low, _ = reader.span(topics.memory, number)
            query_low, query_high = reader.span(topics.queries, number)
            memory_start = memory.below.get(f"{topics.memory}:{number}", memory_low)
            query_start = queries.below.get(f"{topics.queries}:{number}", query_high if number < count else query_low)
            progress[number] = PartitionProgress(
                LogProgress(max(memory_low, memory_start)), LogProgress(max(query_low, query_start)), count, tails,
                at_ms, deployment=deployment, began=memory_low,
            )  # fmt: skip
    for source, offset in (memory.below | queries.below).items():
        _log.info("%s: outputs of records below offset %d were sent before, and are not sent again", source, offset)
    return progress


def _tails(end_offsets: TopicOffsets, *delivered: DeliveredOffsets) -> TopicOffsets:
    """Return for each output partition the offset from which outputs are compared: its end, if none need be."""
    return {
        topic: {part: min(one.tails.get(f"{topic}:{part}", end) for one in delivered) for part, end in ends.items()}
        for topic, ends in end_offsets.items()
    }


def since_first_record(reader: TopicReader, tails: TopicOffsets, added: Collection[tuple[str, int]]) -> TopicOffsets:
    """Return the tails, lowered to the time of the first record in an added partition. Outputs of its records, and its
    forwarded misrouted records, are later."""
    spans = {part: reader.span(*part) for part in added}
    times_ms = [time_ms(first) for first in reader.first_records(spans).values()]
    if not times_ms:
        return tails
    return {
        topic: {number: min(end, reader.offset_at(topic, number, min(times_ms))) for number, end in ends.items()}
        for topic, ends in tails.items()
    }


def initial_enrichment_progress(
    options: KafkaOptions, topics: TopicNames, ends: EndOffsetPoller, deployment: str, numbers: Collection[int]
) -> dict[int, PartitionProgress]:
    """Return the initial progress of each partition of results and requests. Requests with an output are done."""
    end_offsets, at_ms = ends.latest()
    delivered = find_delivered(options, topics.results, (topics.memory, topics.receipts, topics.dead_letters))
    answered, tails = answered_requests(options, topics), _tails(end_offsets, delivered)
    count = len(end_offsets[topics.results])
    progress: dict[int, PartitionProgress] = {}
    with TopicReader(options, UNCOMMITTED) as reader:
        spans = reader.spans((topics.results, topics.enrichment))
        for number in numbers:
            low = spans[topics.results, number][0]
            results = LogProgress(max(low, delivered.below.get(f"{topics.results}:{number}", low)))
            requests = answered.get(number, LogProgress(spans[topics.enrichment, number][0]))
            progress[number] = PartitionProgress(results, requests, count, tails, at_ms, deployment=deployment)
    return progress


def answered_requests(options: KafkaOptions, topics: TopicNames) -> dict[int, LogProgress]:
    """Return the progress of each partition of requests, according to the output topics. If retention deleted the first
    results, requests older than the first remaining result count as answered."""
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
                for position in positions_in(message):
                    first, end = spans.get(position.partition, (0, 0))
                    if position.topic == topics.enrichment and first <= position.offset < end:
                        marks[position.partition][position.offset - first] = True
    return {number: _answered_progress(mark, spans[number][0]) for number, mark in marks.items()}


def _answered_progress(mark: "np.ndarray[Any, np.dtype[np.bool_]]", low: int) -> LogProgress:
    answered = np.flatnonzero(mark)
    after = int(answered[-1]) + 1 if len(answered) else 0
    unanswered = np.flatnonzero(~mark[:after]) + low
    return LogProgress(low + after, 0, tuple(unanswered.tolist()))


def positions_in(message: Any) -> Iterator[Position]:
    """Yield the position of the record that an output was derived from, if recallflow wrote the output."""
    for source, _ in identity_of(message):
        try:
            yield Position.parse(source.decode())
        except ValueError:  # not written by recallflow
            return
