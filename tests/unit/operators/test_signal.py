"""The semantic signal with and without a model, and vectors that come later than their memories."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.embedder import NO_FLOATS, Kind, Matrix, TextVectors
from recallflow.events import content_hash
from recallflow.flows.embedded import Processed
from recallflow.operators.events import Analysis, Write, decode
from recallflow.operators.prepare import prepare
from recallflow.operators.recall.columns import Columns, compute
from recallflow.operators.recall.question import analyse_question
from recallflow.operators.recall.rank_and_judge import signal_by_vector
from recallflow.operators.recall.ranking import boosts, memory_factors, rank
from recallflow.operators.recall.shared import Shared
from recallflow.operators.recall.stages import Signal
from recallflow.operators.recall.weights import WEIGHTS, WHOLE_WEIGHTS
from recallflow.operators.redaction import RowsReader
from recallflow.records import Position, Record
from recallflow.state.arrays import Column, Positions
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, MemoryRow, Vectors
from recallflow.state.segments import SMALL
from recallflow.state.tokens import to_bytes
from recallflow.state.usage import Usage
from recallflow.state.verify import verify
from tests.unit.operators.harness import HASHING, make_entry, make_event, make_inputs, run_flow
from tests.unit.operators.models import Remote
from tests.unit.operators.test_apply import codes, outcomes
from tests.unit.operators.test_apply import message as told_in_session

QUESTION = analyse_question("Which tea?", [])
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


def positions(index: OwnerIndex) -> dict[str, int]:
    return {index.ids[slot]: position for position, slot in enumerate(index.conversation.slots)}


def signal(shared: Shared, index: OwnerIndex, permitted: Positions | None = None, reader: RowsReader = rows) -> Signal:
    everything = np.arange(index.conversation.size)
    return signal_by_vector(shared, index, QUESTION, everything if permitted is None else permitted, reader)


def by_memory(index: OwnerIndex, column: Column) -> list[float]:
    return [float(column[position]) for _, position in sorted(positions(index).items())]


def test_with_a_model_the_columns_are_the_models(index: OwnerIndex) -> None:
    model = Model("model", "contextual", **{"tea?": (1, 0)})
    found = signal(Shared.of(model, lambda: 0.0), index)
    assert found.uses_vectors
    assert found.warnings == ()
    assert found.columns.weights == WHOLE_WEIGHTS["notes"]
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
    assert signal(Shared.of(model, lambda: 0.0), index).columns.weights == WEIGHTS["contextual"]["notes"]
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
    assert (found.vector, found.uses_vectors, found.columns.weights) == (None, True, WEIGHTS["spelling"]["assistant"])
    np.testing.assert_allclose(
        by_memory(index, np.asarray(found.columns.values["dense"])), [1.22474, 0, -1.22474], atol=1e-4
    )
    assert fallback.asked[0] == "Which tea?"
    assert sorted(fallback.asked[1:]) == ["Ann: bike", "Ann: tea", "Ann: tea and cake"]
    assert "sentence" not in found.columns.values
    others = signal(Shared.of(model, lambda: 0.0), index).columns.values
    for name, column in others.items():
        np.testing.assert_array_equal(found.columns.values[name], column)


Event = tuple[str, dict[str, Any]]
Do = Callable[..., Processed]

MODEL = "hash-384"


@pytest.fixture
def do(tmp_path: Path) -> Do:
    count = 0

    def run(*events: Event) -> Processed:
        nonlocal count
        made = [
            make_event(kind, 60_000 * at, **{"receipt": True} | fields)
            for at, (kind, fields) in enumerate(events, count)
        ]
        count += len(events)
        done = run_flow(made, tmp_path / "state")
        assert verify(tmp_path / "state").problems == []
        return done

    return run


def message(memory_id: str, content: str = "tea", **fields: Any) -> Event:
    return told_in_session(memory_id, content, session_id=memory_id, **fields)


QUESTIONS = ("zebra stripes", "violin concert", "harbour crane")


def direction(axis: int) -> list[float]:
    """The vector of a question that has no word of any memory."""
    found: list[float] = HASHING.embed([QUESTIONS[axis]])[0].tolist()
    return found


def embedding(memory_id: str, axis: int, text: str = "tea", **fields: Any) -> Event:
    given = {"memory_id": memory_id, "embedding": direction(axis), "model": MODEL, "content_hash": content_hash(text)}
    return "memory.embedding", given | fields


def along(axis: int) -> Event:
    return "recall", {"query": QUESTIONS[axis], "mode": "relevance"}


def near(memory_id: str) -> Event:
    return "graph.explore", {"nodes": [memory_id]}


def similar(response: dict[str, Any]) -> list[tuple[str, str]]:
    edges = response["subgraph"]["edges"]
    return sorted({(edge["source"], edge["target"]) for edge in edges if edge["type"] == "similar_to"})


@pytest.mark.parametrize(
    ("events", "expected", "refused"),
    [
        ([embedding("a", 0), embedding("a", 0)], ["updated", "unchanged"], []),
        (
            [embedding("a", 0, model="other"), embedding("a", 0, model="other", embedding=[1.0])], ["other_model"] * 2,
            [],
        ),
        ([embedding("a", 0, embedding=[1.0])], [], [("wrong_dimension", ["embedding"])]),
        ([embedding("a", 0, content_hash=content_hash("tea").upper())], ["updated"], []),
        ([embedding("a", axis, id="e") for axis in (0, 0, 1)], ["updated", "duplicate"], [("id_conflict", ["id"])]),
        ([embedding("a", 0, "coffee")], ["outdated"], []),
    ],
    ids=["again", "another model", "another size", "upper case hash", "same id", "another text"],
)  # fmt: skip
def test_vector_has_its_outcome(do: Do, events: list[Event], expected: list[str], refused: list[Any]) -> None:
    done = do(message("a"), *events)
    assert (outcomes(done)[1:], codes(done)) == (expected, refused)


def test_similarity_is_known_since_the_vector_came(do: Do) -> None:
    kind, fields = near("a")
    before = (kind, fields | {"as_of": {"ingestion_time": 150_000}})
    done = do(message("a", "one"), message("b", "two"), embedding("a", 0, "one"), embedding("b", 0, "two"), before)
    assert similar(done.responses[0]) == []


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
def test_late_vector_applies_to_packed_memories(do: Do, again: bool) -> None:
    told = [message(f"m{at}", f"text {at}", embedding=direction(2)) for at in range(SMALL + 1)]
    late, asked = embedding("m5", 0, "text 5"), along(0)
    responses = [do(*told, asked), do(late), do(asked)] if again else [do(*told, asked, late, asked)]
    assert responses[-1].responses[-1]["memories"][0]["id"] == "m5"


ASKED = np.array([1, 0], np.float32)
DEGREES = st.lists(st.integers(-179, 180), min_size=2, max_size=8)


def unit(degrees: int) -> tuple[float, float]:
    return float(np.cos(np.deg2rad(degrees))), float(np.sin(np.deg2rad(degrees)))


def columns_of(entries: Sequence[Entry], vectors: dict[int, tuple[float, float]], kind: Kind) -> Columns:
    index = OwnerIndex("model", 2)
    stored = {(seq, 0): Vectors("model", np.array([vector], np.float32)) for seq, vector in vectors.items()}
    index.add(entries, stored)
    return compute(index, QUESTION, TextVectors(ASKED, NO_FLOATS), WEIGHTS[kind]["people"])


@given(angles=DEGREES, words=st.data())
def test_memory_without_vector_is_judged_by_words(angles: list[int], words: st.DataObject) -> None:
    """Its vector columns are at the mean, and those of others do not change."""
    texts = words.draw(st.lists(st.sampled_from(["tea", "cake", "bike"]), min_size=len(angles), max_size=len(angles)))
    entries = [make_entry(n, episode=0, created_ms=n, stems=text) for n, text in enumerate(["tea", *texts])]
    vectors = {n: unit(angle) for n, angle in enumerate(angles, 1)}
    found = columns_of(entries, vectors, "contextual")
    alone = columns_of(entries[1:], vectors, "contextual")
    (first, *others), of_others = np.asarray(found.values["dense"]), np.asarray(alone.values["dense"])
    assert first == 0
    np.testing.assert_array_equal(others, of_others)
    np.testing.assert_allclose(
        found.unscaled("dense", np.array([0])), np.mean([unit(angle)[0] for angle in angles]), atol=0.01
    )


@given(angles=DEGREES, missing=st.data())
def test_factors_without_a_vector_are_the_mean(angles: list[int], missing: st.DataObject) -> None:
    positions = np.arange(len(angles))
    without = missing.draw(st.sets(st.integers(0, len(angles) - 1), max_size=len(angles) - 1))
    entries = [make_entry(n, episode=n // 3 * 3) for n in range(len(angles))]
    vectors = {n: unit(angle) for n, angle in enumerate(angles) if n not in without}
    liked = {min(vectors): Usage(useful=1)}
    inputs = make_inputs("hybrid", entries, [0.0] * len(angles), vectors=vectors, usage=liked)
    able = np.array([n not in without for n in positions])
    for values in (memory_factors(inputs, positions)["cluster"], boosts(inputs, positions, 1.0)["personalisation"]):
        np.testing.assert_allclose(values[~able], values[able].mean(), rtol=1e-12)


def test_an_episode_without_vectors_is_chosen_by_its_members() -> None:
    entries = [make_entry(n, episode=n) for n in range(3)]
    signal = [1.0, 1.0, 1.0]
    vectors = {0: unit(30), 1: unit(20)}
    inputs = make_inputs("episode", entries, signal, vectors=vectors, asked=ASKED)
    ranking = rank(inputs)
    found = dict(zip(ranking.positions.tolist(), ranking.scores.tolist(), strict=True))
    assert found[0] < found[2] < found[1]
    odds = np.exp(1.0 + np.array([-0.25, 0.25, 0.0]))
    np.testing.assert_allclose([found[n] for n in range(3)], odds / odds.sum(), rtol=1e-3)


def prepared(embedder: Any, event: dict[str, Any]) -> Any:
    (item,) = prepare(embedder, [decode(Record(Position("memories", 0, 0), orjson.dumps(event), 0))])
    return item


def analysis(embedder: Any, event: dict[str, Any]) -> Analysis:
    item = prepared(embedder, event)
    assert isinstance(item, Write)
    assert item.analysis is not None
    return item.analysis


@pytest.mark.parametrize(
    ("kind", "fields"), [("message", {}), ("memory", {}), ("memory.update", {"memory_id": "m", "timestamp": None})]
)
def test_words_are_read_and_nothing_is_embedded(kind: str, fields: dict[str, Any]) -> None:
    event = make_event(kind, content="Ana moved to Porto. " * 60, **fields)
    remote = Mock(spec=Remote())
    found, local = analysis(remote, event), analysis(HASHING, event)
    assert (remote.embed.mock_calls, remote.service.mock_calls) == ([], [])
    assert (found.vectors, found.sketch, len(found.tokens), found.sizes) == (None, b"", 0, ())
    assert local.vectors is not None
    assert (found.stems, found.flags, found.names) == (local.stems, local.flags, local.names)
    assert found.is_truncated == local.is_truncated
