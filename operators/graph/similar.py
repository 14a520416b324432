"""`similar_to`: which memories a memory is linked to because their vectors are close.

Both ends keep at most so many neighbours: a memory that is closer than the weakest of a full one takes its place, in
both directions. Equally close ones stay who they are.
"""

from typing import NamedTuple

import numpy as np

from recallflow.embedder import Matrix
from recallflow.operators.graph.changes import Changes
from recallflow.state.graph_codec import Neighbour
from recallflow.state.rows import MemoryRow, Vectors
from recallflow.state.window import most_different

DIGITS = 4
_ROUNDED_UP = 0.5 * 10**-DIGITS
_ROUGH = 1e-3  # more than a product of unit vectors in single precision can be off, of up to 10,000 numbers


class Similarity(NamedTuple):
    """`threshold`: the least cosine. `max_k`: how many of the closest memories are looked at. `max_per_memory`: how
    many a memory is linked to; 0 links none."""

    threshold: float = 0.85
    max_k: int = 20
    max_per_memory: int = 5


def link_similar(
    changes: Changes, row: MemoryRow, vectors: Vectors, sketch: bytes, newest: int, limits: Similarity
) -> None:
    """Links a memory, which has no neighbours yet, to the closest of its owner's newest ones."""
    own: list[Neighbour] = []
    most = most_different(limits.threshold - _ROUNDED_UP)  # the least that rounds up to it
    near = changes.hot_graph.window(newest).near(sketch, most, newest)
    others = [seq for seq in near if seq != row.seq][: limits.max_k]
    if not others:
        return
    for weight, seq in _closest(changes, vectors, others, limits.threshold):
        if len(own) == limits.max_per_memory:
            break
        memory_id = _accepted(changes, seq, Neighbour(row.seq, row.id, weight, row.ingested_ms), limits.max_per_memory)
        if memory_id is not None:
            own.append(Neighbour(seq, memory_id, weight, row.ingested_ms))
    if own:
        changes.put_neighbours(row.seq, own)


def unlink_similar(changes: Changes, seq: int) -> None:
    """Takes a memory away from all its neighbours, and them from it."""
    neighbours = changes.neighbours(seq)
    for neighbour in neighbours:
        _part(changes, neighbour.seq, seq)
        if changes.forgetting is None:
            changes.past.keep_neighbour(seq, neighbour)
    if neighbours:
        changes.put_neighbours(seq, [])


def _closest(changes: Changes, vectors: Vectors, near: list[int], at_least: float) -> list[tuple[float, int]]:
    """Cosine, to 4 digits, and `seq` of those that are close enough, the closest first, then the newest."""
    vector = vectors.whole
    seqs, wholes = changes.hot_graph.wholes(near, vectors.model, len(vector))
    # The exact cosine costs much more than a product in single precision, and few are close enough.
    (close,) = (wholes @ vector >= at_least - _ROUGH).nonzero()
    if not len(close):
        return []
    weights = zip(cosines(vector, wholes[close]), close.tolist(), strict=True)
    rounded = [(round(weight, DIGITS), seqs[at]) for weight, at in weights]
    found = [one for one in rounded if one[0] >= at_least]
    return sorted(found, key=lambda one: (-one[0], -one[1]))


def cosines(vector: Matrix, others: Matrix) -> list[float]:
    """Return the cosine of a unit vector with each of others, (others, dimension), in double precision.

    A product of two numbers is exact there. Each row is summed up alone, so that a cosine is the same in whatever
    company, and from both ends: a product of matrices would round by where a row lies.
    """
    found: list[float] = (others.astype(np.float64) * vector).sum(axis=1).tolist()
    return found


def _accepted(changes: Changes, seq: int, newcomer: Neighbour, at_most: int) -> str | None:
    """The memory's id, if the newcomer became its neighbour."""
    neighbours = changes.neighbours(seq)
    full = len(neighbours) >= at_most
    if full and newcomer.weight <= neighbours[-1].weight:
        return None
    links = changes.links(seq)
    if links is None:  # its graph is still to be written; it will find the newcomer then
        return None
    if full:
        weakest = neighbours.pop()
        _part(changes, weakest.seq, seq)
        changes.past.keep_neighbour(seq, weakest)
    neighbours.append(newcomer)
    changes.put_neighbours(seq, sorted(neighbours, key=lambda one: (-one.weight, -one.seq)))
    return links.id


def _part(changes: Changes, seq: int, other: int) -> None:
    """Takes one memory away from the neighbours of another."""
    left = []
    for neighbour in changes.neighbours(seq):
        if neighbour.seq != other:
            left.append(neighbour)
        elif changes.forgetting is None:
            changes.past.keep_neighbour(seq, neighbour)
    changes.put_neighbours(seq, left)
