"""Text analysis and embedding, in batches and before the state step.

A passage of a long text has about 80 words at most and ends at the end of a sentence. It starts with the last sentence
of the previous passage, if that sentence is short. A short text is one passage. The number of passages is limited, so
the passages of a very long text are longer. In scripts without blanks, a character counts as half a word."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby, islice, pairwise
from typing import NamedTuple

import numpy as np
import regex

from recallflow.embedder import Embedder, TextVectors, embed_texts
from recallflow.errors import InvalidRecord
from recallflow.events import MemoryAdd, MemoryEmbedding, MemoryEvent, MemoryUpdate, Message
from recallflow.language.analysis import TextAnalysis, analyse, sentence_ends, stems
from recallflow.language.scripts import UNSPACED
from recallflow.limits import READ_CHARACTERS
from recallflow.llm import RemoteEmbedder
from recallflow.operators.events import Analysis, Item, Refused, Write
from recallflow.operators.graph.names import read_names
from recallflow.operators.guard import try_once
from recallflow.state import rows
from recallflow.state.arrays import Ints, unit
from recallflow.state.hot_graph import sketches
from recallflow.state.rows import PASSAGE_END, Vectors
from recallflow.state.tokens import NO_TOKENS, to_bytes

WORDS = 80  # of a passage
PASSAGES_MAX = 32  # passages per memory; limits the cost of embedding and storage
SHARED_WORDS = 20  # the longest overlap with the previous passage
_SENTENCE_WORDS = 40  # a longer sentence is cut into parts of `SHARED_WORDS`
_WORD_CHARACTERS = 64  # the longest word in characters; longer runs count as several
_HALVES = 2  # half words per word
_HALF_WORD_CHARACTERS = regex.compile(rf"[{UNSPACED}\u3001-\u303f\uff01-\uff65]")
_BLANKS = re.compile(r"\s")
STEP = "embed"


class Passage(NamedTuple):
    """Characters [start, end) of a text. Those before `own_start` overlap with the previous passage."""

    start: int
    own_start: int
    end: int


def passages(text: str) -> list[Passage]:
    """Return the passages of a text, in order. Together they contain all but blanks."""
    if len(text) < WORDS * _HALVES or (text.isascii() and len(text.split()) + len(text) // _WORD_CHARACTERS <= WORDS):
        return [Passage(0, 0, len(text))]
    words = _Words(text)
    total = words.before[-1]
    if total <= WORDS * _HALVES:
        return [Passage(0, 0, len(text))]
    count = min(PASSAGES_MAX, -(-total // (WORDS * _HALVES)))
    # The middle of a part decides its passage. So passages have similar lengths, and none is empty, because a part is
    # shorter than half of the shortest passage.
    before, numbered = 0, []
    for part in _parts(text, words):
        numbered.append((min((2 * before + part.size) * count // (2 * total), count - 1), part))
        before += part.size
    groups = [[part for _, part in group] for _, group in groupby(numbered, key=lambda one: one[0])]
    overlaps = [None, *(last if last.size <= SHARED_WORDS * _HALVES else None for *_, last in groups[:-1])]
    found = []
    for group, shared in zip(groups, overlaps, strict=True):
        own_start, end = group[0].start, group[-1].end
        start = own_start if shared is None else shared.start
        passage = text[start:end]
        start += len(passage) - len(passage.lstrip())
        found.append(Passage(start, own_start, start + len(passage.strip())))
    return found


def own_texts(text: str, text_passages: Sequence[Passage]) -> list[str]:
    """Return the text without overlaps, one part per passage."""
    starts = [0, *(passage.own_start for passage in text_passages[1:]), len(text)]
    return [text[start:end] for start, end in pairwise(starts)]


class _Part(NamedTuple):
    """A sentence, or a part of a long one, with trailing blanks; `size` in half words."""

    start: int
    end: int
    size: int


def _half_words(characters: str) -> Ints:
    """Return an array by code point: 2 for characters within words, 1 for half-word characters, 0 for blanks."""
    found = np.full(ord(max(characters)) + 1, _HALVES)
    found[[*map(ord, _HALF_WORD_CHARACTERS.findall(characters))]] = 1
    found[[*map(ord, _BLANKS.findall(characters))]] = 0
    return found


_ASCII_HALF_WORDS = _half_words("".join(map(chr, range(128))))


class _Words:
    """The words of a text: the `starts` of the words, and the half words `before` each; the last is the total."""

    def __init__(self, text: str) -> None:
        if text.isascii():
            sizes = _ASCII_HALF_WORDS[np.frombuffer(text.encode(), np.uint8)]
        else:
            codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            sizes = _half_words("".join({*text}))[codes]
        at, is_within = np.arange(len(sizes), dtype=np.int32), sizes == _HALVES
        before_run = np.maximum.accumulate(np.where(is_within, -1, at))
        starts = ((sizes == 1) | (is_within & ((at - before_run) % _WORD_CHARACTERS == 1))).nonzero()[0]
        self.starts: list[int] = starts.tolist()
        self.before: list[int] = [0, *sizes[starts].cumsum().tolist()]


def _parts(text: str, words: _Words) -> list[_Part]:
    """Return the sentences of a text. Long ones are split into parts of `SHARED_WORDS`."""
    starts, before = words.starts, words.before
    found: list[_Part] = []
    start = first = 0
    for end in sentence_ends(text):
        next_first = bisect_left(starts, end, first)
        if before[next_first] - before[first] > _SENTENCE_WORDS * _HALVES:
            while before[next_first] - before[first] > SHARED_WORDS * _HALVES:
                cut = bisect_right(before, before[first] + SHARED_WORDS * _HALVES, first) - 1
                found.append(_Part(start, starts[cut], before[cut] - before[first]))
                start, first = starts[cut], cut
        found.append(_Part(start, end, before[next_first] - before[first]))
        start, first = end, next_first
    return found


def entry_stems(text: str, text_passages: Sequence[Passage], reading: TextAnalysis) -> str:
    if len(text_passages) == 1:
        return " ".join(reading.stems)
    return PASSAGE_END.join(" ".join(stems(part, reading.language)) for part in own_texts(text, text_passages))


def flags_of(text: str, reading: TextAnalysis) -> int:
    if not text or text.isspace():
        return rows.BLANK
    asks = (rows.HAS_QUESTION if reading.has_question else 0) | (rows.ENDS_ASKING if reading.ends_in_question else 0)
    return asks | (rows.TELLS_TIME if reading.has_time else 0) | reading.language << rows.LANGUAGE_SHIFT


def prepare(embedder: Embedder, batch: Sequence[Item]) -> list[Item]:
    """Add an analysis to every event with text, in order. The model is called once for the batch, or once per event
    after an internal error. Remote models are not called: their vectors arrive later. Raise EmbedderError."""
    if not any(isinstance(item, Write) for item in batch):
        return [*batch]
    if len(batch) > 1:
        with suppress(InvalidRecord):
            return try_once(STEP, batch[0].record.position, _prepared, embedder, batch)
    prepared: list[Item] = []
    for item in batch:
        try:
            prepared += try_once(STEP, item.record.position, _prepared, embedder, [item])
        except InvalidRecord as error:
            prepared.append(Refused(item.record, error, STEP))
    return prepared


def _prepared(embedder: Embedder, batch: Sequence[Item]) -> list[Item]:
    checked = [check_dimension(embedder, item) if isinstance(item, Write) else item for item in batch]
    texts = [_Text.of(item) if isinstance(item, Write) else None for item in checked]
    if isinstance(embedder, RemoteEmbedder):
        texts = [None if text is None else text._replace(to_embed=[]) for text in texts]
    to_embed = [text.to_embed for text in texts if text is not None and text.to_embed]
    of_passages = iter(embed_texts(embedder, [passage for one in to_embed for passage in one]))
    embedded = [_combined(embedder.name, [*islice(of_passages, len(one))]) for one in to_embed]
    sketched = iter(zip(embedded, sketches([vectors.whole for vectors in embedded]), strict=True))
    prepared: list[Item] = []
    for item, text in zip(checked, texts, strict=True):
        if isinstance(item, Write) and text is not None:
            vectors, sketch = next(sketched) if text.to_embed else (None, b"")
            item = Write(item.record, item.event, item.owner, _analyse(item, text, vectors, sketch))
        prepared.append(item)
    return prepared


def _combined(model: str, embedded: Sequence[TextVectors]) -> Vectors:
    """Return the vectors of a text, from its passages' vectors."""
    tokens = [to_bytes(passage.tokens) for passage in embedded if len(passage.tokens)]
    sizes = tuple(len(passage.tokens) for passage in embedded) if tokens and len(embedded) > 1 else ()
    if len(embedded) == 1:  # most texts
        return Vectors(model, embedded[0].vector[np.newaxis], tokens[0] if tokens else NO_TOKENS, sizes)
    matrix = np.stack([passage.vector for passage in embedded])
    return Vectors(model, matrix, np.concatenate(tokens) if tokens else NO_TOKENS, sizes)


