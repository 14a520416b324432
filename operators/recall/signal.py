"""What a question means to each memory: its vector, the semantic signal, and what stands in for them where the model
fails or there is no time for it."""

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
    """The columns, none where the mode does not rank by meaning, and how they came about. `vector`: the question's,
    where the model gave one; `embedded`: whether vectors of any kind had a part; `hits`: the caches that had them;
    `took_ms`: the model's time."""

    columns: Columns = NO_COLUMNS
    vector: Matrix | None = None
    embedded: bool = False
    hits: tuple[str, ...] = ()
    took_ms: float = 0.0
    warnings: tuple[Warn, ...] = ()


def read(
    shared: Shared,
    index: OwnerIndex,
    question: Question,
    permitted: Places,
    rows: RowsReader,
    received: QuestionVector | None = None,
) -> Signal:
    """The signal by the question's vector and words. Where the model fails, by its words and, for the memories that fit
    best, by vectors that the fallback makes of question and texts. `received`: the question's vector, where a service
    was asked for it."""
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
    weights = weights_of(index, sets_for(questions.embedder.kind, by_token=by_token(index, query)))
    columns = compute(index, question, query, weights, permitted)
    if columns.complete:
        shared.candidates.put(conversation, question.text, columns)
    return Signal(columns, asked.vector, embedded=True, hits=hits, took_ms=asked.took_ms)


def by_words(shared: Shared, index: OwnerIndex, question: Question, permitted: Places) -> Columns:
    """The columns by the question's words alone."""
    # No memory is nearer to a vector of zeros than another: what of the columns rests on vectors is 0 everywhere.
    nowhere = TextVectors(np.zeros(shared.questions.embedder.dimension, np.float32), NO_FLOATS)
    return compute(index, question, nowhere, weights_of(index, LEXICAL_WEIGHTS), permitted)


def _dense_by(
    fallback: Embedder, columns: Columns, index: OwnerIndex, question: Question, permitted: Places, rows: RowsReader
) -> Column:
    """(n,) z-scores of the fallback's cosines over the permitted memories that fit best by words; the others are 0."""
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
