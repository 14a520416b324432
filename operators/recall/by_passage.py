"""BM25 of each memory's best passage, by the formula of `bm25.py`; a word's rarity is among memories."""

from collections.abc import Sequence

import numpy as np

from recallflow.operators.recall.bm25 import K1, B, idf
from recallflow.operators.recall.words import holders
from recallflow.state.arrays import Column, Places
from recallflow.state.index import OwnerIndex


def best_passages(index: OwnerIndex, stems: Sequence[str], b: float = B) -> tuple[Column, Places]:
    """(n,) in conversation order: the highest BM25 of a memory's passages, and which passage that is, from 0. Each word
    counts once."""
    conversation, parts = index.conversation, index.words.parts()
    if not conversation.size:
        return np.zeros(0), np.zeros(0, np.int64)
    live = parts.lengths[conversation.places[parts.slots] >= 0]
    scores = np.zeros(len(parts.starts))
    for stem in dict.fromkeys(stems):
        held, counts = np.unique(index.words.part_occurrences(stem), return_counts=True)
        norms = K1 * (1 - b + b * parts.lengths[held] / max(float(live.mean()), 1e-9))
        scores[held] += idf(holders(index, stem), conversation.size) * counts / (counts + norms)
    best = np.maximum.reduceat(scores, parts.firsts)
    (at,) = (scores == best[parts.slots]).nonzero()
    first = at[np.unique(parts.slots[at], return_index=True)[1]]
    return best[conversation.slots], (first - parts.firsts)[conversation.slots]
