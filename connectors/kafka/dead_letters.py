"""Reading dead letters, and sending them again."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, Producer, TopicPartition

from recallflow.connectors.kafka.metadata import Metadata
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.connectors.kafka.sink import NUMBER_HEADER, SOURCE_HEADER
from recallflow.connectors.kafka.trouble import passes, tell_outage
from recallflow.errors import SinkError, SourceError
from recallflow.records import Position

ERROR_PREFIX = "error."
DELIVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter: where it stands, what it was, and why it was refused (`error.*` headers)."""

    position: Position
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def error(self) -> dict[str, str]:
        """code, detail, step, source, time."""
        told = ((name, value) for name, value in self.headers if name.startswith(ERROR_PREFIX))
        return {name.removeprefix(ERROR_PREFIX): (value or b"").decode(errors="replace") for name, value in told}

    @property
    def source(self) -> Position:
        """Where the refused record stood."""
        return Position.parse(self.error["source"])


def read_letters(options: KafkaOptions, topic: str) -> Iterator[Letter]:
    """All dead letters there are now, partition by partition. Raises SourceError."""
    with Metadata.open(options, {"enable.partition.eof": True, "auto.offset.reset": "earliest"}) as metadata:
        numbers = metadata.partitions([topic])[topic]
        for number, begin in [(number, metadata.span(topic, number)[0]) for number in numbers]:
            metadata.consumer.assign([TopicPartition(topic, number, begin)])
            yield from _until_end(metadata.consumer)


def _until_end(reader: Any) -> Iterator[Letter]:
    while True:
        message = reader.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            position = Position(message.topic(), message.partition(), message.offset())
            headers = tuple(message.headers() or ())
            yield Letter(position, message.key(), message.value() or b"", headers)
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        elif not passes(error):
            raise SourceError(f"{message.topic()}:{message.partition()}: {error.str()}")


def send_again(options: KafkaOptions, letters: Iterable[Letter]) -> int:
    """Sends records to the topic they were refused on, as they were: bytes, key and own headers. Returns how many.
    Raises SinkError; then some may have been sent."""
    producer = Producer(options.producer() | {"error_cb": tell_outage})
    failed: list[KafkaError] = []
    sent = 0
    for letter in letters:
        own: list[tuple[str, str | bytes | None]] = [
            h
            for h in letter.headers
            if not h[0].startswith(ERROR_PREFIX) and h[0] not in (SOURCE_HEADER, NUMBER_HEADER)
        ]
        producer.produce(
            letter.source.topic,
            value=letter.value,
            key=letter.key,
            headers=own,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
        producer.poll(0)
        sent += 1
    left = producer.flush(DELIVERY_S)
    if failed or left:
        raise SinkError(
            f"{len(failed) + left} of {sent} were not delivered: {failed[0].str() if failed else 'timed out'}"
        )
    return sent
