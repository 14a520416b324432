"""Mode `episode`: whole episodes instead of single memories, after Zep's reranker by mentions.

Episodes come by similarity: log Σ exp(signal) over their members, the log-odds that any of them is evidence, plus a
quarter of the z-score of the cosine between question and centroid. Centroids alone find too little: on LoCoMo (hash
embedder) the best three episodes hold some evidence for .49 of the questions, by their members for .90.
"""

import numpy as np

from recallflow.operators.recall.scene import Places, Ranking, Scene, Values

EPISODES = 3  # at least, and as many as it takes for k memories
CENTROID_WEIGHT = 0.25


def episode(scene: Scene) -> Ranking:
    """All memories of the best episodes, by how often they mention what the question is about; among equals in the
    order they were said."""
    places = _members(scene)
    mentions = _mentions(scene, places)
    order = np.lexsort((places, -mentions))[: scene.tuning.k]
    most = float(mentions.max(initial=0.0)) or 1.0
    return Ranking(places[order], mentions[order] / most, {"mentions": mentions[order]}, {"mentions": 1 / most})


def _members(scene: Scene) -> Places:
    """The allowed members of the best episodes, in conversation order."""
    segment = scene.index.conversation.segment[scene.allowed]
    present, of, sizes = np.unique(segment, return_inverse=True, return_counts=True)
    odds = np.full(len(present), -np.inf)
    np.logaddexp.at(odds, of, scene.semantic[scene.allowed])
    if scene.vector is not None:
        cosines = scene.index.clusters.centroids(present).astype(np.float64) @ scene.vector
        odds += CENTROID_WEIGHT * (cosines - cosines.mean()) / (cosines.std() + 1e-6)
    order = np.argsort(-odds, kind="stable")
    enough = np.searchsorted(np.cumsum(sizes[order]), scene.tuning.k) + 1
    return scene.allowed[np.isin(of, order[: max(EPISODES, int(enough))])]


def _mentions(scene: Scene, places: Places) -> Values:
    """Σ rarity · times mentioned, over the names and content words of the question; rarity is ln(1 + memories /
    memories that mention it). In a chat between two, each one's name stands at half of all messages: it tells next to
    nothing, and what the question is about tells a lot."""
    conversation = scene.index.conversation
    stems = [*dict.fromkeys(scene.question.stems)]
    known, counts = [], np.zeros((len(stems), len(places)))
    for row, stem in enumerate(stems):  # one at a time: together they would be as many numbers as memories times words
        (everywhere,) = scene.index.words.counts([stem])
        mentioned = everywhere[conversation.slots]
        known.append(np.count_nonzero(mentioned))
        counts[row] = mentioned[places]
    rarity = np.log1p(conversation.size / np.maximum(known, 1))
    mentions: Values = rarity @ counts
    return mentions
