"""What a new state directory of the enrichment flow finds done already: by another directory, which may be lost.

Requests that have their result are not asked again, and of results the events that are in the memory topic are not sent
again.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.messages import record_of, time_ms
from recallflow.connectors.kafka.outgoing import identity_of
from recallflow.connectors.kafka.topic_reader import UNCOMMITTED, TopicReader
from recallflow.flows.begin import Begin, ends
from recallflow.flows.sent import sent_before
from recallflow.flows.topics import Topics
from recallflow.records import Position, Record

_log = logging.getLogger(__name__)

Spans = dict[str, list[list[int]]]


def begin_enrichment(options: KafkaOptions, topics: Topics) -> Begin:
    """Raises SourceError."""
    outputs = ends(options, topics.enrichment_written(), UNCOMMITTED)
    answered = answered_requests(options, topics)
    sent = sent_before(options, topics.results, (topics.memory, topics.receipts, topics.dead_letters))
    many = sum(end - first for spans in answered.values() for first, end in spans)
    if many:
        _log.info("%d requests have their results, and are not asked again", many)
    return Begin(outputs | sent.tails, sent.below, answered)


def answered_requests(options: KafkaOptions, topics: Topics) -> Spans:
    """`topic:partition` → the spans of requests that have a result or were refused. Where the topic of results has lost
    its beginning, requests that are older than what is left of it count as answered."""
    with TopicReader(options, UNCOMMITTED) as reader:
        requests = {part: span for part, span in reader.spans((topics.enrichment,)).items() if span[0] < span[1]}
        if not requests:
            return {}
        found = {f"{topic}:{number}": _Marks(*span) for (topic, number), span in requests.items()}
        for (topic, number), (low, _) in reader.spans((topics.results, topics.dead_letters)).items():
            for message in reader.read_to_end(topic, number, low):
                if topic == topics.results and message.offset() == low > 0:
                    for request_topic, partition in requests:
                        older = reader.offset_at(request_topic, partition, time_ms(message))
                        found[f"{request_topic}:{partition}"].mark(0, older)
                for position in _positions(message):
                    if position.source in found:
                        found[position.source].mark(position.offset, position.offset + 1)
    return {source: spans for source, marks in found.items() if (spans := marks.spans())}


def read_again(options: KafkaOptions, positions: Sequence[Position]) -> dict[Position, Record]:
    """The records at these positions, without those that are gone from their topic. Raises SourceError."""
    found: dict[Position, Record] = {}
    if not positions:
        return found
    offsets: dict[tuple[str, int], set[int]] = defaultdict(set)
    for position in positions:
        offsets[position.topic, position.partition].add(position.offset)
    with TopicReader(options) as reader:
        for part, wanted in offsets.items():
            low, _ = reader.span(*part)
            for message in reader.read_to_end(*part, max(low, min(wanted))):
                if message.offset() in wanted:
                    record = record_of(message)
                    found[record.position] = record
                if message.offset() >= max(wanted):
                    break
    if gone := len({*positions} - found.keys()):
        _log.warning("%d requests that were under way are gone from their topic: nothing is found out of them", gone)
    return found


def is_answered(answered: Mapping[str, list[list[int]]], position: Position) -> bool:
    """Whether a request is within the spans."""
    return any(first <= position.offset < end for first, end in answered.get(position.source, ()))


class _Marks:
    """Which records of a partition are marked: a byte for each."""

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._marked = np.zeros(high - low, np.int8)

    def mark(self, first: int, end: int) -> None:
        self._marked[max(0, first - self._low) : max(0, end - self._low)] = 1

    def spans(self) -> list[list[int]]:
        """From the first up to the end of what is marked in a row."""
        edges = np.flatnonzero(np.diff(self._marked, prepend=0, append=0)) + self._low
        return [[int(first), int(end)] for first, end in edges.reshape(-1, 2)]


def _positions(message: Any) -> Iterator[Position]:
    """The record that an output comes from, where it says so."""
    for source, _ in identity_of(message):
        try:
            yield Position.parse(source.decode())
        except ValueError:  # of somebody else's making
            return
