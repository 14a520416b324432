"""The graph data kept in memory for writes equals the store."""

from collections.abc import Callable

import numpy as np

from recallflow.state import keys
from recallflow.state.hot_graph import KNOWN_VECTORS, HotGraph
from recallflow.state.partition import Partition
from recallflow.state.rows import Vectors

OWNER = b"o" * keys.OWNER_BYTES


def vectors(number: int, model: str = "m") -> Vectors:
    return Vectors(model, np.eye(1, 4, number % 4, dtype=np.float32))


def first_numbers(graph: HotGraph, *seqs: int, model: str = "m") -> dict[int, float]:
    found, wholes = graph.wholes(seqs, model, 4)
    return dict(zip(found, wholes[:, 0].tolist(), strict=True))


def test_kept_vectors_follow_changes(opened: Callable[..., Partition]) -> None:
    partition = opened()
    partition.stage({keys.vectors(OWNER, seq): vectors(seq).encode() for seq in range(3)})
    graph = HotGraph(partition, OWNER, was_empty=False)
    assert first_numbers(graph, 0, 1, 9) == {0: 1.0, 1: 0.0}
    partition.stage({keys.vectors(OWNER, 0): vectors(1).encode(), keys.vectors(OWNER, 1): None})
    graph.put_vectors(0, vectors(1))
    graph.put_vectors(1, None)
    assert first_numbers(graph, 0, 1, 2) == {0: 0.0, 2: 0.0}
    partition.stage({keys.vectors(OWNER, 0): vectors(0, "other").encode()})
    graph.put_vectors(0, vectors(0, "other"))
    assert first_numbers(graph, 0) == {}
    assert first_numbers(graph, 0, model="other") == {0: 1.0}


def test_vectors_beyond_the_newest_are_read_again(opened: Callable[..., Partition]) -> None:
    partition = opened()
    partition.stage({keys.vectors(OWNER, seq): vectors(seq).encode() for seq in (3, 4)})
    graph = HotGraph(partition, OWNER, was_empty=False)
    assert first_numbers(graph, 3, 4) == {3: 0.0, 4: 1.0}
    graph.put_vectors(3 + KNOWN_VECTORS, vectors(0))
    assert first_numbers(graph, 4, 3, 3 + KNOWN_VECTORS) == {4: 1.0, 3: 0.0, 3 + KNOWN_VECTORS: 1.0}


def test_kept_vectors_are_bounded(opened: Callable[..., Partition]) -> None:
    graph = HotGraph(opened(), OWNER, was_empty=True)
    assert first_numbers(graph, 0) == {}
    before = graph.size_bytes()
    for seq in range(3 * KNOWN_VECTORS):
        graph.put_vectors(seq, vectors(seq))
    assert before < graph.size_bytes() <= before + KNOWN_VECTORS * 1_000
