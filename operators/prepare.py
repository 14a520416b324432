"""Batched text analysis and embedding, before the state."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import numpy as np

from recallflow.embedder import Embedder, Matrix, TextVectors, embed_texts
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import MemoryAdd, MemoryEmbedding, MemoryEvent, MemoryUpdate, Message
from recallflow.language import read
from recallflow.limits import READ_CHARACTERS
from recallflow.llm import RemoteEmbedder
from recallflow.operators.events import Analysis, Item, Refused, Write
from recallflow.operators.graph.names import read_names
from recallflow.operators.guard import once
from recallflow.operators.passages import Passage, passages
from recallflow.operators.text import entry_stems, flags_of
from recallflow.state.arrays import Bytes, mean, unit
from recallflow.state.tokens import NO_TOKENS, to_bytes
from recallflow.state.window import sketches

STEP = "embed"


def prepare(embedder: Embedder, batch: Sequence[Item]) -> list[Item]:
    """Add an analysis to every event with text, in order. The model is called once for the batch, or once per event
    after an internal error. Remote models are not called: their vectors arrive later. Raise EmbedderError."""
    if not any(isinstance(item, Write) for item in batch):
        return [*batch]
    if len(batch) > 1:
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
    if isinstance(embedder, RemoteEmbedder):
        texts = [None if text is None else text._replace(shown=[]) for text in texts]
    shown = [text.shown for text in texts if text is not None]
    each = iter(embed_texts(embedder, [passage for one in shown for passage in one]))
    embedded = [_together([*islice(each, len(one))]) for one in shown if one]
    sketched = iter(zip(embedded, sketches([vectors.whole for vectors in embedded]), strict=True))
    prepared: list[Item] = []
    for item, text in zip(checked, texts, strict=True):
        if isinstance(item, Write) and text is not None:
            vectors, sketch = next(sketched) if text.shown else (None, b"")
            item = Write(item.record, item.event, item.owner, _analyse(item, text, vectors, sketch))
        prepared.append(item)
    return prepared


class _Vectors(NamedTuple):
    """The vectors of a text: (passages, dimension) float32, the vector of the whole, token vectors in bytes, and the
    number of tokens per passage."""

    matrix: Matrix
    whole: Matrix
    tokens: Bytes
    sizes: tuple[int, ...]


def _together(embedded: Sequence[TextVectors]) -> _Vectors:
    """Combine the vectors of one text's passages."""
    tokens = [to_bytes(found.tokens) for found in embedded if len(found.tokens)]
    if len(embedded) == 1:
        (only,) = embedded
        return _Vectors(only.vector[np.newaxis], only.vector, tokens[0] if tokens else NO_TOKENS, ())
    matrix = np.stack([found.vector for found in embedded])
    if not tokens:
        return _Vectors(matrix, mean(matrix), NO_TOKENS, ())
    return _Vectors(matrix, mean(matrix), np.concatenate(tokens), tuple(len(found.tokens) for found in embedded))


class _Text(NamedTuple):
    """The text of an event, as far as it is read. `shown` has the form `author: passage` for each passage; empty if
    nothing is to be embedded."""

    whole: str
    passages: list[Passage]
    shown: list[str]
    cut: bool

    @classmethod
    def of(cls, write: Write) -> "_Text | None":
        if (spoken := said(write.event)) is None:
            return None
        author, text = spoken
        cut = len(text) > READ_CHARACTERS
        text = text[:READ_CHARACTERS] if cut else text
        found = passages(text)
        if not text or text.isspace():
            return cls(text, found, [], cut)
        begins = f"{author}: " if author else ""
        return cls(text, found, [begins + text[passage.start : passage.end] for passage in found], cut)


def said(event: MemoryEvent) -> tuple[str | None, str] | None:
    """Return the author and text of an event; None without text. The author of an update is known only to the state."""
    if isinstance(event, Message):
        return event.name or event.role, event.text()
    if isinstance(event, MemoryAdd):
        return event.name, event.content
    if isinstance(event, MemoryUpdate) and event.content is not None:
        return None, event.content
    return None


def _analyse(write: Write, text: _Text, embedded: _Vectors | None, sketch: bytes) -> Analysis:
    given = _given(write)
    vectors = None if embedded is None else embedded.matrix
    tokens, sizes = (NO_TOKENS, ()) if embedded is None else (embedded.tokens, embedded.sizes)
    if given is not None:
        vectors, sizes = unit(given), ()
    reading = read(text.whole)
    return Analysis(
        stems=entry_stems(text.whole, text.passages, reading),
        flags=flags_of(text.whole, reading),
        vectors=vectors,
        tokens=tokens,
        named=read_names(text.whole, reading),
        sketch=sketch if given is None else b"",  # the sketch of a given vector is made on use
        cut=text.cut,
        sure=reading.sure,
        sizes=sizes,
    )


def _given(write: Write) -> list[float] | None:
    """Return the vector given with an event, if its type allows one."""
    event = write.event
    return event.embedding if isinstance(event, Message | MemoryAdd | MemoryUpdate | MemoryEmbedding) else None


def check_dimension(embedder: Embedder, write: Write) -> Write | Refused:
    """Refuse an event whose vector has another dimension than the configured model's. A vector that names another model
    is no error: it has no effect."""
    given = _given(write)
    if given is None or len(given) == embedder.dimension:
        return write
    if isinstance(write.event, MemoryEmbedding) and write.event.model != embedder.name:
        return write
    problem = f"{len(given)} numbers; {embedder.name} has {embedder.dimension}. Leave it out to have it computed"
    return Refused(write.record, InvalidRecord("wrong_dimension", [FieldProblem("embedding", problem)]), STEP)
