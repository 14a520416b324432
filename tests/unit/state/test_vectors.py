"""The vector index, against a list of rows in plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.state.vectors import VectorIndex

Row = tuple[int, ...]
DIMENSION = 3

ROWS = st.tuples(*[st.integers(-3, 3)] * DIMENSION)
ROUNDED = 0.5 / 127 + 1e-5  # how far a byte is from the number it stands for, as a share of its row's largest
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.lists(ROWS, max_size=3), min_size=1, max_size=4)),
        st.tuples(st.just("remove"), st.integers(0, 30)),
    ),
    max_size=12,
)


class Model:
    """Rows by slot, in the order in which they were added."""

    def __init__(self) -> None:
        self.index = VectorIndex(DIMENSION)
        self.rows: list[tuple[int, Row]] = []
        self.slots = 0

    def add(self, groups: list[list[Row]]) -> None:
        added = [(self.slots + at, row) for at, group in enumerate(groups) for row in group]
        self.slots += len(groups)
        self.rows += added
        if added:
            self.index.add(np.array([s for s, _ in added]), np.array([r for _, r in added], np.float32))

    def remove(self, slot: int) -> None:
        self.rows = [(s, row) for s, row in self.rows if s != slot]
        self.index.remove(slot)


def changed(changes: list[tuple[str, object]]) -> Model:
    model = Model()
    for action, what in changes:
        getattr(model, action)(what)
        model.index.cosines(np.zeros(DIMENSION, np.float32))  # what is cached must not outlive the next change
    return model


@given(changes=CHANGES, query=ROWS)
def test_cosine_of_a_slot_is_that_of_its_best_row(changes: list[tuple[str, object]], query: Row) -> None:
    model = changed(changes)
    cosines, slots = model.index.cosines(np.array(query, np.float32))
    assert slots.tolist() == list(dict.fromkeys(slot for slot, _ in model.rows))
    for found, slot in zip(cosines, slots, strict=True):
        rows = [row for of, row in model.rows if of == slot]
        exact = [float(np.dot(row, query)) for row in rows]
        rounded = ROUNDED * max(abs(number) for row in rows for number in row) * sum(map(abs, query))
        assert abs(found - max(exact)) <= rounded
        each = model.index.cosines_of(np.array(query, np.float32), int(slot))
        assert np.abs(each - exact).max() <= rounded
        assert each.max() == pytest.approx(found, abs=1e-5)
    assert len(model.index) == len(model.rows)


@given(changes=CHANGES, data=st.data())
def test_vector_of_a_slot_is_its_row_or_their_mean(changes: list[tuple[str, object]], data: st.DataObject) -> None:
    model = changed(changes)
    # Slots in any order and repeated; removed ones, rowless ones and ones never given among them.
    asked = data.draw(st.lists(st.integers(0, model.slots + 2), max_size=10))
    for slot, found in zip(asked, model.index.of(np.array(asked, np.int64)), strict=True):
        rows = np.array([row for of, row in model.rows if of == slot] or [(0,) * DIMENSION], np.float64)
        rounded = len(rows) * ROUNDED * np.abs(rows).max()
        if len(rows) == 1:
            assert np.abs(found - rows[0]).max() <= rounded
        else:
            total = rows.sum(axis=0)
            length = np.linalg.norm(total)  # whole numbers: 0, or 1 at least
            assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5) or length <= 4 * rounded
            assert np.abs(found * length - total).max() <= 8 * rounded


@given(rows=st.integers(2, 200), before=st.integers(1, 17), seed=st.integers(0, 1_000))
def test_cosine_is_bit_identical_at_any_position(rows: int, before: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((before + rows, 48)).astype(np.float32)
    query = random.standard_normal(48).astype(np.float32)
    everything, behind = VectorIndex(48), VectorIndex(48)
    everything.add(np.arange(before + rows), vectors)
    behind.add(np.arange(rows), vectors[before:])
    assert everything.cosines(query)[0][before:].tobytes() == behind.cosines(query)[0].tobytes()


def test_removing_an_absent_vector_changes_nothing() -> None:
    model = Model()
    model.remove(0)
    model.add([[(1, 0, 0)]])
    model.remove(7)
    model.remove(0)
    model.remove(0)
    assert len(model.index) == 0


@given(seed=st.integers(0, 1_000), held=st.integers(1, 384))
def test_a_cosine_moves_by_less_than_a_hundredth(seed: int, held: int) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((2, 384)) * (draw.permutation(384) < held)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    stored, query = rows.astype(np.float32)
    index = VectorIndex(384)
    index.add(np.array([0]), stored.reshape(1, -1))
    assert index.cosines(query)[0][0] == pytest.approx(float(stored @ query), abs=0.01)


def test_a_result_is_unharmed_by_later_changes() -> None:
    # Rows are read without a copy: what was handed out must not be memory that FAISS moves.
    model = Model()
    model.add([[(1, 0, 0)], [(0, 1, 0)]])
    cosines, slots = model.index.cosines(np.array([1, 0, 0], np.float32))
    own = model.index.of(np.array([0, 1]))
    model.remove(0)
    model.add([[(5, 5, 5)]] * 500)
    assert (cosines.tolist(), slots.tolist()) == ([1, 0], [0, 1])
    assert own.tolist() == [[1, 0, 0], [0, 1, 0]]
