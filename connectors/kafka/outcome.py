"""What became of one record, as the topics say that the engine writes to: its receipt, or its dead letter."""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import orjson

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.dead_letters import Letter
from recallflow.connectors.kafka.outgoing import identity_of
from recallflow.connectors.kafka.patience import Patience
from recallflow.connectors.kafka.topic_reader import TAIL, TopicReader
from recallflow.records import Position

LOOK_S = 0.2  # between two looks


class Outcome(NamedTuple):
    """`outcome`: what a receipt says, or the code of the refusal; `detail`: why it was refused."""

    outcome: str
    refused: bool = False
    detail: str = ""


class Outcomes:
    """Follows the topics of receipts and dead letters, from where they end when it is made."""

    def __init__(self, options: KafkaOptions, topics: Sequence[str]) -> None:
        """Raises SourceError."""
        self._reader = TopicReader(options, TAIL)
        self._places = {part: end for part, (_, end) in self._reader.spans(topics).items()}

    def of(self, position: Position, patience: Patience) -> Outcome | None:
        """What became of the record at a position, once that is told; None where it is not told in time."""
        between_looks = threading.Event()
        while (found := self._look(position)) is None and not patience.ended():
            between_looks.wait(LOOK_S)
        return found

    def _look(self, position: Position) -> Outcome | None:
        for (topic, number), place in self._places.items():
            for message in self._reader.read_to_end(topic, number, place):
                self._places[topic, number] = message.offset() + 1
                if any(source == str(position).encode() for source, _ in identity_of(message)):
                    return _outcome(message)
        return None

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _outcome(message: Any) -> Outcome:
    letter = Letter.of(message)
    if letter is not None:
        return Outcome(letter.error["code"], True, letter.error["detail"])
    return Outcome(orjson.loads(message.value())["outcome"])
