"""Reading dead letters, and sending them again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import passes, tell_outage
from recallflow.connectors.kafka.configs import ask_configs, producer_bounds
from recallflow.connectors.kafka.messages import Headers, headers_of
from recallflow.connectors.kafka.metadata import Metadata
from recallflow.connectors.kafka.sink import UNCOMMITTED
from recallflow.errors import SinkError, SourceError
from recallflow.records import Position

ERROR_PREFIX = "error."
FIRST = "error.code"  # of our own headers: those before are the record's, whatever they are called
DELIVERY_S = 30.0
FULL_QUEUE_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter: where it stands, where the refused record stood (`source`), what that was (a tombstone has no
    value), and why it was refused. `headers` are the record's own. `error`: code, detail, step, source, time, and what
    is missing of the record."""

    position: Position
    source: Position
    key: bytes | None
    value: bytes | None
    headers: Headers
    error: dict[str, str]

    @classmethod
    def of(cls, message: Any) -> "Letter | None":
        """A message as a dead letter, or None where it is none of ours."""
        headers = headers_of(message) or ()
        names = [name for name, _ in headers]
        if FIRST not in names:
            return None
        begin = len(names) - 1 - names[::-1].index(FIRST)
        told = ((name, value) for name, value in headers[begin:] if name.startswith(ERROR_PREFIX))
        error = {name.removeprefix(ERROR_PREFIX): (value or b"").decode(errors="replace") for name, value in told}
        try:
            source = Position.parse(error.get("source", ""))
        except ValueError:
            return None
        position = Position(message.topic(), message.partition(), message.offset())
        return cls(position, source, message.key(), message.value(), headers[:begin], error)

    @property
    def missing(self) -> list[str]:
        """What is not here of the record: what is left is not to be sent as if it were the whole."""
        error, here = self.error, len(self.value or b"")
        cut = (
            f"{here} of its {error['size']} bytes are here (SHA-256 of all: {error['sha256']})"
            if "size" in error
            else ""
        )
        key = (
            f"{len(self.key or b'')} of the {error['key_size']} bytes of its key are here"
            if "key_size" in error
            else ""
        )
        headers = f"its headers are not here: {error['headers_dropped']}" if "headers_dropped" in error else ""
        return [*filter(None, (cut, key, headers))]


def read_letters(options: KafkaOptions, topic: str) -> Iterator[Letter]:
    """All dead letters there are now, partition by partition. Raises SourceError."""
    chosen = {"enable.partition.eof": True, "auto.offset.reset": "earliest", **UNCOMMITTED}
    with Metadata.open(options, chosen) as metadata:
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
            if (letter := Letter.of(message)) is not None:
                yield letter
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        elif not passes(error):
            raise SourceError(f"{message.topic()}:{message.partition()}: {error.str()}")


def send_again(options: KafkaOptions, letters: Sequence[Letter]) -> int:
    """Sends records to the topic they were refused on, as they were: bytes, key and own headers. Returns how many.
    Raises SinkError; then some may have been sent."""
    if not letters:
        return 0
    found = ask_configs(options, [letter.source.topic for letter in letters])
    bounds = producer_bounds({topic: config.most_bytes for topic, config in found.items()})
    producer = Producer(options.producer() | bounds | {"error_cb": tell_outage})
    failed: list[KafkaError] = []
    for letter in letters:
        _hand_over(producer, letter, lambda error, _: failed.append(error) if error is not None else None)
    left = producer.flush(DELIVERY_S)
    if failed or left:
        why = failed[0].str() if failed else "timed out"
        raise SinkError(f"{len(failed) + left} of {len(letters)} were not delivered: {why}")
    return len(letters)


def _hand_over(producer: Producer, letter: Letter, report: Callable[[KafkaError | None, Any], None]) -> None:
    """Hands one record to librdkafka, waiting while its queue is full."""
    own: list[tuple[str, str | bytes | None]] = [*letter.headers]
    while True:
        try:
            producer.produce(letter.source.topic, letter.value, letter.key, headers=own, on_delivery=report)
        except BufferError:
            producer.poll(FULL_QUEUE_WAIT_S)
        except KafkaException as error:
            report(error.args[0], None)
            return
        else:
            producer.poll(0)
            return
