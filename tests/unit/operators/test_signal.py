"""The semantic signal with and without the model, with vectors made by hand."""

from collections.abc import Sequence

import numpy as np
import pytest

from recallflow.embedder import Kind, Matrix, TextVectors
from recallflow.operators.recall.question import understand
from recallflow.operators.recall.shared import Shared
from recallflow.operators.recall.signal import Signal, read
from recallflow.operators.recall.weights import WEIGHTS, WHOLE_WEIGHTS
from recallflow.operators.redaction import RowsReader
from recallflow.state.arrays import Column, Places
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, MemoryRow, Vectors
from recallflow.state.tokens import to_bytes
from tests.unit.operators.harness import make_entry

QUESTION = understand("Which tea?", [])
TOKENS = to_bytes(np.eye(2, dtype=np.float32))
CONTENTS = ["tea", "bike", "tea and cake"]


class Model:
    dimension = 2

    def __init__(self, name: str, kind: Kind, **vectors: Sequence[float]) -> None:
        self.name = name
        self.kind = kind
        self.vectors = vectors
        self.asked: list[str] = []
        self.fails = False

    def embed(self, texts: Sequence[str]) -> Matrix:
        if self.fails:
            raise RuntimeError
        self.asked += texts
        return np.array([self.vectors.get(text.split()[-1], (0, 1)) for text in texts], np.float32)


def entries() -> list[Entry]:
    return [make_entry(n, author="Ann", stems=text) for n, text in enumerate(["tea", "bike", "tea cake"])]


@pytest.fixture
def index() -> OwnerIndex:
    """With the model's vectors, at cosines of 1, 0 and 0.6 to the question's."""
    index = OwnerIndex("model", 2)
    vectors = {(n, 0): Vectors("model", np.array([v], np.float32)) for n, v in enumerate([(1, 0), (0, 1), (0.6, 0.8)])}
    index.add(entries(), vectors)
    return index


def rows(slots: list[int]) -> list[MemoryRow | None]:
    return [
        MemoryRow(f"m{slot}", slot, 0, 0, CONTENTS[slot], created_ms=0, ingested_ms=0, name="Ann") for slot in slots
    ]


def places(index: OwnerIndex) -> dict[str, int]:
    return {index.ids[slot]: place for place, slot in enumerate(index.conversation.slots)}


def signal(shared: Shared, index: OwnerIndex, permitted: Places | None = None, reader: RowsReader = rows) -> Signal:
    everything = np.arange(index.conversation.size)
    return read(shared, index, QUESTION, everything if permitted is None else permitted, reader)


def by_memory(index: OwnerIndex, column: Column) -> list[float]:
    return [float(column[place]) for _, place in sorted(places(index).items())]


def test_with_a_model_the_columns_are_the_models(index: OwnerIndex) -> None:
    model = Model("model", "contextual", **{"tea?": (1, 0)})
    found = signal(Shared.of(model, lambda: 0.0), index)
    assert found.embedded
    assert found.warnings == ()
    assert found.columns.weights == WHOLE_WEIGHTS["assistant"]
    # Cosines 1, 0, 0.6: mean 0.533333, deviation 0.410961; stored in bytes, they are a little off.
    np.testing.assert_allclose(
        by_memory(index, np.asarray(found.columns.values["dense"])), [1.13555, -1.29777, 0.16222], atol=1e-2
    )
    np.testing.assert_array_equal(found.vector, [1, 0])
    spelling = Model("model", "spelling", **{"tea?": (1, 0)})
    assert signal(Shared.of(spelling, lambda: 0.0), index).columns.weights == WEIGHTS["spelling"]["assistant"]


def test_the_models_own_weights_are_for_tokens() -> None:

    class Reader(Model):
        def embed_tokens(self, texts: Sequence[str]) -> list[TextVectors]:
            return [TextVectors(row, np.eye(2, dtype=np.float32)) for row in self.embed(texts)]

    model = Reader("model", "contextual", **{"tea?": (1, 0)})
    index = OwnerIndex("model", 2)
    index.add(entries(), {(n, 0): Vectors("model", np.eye(1, 2, dtype=np.float32), TOKENS) for n in range(3)})
    assert signal(Shared.of(model, lambda: 0.0), index).columns.weights == WEIGHTS["contextual"]["assistant"]
    whole, spelling = WHOLE_WEIGHTS["people"], WEIGHTS["spelling"]["people"]
    assert {name: weight / spelling[name] for name, weight in whole.items()} == pytest.approx(
        dict.fromkeys(spelling, 1.0) | {"dense": 3.0, "reply": 3.0}
    )


def test_failed_model_compares_in_the_fallback_vectors(index: OwnerIndex) -> None:
    model = Model("model", "contextual")
    model.fails = True
    # Cosines 0.8, 0, -0.8 to what is written: mean 0, deviation 0.653197.
    vectors = {"tea?": (1, 0), "tea": (0.8, 0.6), "bike": (0, 1), "cake": (-0.8, 0.6)}
    fallback = Model("fallback", "spelling", **vectors)
    found = signal(Shared.of(model, lambda: 0.0, fallback), index)
    assert (found.vector, found.embedded, found.columns.weights) == (None, True, WEIGHTS["spelling"]["assistant"])
    np.testing.assert_allclose(
        by_memory(index, np.asarray(found.columns.values["dense"])), [1.22474, 0, -1.22474], atol=1e-4
    )
    assert fallback.asked[0] == "Which tea?"
    assert sorted(fallback.asked[1:]) == ["Ann: bike", "Ann: tea", "Ann: tea and cake"]
    assert "sentence" not in found.columns.values
    others = signal(Shared.of(model, lambda: 0.0), index).columns.values
    for name, column in others.items():
        np.testing.assert_array_equal(found.columns.values[name], column)
