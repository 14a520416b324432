"""Steps 3 and 4: the question's vector and the semantic signal, and what stands in for them where the model fails or
there is no time for it."""

from typing import NamedTuple

import numpy as np

from recallflow.embedder import NO_FLOATS, Embedder, Matrix, TextVectors
from recallflow.operators import redaction
from recallflow.operators.recall import columns
from recallflow.operators.recall.bm25 import Column
from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.question_vectors import QuestionVector
from recallflow.operators.recall.scene import Places
from recallflow.operators.recall.shared import Shared
from recallflow.operators.recall.weights import LEXICAL_WEIGHTS, SPELLING_WEIGHTS, WEIGHTS
from recallflow.operators.redaction import RowsReader
from recallflow.responses import Warn
from recallflow.state.index import OwnerIndex

FALLBACK_CANDIDATES = 200
CACHES = ("question_vector", "candidates")


class Signal(NamedTuple):
    """The columns, and how they came about. `vector`: the question's, where the model gave one; `embedded`: whether
    vectors of any kind had a part; `hits`: the caches that had them; `took_ms`: the model's time."""

    columns: Columns
    vector: Matrix | None = None
    embedded: bool = False
    hits: tuple[str, ...] = ()
    took_ms: float = 0.0
    warnings: tuple[Warn, ...] = ()


def read(shared: Shared, index: OwnerIndex, question: Question, permitted: Places, rows: RowsReader) -> Signal:
    """The signal by the question's vector and words. Where the model fails, by its words and, for the memories that fit
    best, by vectors that the fallback makes of question and texts."""
    questions = shared.questions
    asked = questions.of(question.own_words)
    if not asked.cached:
        shared.costs.took("dense", asked.took_ms)
    if asked.vector is not None:
        return _meant(shared, index, question, permitted, asked, asked.vector)
    signal = worded(shared, index, question, permitted)._replace(took_ms=asked.took_ms)
    if asked.problem is not None:
        signal = signal._replace(warnings=(asked.problem,))
    if questions.fallback is None:
        return signal
    dense = _spelt(questions.fallback, signal.columns, index, question, permitted, rows)
    return signal._replace(columns=Columns(signal.columns.values | {"dense": dense}, SPELLING_WEIGHTS), embedded=True)


def _meant(
    shared: Shared, index: OwnerIndex, question: Question, permitted: Places, asked: QuestionVector, vector: Matrix
) -> Signal:
    hits = ("question_vector",) if asked.cached else ()
    if (known := shared.candidates.get(index.conversation, question.text)) is not None:
        return Signal(known, vector, embedded=True, hits=(*hits, "candidates"), took_ms=asked.took_ms)
    weights = WEIGHTS[shared.questions.embedder.kind]
    found = columns.compute(index, question, TextVectors(vector, asked.tokens), weights, permitted)
    if found.complete:
        shared.candidates.put(index.conversation, question.text, found)
    return Signal(found, vector, embedded=True, hits=hits, took_ms=asked.took_ms)


def worded(shared: Shared, index: OwnerIndex, question: Question, permitted: Places) -> Signal:
    """The signal by the question's words alone."""
    # No memory is nearer to a vector of zeros than another: what of the columns rests on vectors is 0 everywhere.
    nowhere = TextVectors(np.zeros(shared.questions.embedder.dimension, np.float32), NO_FLOATS)
    return Signal(columns.compute(index, question, nowhere, LEXICAL_WEIGHTS, permitted))


def _spelt(
    fallback: Embedder, by_words: Columns, index: OwnerIndex, question: Question, permitted: Places, rows: RowsReader
) -> Column:
    """(n,) z-scores of the fallback's cosines over the permitted memories that fit best by words; the others are 0."""
    score = by_words.score()
    best = permitted[np.argsort(-score[permitted], kind="stable")[:FALLBACK_CANDIDATES]]
    found = rows([int(slot) for slot in index.conversation.slots[best]])
    readable = [(place, row) for place, row in zip(best, found, strict=True) if redaction.is_readable(row)]
    dense = np.zeros(len(score))
    if readable:
        texts = [f"{row.author}: {row.content}" if row.author else row.content for _, row in readable]
        matrix = fallback.embed([question.own_words, *texts]).astype(np.float64)
        cosines = matrix[1:] @ matrix[0]
        dense[[place for place, _ in readable]] = (cosines - cosines.mean()) / (cosines.std() + 1e-6)
    return dense
