"""The semantic signal of a question: its vector, its columns, and the fallbacks if the model fails or time is short."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from recallflow.embedder import NO_FLOATS, Embedder, Matrix, TextVectors
from recallflow.operators import redaction
from recallflow.operators.recall.columns import Columns, compute
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.shared import QuestionVector, Shared
from recallflow.operators.recall.weights import LEXICAL_WEIGHTS, WEIGHTS, sets_for, weights_of
from recallflow.operators.recall.words import by_token
from recallflow.operators.redaction import RowsReader
from recallflow.responses import Warn
from recallflow.state.arrays import Column, Places
from recallflow.state.index import OwnerIndex

FALLBACK_CANDIDATES = 200
NO_COLUMNS = Columns({}, {})
CACHES = ("question_vector", "candidates")


class Signal(NamedTuple):
    """The columns of a question, and how they were computed."""

    columns: Columns = NO_COLUMNS  # empty in modes that do not rank by meaning
    vector: Matrix | None = None  # the question's vector, if the model returned one
    embedded: bool = False  # whether any vectors contributed
    hits: tuple[str, ...] = ()  # the caches that had a hit
    took_ms: float = 0.0  # the model's time
    warnings: tuple[Warn, ...] = ()


def read(
    shared: Shared,
    index: OwnerIndex,
    question: Question,
    permitted: Places,
    rows: RowsReader,
    received: QuestionVector | None = None,
) -> Signal:
    """Return the signal from the question's vector and words. If the model fails, the signal uses words, and the
    fallback's vectors of the question and the best candidates. `received` is the question's vector from an embedding
    service."""
    questions, conversation = shared.questions, index.conversation
    asked = questions.embed(question.own_words) if received is None else received
    hits = ("question_vector",) if asked.cached else ()
    if not asked.cached:
        shared.costs.add("dense", asked.took_ms)
    if asked.vector is None:
        columns, fallback = by_words(shared, index, question, permitted), questions.fallback
        if fallback is not None:
            dense = _dense_by(fallback, columns, index, question, permitted, rows)
            columns = replace(
                columns,
                values={**columns.values, "dense": dense},
                weights=weights_of(index, WEIGHTS["spelling"]),
                first=None,
            )
        problems = () if asked.problem is None else (asked.problem,)
        return Signal(columns, embedded=fallback is not None, took_ms=asked.took_ms, warnings=problems)
    if (known := shared.candidates.get(conversation, question.text)) is not None:
        return Signal(known, asked.vector, embedded=True, hits=(*hits, "candidates"), took_ms=asked.took_ms)
    query = TextVectors(asked.vector, asked.tokens)
    sets = sets_for(questions.embedder.kind, by_token=by_token(index, query))
    weights = weights_of(index, sets, is_spaced=question.table.blanks)
    columns = compute(index, question, query, weights, permitted)
    if columns.complete:
        shared.candidates.put(conversation, question.text, columns)
    return Signal(columns, asked.vector, embedded=True, hits=hits, took_ms=asked.took_ms)


def by_words(shared: Shared, index: OwnerIndex, question: Question, permitted: Places) -> Columns:
    """Return the columns without the question's vector."""
    # All cosines with a zero vector are equal, so that every column of vectors is 0.
    nowhere = TextVectors(np.zeros(shared.questions.embedder.dimension, np.float32), NO_FLOATS)
    return compute(index, question, nowhere, weights_of(index, LEXICAL_WEIGHTS), permitted)


def _dense_by(
    fallback: Embedder, columns: Columns, index: OwnerIndex, question: Question, permitted: Places, rows: RowsReader
) -> Column:
    """Return (n,) z-scores of the fallback's cosines over the best permitted memories by words, 0 elsewhere."""
    score = columns.score()
    best = permitted[np.argsort(-score[permitted], kind="stable")[:FALLBACK_CANDIDATES]]
    found = zip(best, rows(index.conversation.slots[best].tolist()), strict=True)
    readable = [(place, row) for place, row in found if redaction.is_readable(row)]
    dense = np.zeros(len(score))
    if readable:
        texts = [f"{row.author}: {row.content}" if row.author else row.content for _, row in readable]
        matrix = fallback.embed([question.own_words, *texts]).astype(np.float64)
        cosines = matrix[1:] @ matrix[0]
        dense[[place for place, _ in readable]] = (cosines - cosines.mean()) / (cosines.std() + 1e-6)
    return dense
