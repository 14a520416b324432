"""Memories whose vectors have not come yet, beside others that have theirs: each is judged by what is known of it."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.embedder import NO_FLOATS, Kind, TextVectors
from recallflow.operators.recall.columns import Columns, compute
from recallflow.operators.recall.factors import boosts, raw
from recallflow.operators.recall.modes import rank
from recallflow.operators.recall.question import understand
from recallflow.operators.recall.weights import WEIGHTS
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, Vectors
from recallflow.state.usage import Usage
from tests.unit.operators.harness import make_entry, make_scene

QUESTION = understand("Which tea?", [])
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
def test_what_has_no_vector_is_judged_by_words_alone(angles: list[int], words: st.DataObject) -> None:
    """Its columns of meaning are at the mean, whatever the others' vectors are; and these are what they would be
    without it."""
    texts = words.draw(st.lists(st.sampled_from(["tea", "cake", "bike"]), min_size=len(angles), max_size=len(angles)))
    entries = [make_entry(n, episode=0, created_ms=n, stems=text) for n, text in enumerate(["tea", *texts])]
    vectors = {n: unit(angle) for n, angle in enumerate(angles, 1)}
    found = columns_of(entries, vectors, "contextual")
    alone = columns_of(entries[1:], vectors, "contextual")
    assert found.values["dense"][0] == 0
    np.testing.assert_array_equal(found.values["dense"][1:], alone.values["dense"])
    np.testing.assert_allclose(
        found.absolute("dense", np.array([0])), np.mean([unit(angle)[0] for angle in angles]), atol=0.01
    )


@given(angles=DEGREES, missing=st.data())
def test_factors_without_a_vector_are_the_mean(angles: list[int], missing: st.DataObject) -> None:
    places = np.arange(len(angles))
    without = missing.draw(st.sets(st.integers(0, len(angles) - 1), max_size=len(angles) - 1))
    entries = [make_entry(n, episode=n // 3 * 3) for n in range(len(angles))]
    vectors = {n: unit(angle) for n, angle in enumerate(angles) if n not in without}
    liked = {min(vectors): Usage(useful=1)}
    scene = make_scene("hybrid", entries, [0.0] * len(angles), vectors=vectors, usage=liked)
    able = np.array([n not in without for n in places])
    for values in (raw(scene, places)["cluster"], boosts(scene, places, 1.0)["personalisation"]):
        np.testing.assert_allclose(values[~able], values[able].mean(), rtol=1e-12)


@given(angles=DEGREES)
def test_with_a_vector_each_factors_are_what_cosines_say(angles: list[int]) -> None:
    places = np.arange(len(angles))
    entries = [make_entry(n, episode=n // 3 * 3) for n in range(len(angles))]
    vectors = {n: unit(angle) for n, angle in enumerate(angles)}
    scene = make_scene("hybrid", entries, [0.0] * len(angles), vectors=vectors)
    expected = scene.index.clusters.cosines(places).astype(np.float64)
    np.testing.assert_array_equal(raw(scene, places)["cluster"], expected)


def test_an_episode_without_vectors_is_chosen_by_its_members() -> None:
    entries = [make_entry(n, episode=n) for n in range(3)]
    signal = [1.0, 1.0, 1.0]
    vectors = {0: unit(30), 1: unit(20)}
    scene = make_scene("episode", entries, signal, vectors=vectors, asked=ASKED)
    ranking = rank(scene)
    found = dict(zip(ranking.places.tolist(), ranking.scores.tolist(), strict=True))
    assert found[0] < found[2] < found[1]
    odds = np.exp(1.0 + np.array([-0.25, 0.25, 0.0]))
    np.testing.assert_allclose([found[n] for n in range(3)], odds / odds.sum(), rtol=1e-3)


def test_without_any_vector_episodes_are_ranked_by_their_members() -> None:
    entries = [make_entry(n, episode=n) for n in range(3)]
    asked, plain = (make_scene("episode", entries, [1.0, 3.0, 2.0], asked=vector) for vector in (ASKED, None))
    assert rank(asked).scores.tolist() == rank(plain).scores.tolist()


@pytest.mark.parametrize("held", [[], [1], [0, 2]])
def test_which_slots_have_vectors(held: list[int]) -> None:
    index = OwnerIndex("model", 2)
    stored = {(n, 0): Vectors("model", np.array([[1, 0]] * (n + 1), np.float32)) for n in held}
    index.add([make_entry(n) for n in range(3)], stored)
    assert index.vectors.holds(np.array([2, 0, 1])).tolist() == [n in held for n in (2, 0, 1)]
