"""Text analysis and embedding, batched, before the state and away from it."""

from collections.abc import Iterator, Sequence

import numpy as np

from recallflow.embedder import Embedder, Matrix
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import Memory, MemoryEmbedding, MemoryUpdate, Message
from recallflow.operators.events import Analysis, Item, Prepared, Refused, Tagged, Write
from recallflow.operators.text import read, sentences

STEP = "embed"
SENTENCES_MAX = 64  # a chat message has a few; a pasted document is found by its beginning, its whole and its words


def prepare(embedder: Embedder, batch: Sequence[Tagged]) -> list[Item]:
    """Adds an analysis to every event that brings text; the order stays. One call of the model for the whole batch."""
    checked = [check_dimension(embedder, item) if isinstance(item, Write) else item for item in batch]
    texts = [_embeddable(embedder, item) if isinstance(item, Write) else [] for item in checked]
    flat = [text for group in texts for text in group]
    matrix = embedder.embed(flat) if flat else np.zeros((0, embedder.dimension), np.float32)
    return list(_with_analysis(checked, texts, matrix))


def _with_analysis(batch: Sequence[Tagged], texts: list[list[str]], matrix: Matrix) -> Iterator[Item]:
    start = 0
    for item, group in zip(batch, texts, strict=True):
        rows = matrix[start : start + len(group)]
        start += len(group)
        yield Prepared(item, _analyse(item, rows)) if isinstance(item, Write) else item


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


def _embeddable(embedder: Embedder, write: Write) -> list[str]:
    """The texts whose vectors a memory keeps: itself as a chat shows it, `author: text`, then its sentences."""
    found = _text(write)
    if found is None or not found[1].strip():
        return []
    author, text = found
    parts = sentences(text)[:SENTENCES_MAX] if embedder.splits_sentences else []
    return [f"{author}: {text}" if author else text, *parts]


def _analyse(write: Write, rows: Matrix) -> Analysis | None:
    found = _text(write)
    if found is None:
        return None
    _, text = found
    given = _given(write)
    vectors = _unit(given) if given is not None else rows
    reading = read(text)
    return Analysis(
        stems=" ".join(reading.stems),
        flags=reading.flags,
        vectors=vectors if len(vectors) else None,
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
