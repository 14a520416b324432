"""What was sent for a topic before a state directory began.

A new directory reads memories, or results of enrichment, from their beginning, and another one may have sent what
comes of them long ago: then its records give no outputs. Near the last of them that is not known of all: a run that was
killed had sent some of its last outputs and not others. There each output is compared with those that are in its topic.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.messages import identity_of, time_ms
from recallflow.connectors.kafka.topic_reader import TAIL, NewConsumer, TopicReader
from recallflow.records import Position

COMPARED = 20_000  # records before the last one that anything was sent for


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