class _Text(NamedTuple):
    """The searchable beginning of an event's text. `to_embed`: `author: passage` per passage, or nothing to embed."""

    whole: str
    passages: list[Passage]
    to_embed: list[str]
    is_truncated: bool

    @classmethod
    def of(cls, write: Write) -> "_Text | None":
        if (authored := author_and_text(write.event)) is None:
            return None
        author, text = authored
        is_truncated, text = len(text) > READ_CHARACTERS, text[:READ_CHARACTERS]
        found = passages(text)
        prefix = f"{author}: " if author else ""
        to_embed = [] if not text or text.isspace() else [prefix + text[one.start : one.end] for one in found]
        return cls(text, found, to_embed, is_truncated)


def author_and_text(event: MemoryEvent) -> tuple[str | None, str] | None:
    """Return the author and text of an event; None without text. An update has no author: only the state knows it."""
    if isinstance(event, Message):
        return event.name or event.role, event.text()
    if isinstance(event, MemoryAdd):
        return event.name, event.content
    if isinstance(event, MemoryUpdate) and event.content is not None:
        return None, event.content
    return None


def _analyse(write: Write, text: _Text, embedded: Vectors | None, sketch: bytes) -> Analysis:
    own_vector = _vector_in(write)
    vectors = None if embedded is None else embedded.matrix
    tokens, sizes = (NO_TOKENS, ()) if embedded is None else (embedded.tokens, embedded.sizes)
    if own_vector is not None:
        vectors, sizes = unit(own_vector), ()
    reading = analyse(text.whole)
    return Analysis(
        stems=entry_stems(text.whole, text.passages, reading),
        flags=flags_of(text.whole, reading),
        vectors=vectors,
        tokens=tokens,
        names=read_names(text.whole, reading),
        sketch=sketch if own_vector is None else b"",  # the state step computes the sketch of an event's own vector
        is_truncated=text.is_truncated,
        is_language_certain=reading.is_certain,
        sizes=sizes,
    )


def _vector_in(write: Write) -> list[float] | None:
    """Return the vector in an event; None if it has none, or its type allows none."""
    event = write.event
    return event.embedding if isinstance(event, Message | MemoryAdd | MemoryUpdate | MemoryEmbedding) else None


def check_dimension(embedder: Embedder, write: Write) -> Write | Refused:
    """Refuse an event whose vector has another dimension than the model's. A vector of another model has no effect."""
    vector = _vector_in(write)
    if vector is None or len(vector) == embedder.dimension:
        return write
    if isinstance(write.event, MemoryEmbedding) and write.event.model != embedder.name:
        return write
    problem = f"{len(vector)} numbers; {embedder.name} has {embedder.dimension}. Omit the vector to have it computed"
    return Refused(write.record, InvalidRecord.of("wrong_dimension", problem, "embedding"), STEP)
