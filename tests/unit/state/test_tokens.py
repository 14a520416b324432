"""Token vectors in bytes, and the closest token of each memory, against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.state import tokens as module
from recallflow.state.tokens import NO_TOKENS, ONE, TokenIndex, Tokens, to_bytes

DIMENSION = 3
ROW = st.tuples(*[st.integers(-127, 127)] * DIMENSION)
MEMORIES = st.lists(st.lists(ROW, max_size=4), max_size=8)
QUESTION = st.lists(st.tuples(*[st.integers(-3, 3)] * DIMENSION), max_size=3)


def filled(
    memories: list[list[tuple[int, ...]]], cut: int = 0, sizes: dict[int, tuple[int, ...]] | None = None
) -> TokenIndex:
    """An index to which the memories were added in two calls. `sizes`: of memories that have several passages."""
    index = TokenIndex()
    rows = [
        Tokens(np.array(memory, np.int8) if memory else NO_TOKENS, (sizes or {}).get(at, ()))
        for at, memory in enumerate(memories)
    ]
    index.add(rows[:cut])
    index.add(rows[cut:])
    return index


@given(memories=MEMORIES, question=QUESTION, cut=st.integers(0, 8), data=st.data())
def test_question_token_takes_the_closest_token_of_a_memory(
    memories: list[list[tuple[int, ...]]], question: list[tuple[int, ...]], cut: int, data: st.DataObject
) -> None:
    index = filled(memories, cut)
    slots = data.draw(st.lists(st.integers(0, len(memories) - 1), max_size=6)) if memories else []
    asked = np.array(question, np.float32).reshape(len(question), DIMENSION)
    expected = [
        [max([0.0, *(float(np.dot(token, held)) for held in memories[slot])]) / ONE for slot in slots]
        for token in question
    ]
    closest = index.closest(asked, np.array(slots, np.int64), np.ones(len(asked)))
    np.testing.assert_allclose(closest, np.reshape(expected, (len(question), len(slots))), rtol=1e-5, atol=1e-6)


def test_long_memories_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    memories: list[list[tuple[int, ...]]] = [[(n % 100, 1, 2)] * (n % 5) for n in range(40)]
    index, asked, slots = filled(memories), np.eye(DIMENSION, dtype=np.float32), np.arange(40)
    whole = index.closest(asked, slots, np.ones(3))
    monkeypatch.setattr(module, "_ROWS", 7)
    np.testing.assert_array_equal(index.closest(asked, slots, np.ones(3)), whole)


PASSAGES = st.lists(st.lists(st.lists(ROW, max_size=3), min_size=1, max_size=4), min_size=1, max_size=6)


@given(memories=PASSAGES, question=QUESTION, cut=st.integers(0, 6), data=st.data())
def test_passage_with_the_highest_weighted_sum_counts(
    memories: list[list[list[tuple[int, ...]]]], question: list[tuple[int, ...]], cut: int, data: st.DataObject
) -> None:
    flat = [[row for passage in memory for row in passage] for memory in memories]
    sizes = {at: tuple(map(len, memory)) for at, memory in enumerate(memories) if len(memory) > 1}
    index = filled(flat, cut, sizes)
    slots = data.draw(st.lists(st.integers(0, len(memories) - 1), max_size=6))
    asked = np.array(question, np.float32).reshape(len(question), DIMENSION)
    weights = np.arange(1.0, len(question) + 1)

    def by_hand(passage: list[tuple[int, ...]]) -> list[float]:
        return [max([0.0, *(float(np.dot(token, held)) for held in passage)]) / ONE for token in question]

    best = [max(float(weights @ by_hand(passage)) for passage in memories[slot]) for slot in slots]
    found = index.closest(asked, np.array(slots, np.int64), weights)
    np.testing.assert_allclose(weights @ found, best, rtol=1e-4, atol=1e-5)
    for slot, column in zip(slots, found.T, strict=True):
        assert any(np.allclose(column, by_hand(passage), rtol=1e-4, atol=1e-5) for passage in memories[slot])


def test_bytes_keep_directions_and_not_lengths() -> None:
    rows = np.array([[3, 4, 0], [0.3, 0.4, 0], [0, 0, 0], [0, -2, 0]], np.float32)
    assert to_bytes(rows).tolist() == [[76, 102, 0], [76, 102, 0], [0, 0, 0], [0, -127, 0]]


@given(st.lists(st.tuples(*[st.floats(-9, 9, width=32)] * DIMENSION), min_size=1, max_size=5))
def test_bytes_are_within_half_a_step_of_the_unit_vector(rows: list[tuple[float, ...]]) -> None:
    matrix = np.array(rows, np.float32)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    unit = np.divide(matrix, norms, out=np.zeros_like(matrix), where=norms > 0)
    assert np.abs(to_bytes(matrix) / ONE - unit).max() <= 0.5 / ONE + 1e-6


def test_index_takes_its_dimension_from_the_first_tokens() -> None:
    index = filled([[], []])
    assert index.dimension == 0
    assert index.closest(np.zeros((0, 0), np.float32), np.array([0, 1]), np.zeros(0)).shape == (0, 2)
    index.add([Tokens(np.array([[1, 2, 3]], np.int8))])
    assert index.dimension == 3
