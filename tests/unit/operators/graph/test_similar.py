"""`similar_to` edges: which memories are linked, and how many."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.errors import UsageError
from recallflow.flows.settings import Settings
from recallflow.operators.graph.write import cosines
from recallflow.state.graph_codec import SIMILAR_TO
from recallflow.state.hot_graph import SKETCH_BYTES
from tests.groups import share
from tests.unit.operators.graph.engine import Engine, event, opened


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with opened(tmp_path / "s", Settings(partitions=1, similarity_max_per_memory=2)) as made:
        yield made


def at(degrees: float) -> list[float]:
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), 0.0, 0.0]


def told(memory_id: str, degrees: float, content: str = "x") -> dict[str, Any]:
    return event("memory", id=memory_id, content=content, embedding=at(degrees))


def pairs(engine: Engine) -> dict[str, float]:
    """Pair of ids → weight; both directions are one pair, and of one weight."""
    found = {(a.text, b.text): edge.weight for (a, b, kind), edge in engine.edges().items() if kind == SIMILAR_TO}
    assert all(found[b, a] == weight for (a, b), weight in found.items())
    return {a + b: weight for (a, b), weight in found.items() if a < b}


@pytest.mark.parametrize(("threshold", "linked"), [(0.9848, True), (0.9849, False)])
def test_the_threshold_is_met_by_the_rounded_cosine(tmp_path: Path, threshold: float, linked: bool) -> None:
    engine = Engine(tmp_path / "s", Settings(partitions=1, similarity_threshold=threshold))
    engine.run(told("a", 0), told("b", 10))  # 0.98481
    assert bool(pairs(engine)) == linked


def test_a_closer_newcomer_takes_the_place_of_the_weakest(engine: Engine) -> None:
    engine.run(told("a", 0), told("b", 20), told("c", -25))
    assert set(pairs(engine)) == {"ab", "ac"}
    engine.run(told("d", 5))  # a is full: its weakest, c, goes, and d is nearer to b as well
    assert set(pairs(engine)) == {"ab", "ad", "bd"}
    engine.run(told("e", 41))  # b is full, and e would be its weakest
    assert set(pairs(engine)) == {"ab", "ad", "bd"}


def test_equally_close_memories_rank_newest_first_without_eviction(engine: Engine) -> None:
    engine.run(*(told(name, 0) for name in "abcd"))
    assert set(pairs(engine)) == {"ab", "ac", "bc"}  # d finds only full ones
    engine.run(told("e", 0))
    assert set(pairs(engine)) == {"ab", "ac", "bc", "de"}


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 20), dimension=st.sampled_from([1, 4, 130, 384]))
def test_cosine_is_bit_identical_in_any_batch_and_direction(seed: int, count: int, dimension: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((count + 1, dimension)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    vector, others = rows[0], rows[1:]
    together = cosines(vector, others)
    assert together == [cosines(vector, other[np.newaxis])[0] for other in others]
    assert together == [cosines(other, vector[np.newaxis])[0] for other in others]
    assert np.allclose(together, [np.dot(vector, other) for other in others], atol=1e-5)


def test_memory_used_by_writes_counts_towards_the_budget(engine: Engine) -> None:
    engine.run(told("a", 0))
    before = engine.hot.size_bytes()
    engine.run(*(told(f"m{n}", n, f"then Name{n} came") for n in range(500)))
    assert engine.hot.size_bytes() - before > 500 * (SKETCH_BYTES + 100)


@pytest.mark.parametrize("size", [1, 50])
def test_only_the_newest_are_looked_at(engine: Engine, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("recallflow.state.hot_graph.WINDOW", 8)
    events = [told("old", 0), *(told(f"x{n}", 90 + n) for n in range(7)), event("memory.forget", memory_id="x3")]
    for start in range(0, len(events), size):
        engine.run(*events[start : start + size])
        if size == 1:
            engine.again()
    engine.run(told("new", 0))  # the eighth behind it
    assert not any("new" in pair for pair in pairs(engine))
    engine.run(told("newer", 0))
    assert "newnewer" in pairs(engine)


@settings(max_examples=share(0.4))
@given(degrees=st.lists(st.integers(0, 359), min_size=2, max_size=12), order=st.randoms(use_true_random=False))
def test_pair_weight_does_not_depend_on_order(
    tmp_path_factory: pytest.TempPathFactory, degrees: list[int], order: Any
) -> None:
    names = {f"{n:02}": degree for n, degree in enumerate(degrees)}
    weights = []
    for _ in range(2):
        engine = Engine(tmp_path_factory.mktemp("s") / "s", Settings(partitions=1, similarity_max_per_memory=100))
        engine.run(*(told(name, degree) for name, degree in names.items()))
        weights.append(pairs(engine))
        engine.close()
        shuffled = [*names.items()]
        order.shuffle(shuffled)
        names = dict(shuffled)
    assert weights[0] == weights[1]
    expected = {
        a + b: round(math.cos(math.radians(names[a] - names[b])), 4)
        for a in names
        for b in names
        if a < b and math.cos(math.radians(names[a] - names[b])) >= 0.86
    }
    assert expected.keys() <= weights[0].keys()
    assert all(np.isclose(weights[0][pair], weight, atol=1e-4) for pair, weight in expected.items())


@pytest.mark.parametrize(
    "wrong",
    [
        {"similarity_threshold": 0.0}, {"similarity_threshold": 1.01}, {"similarity_threshold": math.nan},
        {"similarity_max_k": 0}, {"similarity_max_per_memory": -1}, {"similarity_max_per_memory": 101},
    ],
)  # fmt: skip
def test_settings_out_of_bounds_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Settings(**wrong)
