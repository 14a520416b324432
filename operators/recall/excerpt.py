"""Excerpts: selects the passage of a long memory that a response shows. The passage that covers most of the question
wins, weighted by idf. Ties go to the highest cosine with the question's vector, then to the first passage."""

from collections.abc import Sequence

import numpy as np

from recallflow.embedder import Matrix
from recallflow.limits import READ_CHARACTERS
from recallflow.operators import redaction
from recallflow.operators.prepare import passages
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.words import idf
from recallflow.responses import Span
from recallflow.state.arrays import Ints, Places, ranges
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow


def excerpts(
    index: OwnerIndex, question: Question, vector: Matrix | None, places: Places, rows: Sequence[MemoryRow | None]
) -> list[Span | None]:
    """Return the span of the best passage of each row's text; None for a text of one passage."""
    found: list[Span | None] = [None] * len(rows)
    if not index.words.divided:
        return found
    slots, parts = index.conversation.slots[places], index.words.parts()
    counts = parts.counts(slots)
    coverage_of = _covered(index, question, ranges(parts.firsts[slots], counts))
    ends = counts.cumsum()
    for at in np.flatnonzero(counts > 1).tolist():
        row, coverage = rows[at], coverage_of[ends[at] - counts[at] : ends[at]]
        if redaction.is_readable(row):
            close = np.zeros(0) if vector is None else index.vectors.cosines_of(vector, int(slots[at]))
            close = close if len(close) == len(coverage) else np.zeros(len(coverage))
            best = np.lexsort((np.arange(len(coverage)), -close, -coverage))[0]
            passage = passages(row.content[:READ_CHARACTERS])[best]
            found[at] = Span(start=passage.start, end=passage.end)
    return found


def _covered(index: OwnerIndex, question: Question, parts: Ints) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the sum of the idf of the question's words in each part."""
    covered = np.zeros(len(parts))
    for stem in dict.fromkeys(question.bare_stems):
        holding = index.words.part_occurrences(stem)
        if len(holding):
            at = np.minimum(holding.searchsorted(parts), len(holding) - 1)
            weight = idf(index.standing[stem].holders, index.conversation.size)
            covered += weight * (holding[at] == parts)
    return covered
