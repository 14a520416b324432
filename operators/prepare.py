"""Text analysis and embedding, batched, before the state and away from it."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from recallflow.embedder import Embedder, Matrix, TextVectors, embed_texts
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import Memory, MemoryEmbedding, MemoryUpdate, Message
from recallflow.language import read
from recallflow.limits import READ_CHARACTERS
from recallflow.operators.events import Analysis, Item, Refused, Write
from recallflow.operators.graph.extract import read_names
from recallflow.operators.guard import once
from recallflow.operators.text import flags_of
from recallflow.state.tokens import NO_TOKENS, to_bytes
from recallflow.state.window import sketches

STEP = "embed"


def prepare(embedder: Embedder, batch: Sequence[Item]) -> list[Item]:
    """Adds an analysis to every event that brings text; the order stays. One call of the model for the whole batch;
    where our own code or the model's fails, for each event alone. Raises EmbedderError."""
    if not batch:
        return []
    with suppress(InvalidRecord):
        return once(STEP, batch[0].record.position, _prepared, embedder, batch)
    return [_prepared_alone(embedder, item) for item in batch]


def _prepared_alone(embedder: Embedder, item: Item) -> Item:
    try:
        (prepared,) = once(STEP, item.record.position, _prepared, embedder, [item])
    except InvalidRecord as error:
        return Refused(item.record, error, STEP)
    return prepared


def _prepared(embedder: Embedder, batch: Sequence[Item]) -> list[Item]:
    checked = [check_dimension(embedder, item) if isinstance(item, Write) else item for item in batch]
    texts = [_Text.of(item) if isinstance(item, Write) else None for item in checked]
    embedded = embed_texts(embedder, [text.shown for text in texts if text is not None and text.shown])
    sketched = iter(zip(embedded, sketches([found.vector for found in embedded]), strict=True))
    prepared: list[Item] = []
    for item, text in zip(checked, texts, strict=True):
        if isinstance(item, Write) and text is not None:
            vectors, sketch = next(sketched) if text.shown else (None, b"")
            item = Write(item.record, item.event, item.owner, _analyse(item, text, vectors, sketch))
        prepared.append(item)
    return prepared


class _Text(NamedTuple):
    """The text that an event brings. `shown`: what stands for the memory, as a chat shows it: `author: text`; empty
    where there is nothing to embed."""

    whole: str
    shown: str

    @classmethod
    def of(cls, write: Write) -> "_Text | None":
        event = write.event
        author: str | None = None  # of an update the stored memory's, known only to the state
        if isinstance(event, Message):
            author, text = event.name or event.role, event.text()
        elif isinstance(event, Memory):
            author, text = event.name, event.content
        elif isinstance(event, MemoryUpdate) and event.content is not None:
            text = event.content
        else:
            return None
        if not text or text.isspace():
            return cls(text, "")
        read_part = text[:READ_CHARACTERS]
        return cls(text, f"{author}: {read_part}" if author else read_part)


def _analyse(write: Write, text: _Text, embedded: TextVectors | None, sketch: bytes) -> Analysis:
    given = _given(write)
    vectors = _unit(given) if given is not None else None if embedded is None else embedded.vector[np.newaxis]
    reading = read(text.whole[:READ_CHARACTERS])
    return Analysis(
        stems=" ".join(reading.stems),
        flags=flags_of(reading),
        vectors=vectors,
        tokens=NO_TOKENS if embedded is None or not len(embedded.tokens) else to_bytes(embedded.tokens),
        named=read_names(text.whole),
        sketch=sketch if given is None else b"",  # that of a given vector is made where it is used
        cut=len(text.whole) > READ_CHARACTERS,
        sure=reading.sure,
    )


def _given(write: Write) -> list[float] | None:
    """The vector that comes with an event, where one has its place."""
    event = write.event
    return event.embedding if isinstance(event, Message | Memory | MemoryUpdate | MemoryEmbedding) else None


def _unit(vector: Sequence[float]) -> Matrix:
    """(1, dimension) float32, L2-normalised; the norm is taken in double precision, where it cannot overflow."""
    row = np.array([vector], np.float64)
    norm = np.linalg.norm(row)
    return (row / norm if norm > 0 else row).astype(np.float32)


def check_dimension(embedder: Embedder, write: Write) -> Write | Refused:
    """A vector that comes with the event must be the configured model's: vectors of different models never meet."""
    given = _given(write)
    if given is None or len(given) == embedder.dimension:
        return write
    problem = f"{len(given)} numbers; {embedder.name} has {embedder.dimension}. Leave it out to have it computed"
    return Refused(write.record, InvalidRecord("wrong_dimension", [FieldProblem("embedding", problem)]), STEP)
