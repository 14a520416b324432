"""What leaves the dataflow, on its way to a sink."""

from dataclasses import dataclass

from recallflow.errors import InvalidRecord
from recallflow.records import Position, Record


@dataclass(slots=True, frozen=True)
class Answer:
    """A response, encoded. `number` tells the outputs of one record apart."""

    position: Position
    number: int
    body: bytes


@dataclass(slots=True, frozen=True)
class Receipted:
    """A receipt, encoded."""

    position: Position
    number: int
    body: bytes


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """A refused record with the reason and the step that refused it; the record keeps the original bytes."""

    record: Record
    error: InvalidRecord
    step: str


@dataclass(slots=True, frozen=True)
class Done:
    """Records of one source that are through, in whatever way: applied, answered or refused. Comes after their
    outputs."""

    source: str
    offsets: tuple[int, ...]


Output = Answer | Receipted | DeadLetter | Done
