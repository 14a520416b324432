"""Reading and resending of dead letters."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from recallflow.connectors.kafka.admin import ask_configs
from recallflow.connectors.kafka.messages import Headers, headers_of
from recallflow.connectors.kafka.sender import Sender
from recallflow.connectors.kafka.topic_reader import UNCOMMITTED, TopicReader
from recallflow.errors import ErrorCode, FieldProblem, InvalidRecord
from recallflow.kafka_options import KafkaOptions
from recallflow.process import Patience
from recallflow.records import Position

ERROR_PREFIX = "error."
FIRST = "error.code"  # first of our headers: earlier headers belong to the record, even under the same names
DELIVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Letter:
    """Dead letter.

    `source` is the position of the refused record; the value of a tombstone is None. `headers` are the record's own.
    `error` holds code, detail, fields, step, source and time of the refusal, and the missing parts of the record.
    """

    position: Position
    source: Position
    key: bytes | None
    value: bytes | None
    headers: Headers
    error: dict[str, str]

    @classmethod
    def of(cls, message: Any) -> "Letter | None":
        """Return a message as a dead letter; None for a message of another kind."""
        headers = headers_of(message) or ()
        names = [name for name, _ in headers]
        if FIRST not in names:
            return None
        begin = len(names) - 1 - names[::-1].index(FIRST)
        ours = ((name, value) for name, value in headers[begin:] if name.startswith(ERROR_PREFIX))
        error = {name.removeprefix(ERROR_PREFIX): (value or b"").decode(errors="replace") for name, value in ours}
        if "detail" not in error or ("size" in error) is not ("sha256" in error):
            return None
        try:
            source = Position.parse(error.get("source", ""))
        except ValueError:
            return None
        position = Position(message.topic(), message.partition(), message.offset())
        return cls(position, source, message.key(), message.value(), headers[:begin], error)

    @property
    def refusal(self) -> InvalidRecord:
        """Return the refusal, with the wrong fields where the dead letter lists them."""
        named = orjson.loads(self.error.get("fields", "[]"))  # older dead letters have none
        fields = [FieldProblem(*one) for one in named] or [FieldProblem("", self.error["detail"])]
        return InvalidRecord(cast(ErrorCode, self.error["code"]), fields)

    @property
    def missing(self) -> list[str]:
        """Return the missing parts of the record. An incomplete record must not be sent again."""
        error, missing = self.error, []
        if "size" in error:
            here = f"{len(self.value or b'')} of its {error['size']} bytes are here"
            missing.append(f"{here} (SHA-256 of all: {error['sha256']})")
        if "key_size" in error:
            missing.append(f"{len(self.key or b'')} of the {error['key_size']} bytes of its key are here")
        if "masked" in error:
            missing.append(f"{error['masked']} credentials in it are masked")
        if "headers_dropped" in error:
            missing.append(f"its headers are not here: {error['headers_dropped']}")
        return missing


def read_letters(options: KafkaOptions, topic: str) -> Iterator[Letter]:
    """Yield all current dead letters, partition by partition. Raise SourceError."""
    with TopicReader(options, UNCOMMITTED) as reader:
        for (_, number), (begin, _) in reader.spans([topic]).items():
            yield from filter(None, map(Letter.of, reader.read_to_end(topic, number, begin)))


def send_again(
    options: KafkaOptions, letters: Sequence[Letter], credentials: Headers = (), judged: Collection[str] = ()
) -> int:
    """Send records again to the topics that refused them, with their bytes, keys and headers. Return their number.

    Dead letters hold no credentials: records for the topics in `judged`, which check senders, get our `credentials`.
    Raise SinkError; some records may have been sent by then.
    """
    if not letters:
        return 0
    configs = ask_configs(options, [letter.source.topic for letter in letters])
    most_bytes = {topic: config.most_bytes for topic, config in configs.items()}
    sender = Sender(options, most_bytes, then="others may have been sent: those with an id apply once")
    for letter in letters:
        ours = credentials if letter.source.topic in judged else ()
        sender.send(letter.source.topic, letter.value, letter.key, headers=(*letter.headers, *ours))
        sender.poll()
    sender.flush(Patience(DELIVERY_S))
    return len(letters)
