"""Text analysis and embedding, batched, before the state and away from it."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from recallflow.embedder import Embedder, Matrix, TextVectors, embed_texts
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import Memory, MemoryEmbedding, MemoryUpdate, Message
from recallflow.limits import READ_CHARACTERS
from recallflow.operators.events import Analysis, Item, Prepared, Refused, Tagged, Write
from recallflow.operators.graph.extract import read_names
from recallflow.operators.guard import once
from recallflow.operators.text import read
from recallflow.state.tokens import NO_TOKENS, to_bytes
from recallflow.state.window import sketches

STEP = "embed"


def prepare(embedder: Embedder, batch: Sequence[Tagged]) -> list[Item]:
    """Adds an analysis to every event that brings text; the order stays. One call of the model for the whole batch;
    where our own code or the model's fails, for each event alone. Raises EmbedderError."""
    if not batch:
        return []
    with suppress(InvalidRecord):
        return once(STEP, batch[0].record.position, partial(_prepared, embedder, batch))
    return [_alone(embedder, item) for item in batch]


def _alone(embedder: Embedder, item: Tagged) -> Item:
    try:
        (prepared,) = once(STEP, item.record.position, partial(_prepared, embedder, [item]))
    except InvalidRecord as error:
        return Refused(item.record, error, STEP)
    return prepared


def _prepared(embedder: Embedder, batch: Sequence[Tagged]) -> list[Item]:
    checked = [check_dimension(embedder, item) if isinstance(item, Write) else item for item in batch]
    texts = [_embeddable(item) if isinstance(item, Write) else None for item in checked]
    embedded = embed_texts(embedder, [text for text in texts if text is not None])
    sketched = iter(zip(embedded, sketches([found.vector for found in embedded]), strict=True))
    return [
        Prepared(item, _analyse(item, *((None, b"") if text is None else next(sketched))))
        if isinstance(item, Write)
        else item
        for item, text in zip(checked, texts, strict=True)
    ]


def _text(write: Write) -> tuple[str | None, str] | None:
    """Author and text of an event that brings a memory's text."""
    event = write.event
    if isinstance(event, Message):
        return event.name or event.role, event.text()
    if isinstance(event, Memory):
        return event.name, event.content
    if isinstance(event, MemoryUpdate) and event.content is not None:
        return None, event.content  # the author is the stored memory's: known only to the state
    return None


def _embeddable(write: Write) -> str | None:
    """The text that stands for a memory, as a chat shows it: `author: text`."""
    found = _text(write)
    if found is None or not found[1].strip():
        return None
    author, text = found[0], found[1][:READ_CHARACTERS]
    return f"{author}: {text}" if author else text


def _analyse(write: Write, embedded: TextVectors | None, sketch: bytes) -> Analysis | None:
    found = _text(write)
    if found is None:
        return None
    _, text = found
    given = _given(write)
    vectors = _unit(given) if given is not None else None if embedded is None else embedded.vector[np.newaxis]
    reading = read(text[:READ_CHARACTERS])
    return Analysis(
        stems=" ".join(reading.stems),
        flags=reading.flags,
        vectors=vectors,
        tokens=NO_TOKENS if embedded is None or not len(embedded.tokens) else to_bytes(embedded.tokens),
        named=read_names(text),
        sketch=sketch if given is None else b"",  # that of a given vector is made where it is used
        cut=len(text) > READ_CHARACTERS,
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
