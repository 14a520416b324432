"""Which episodes are chosen, and in what order their memories come."""

import math
from collections.abc import Callable

import numpy as np

from recallflow.operators.recall.modes import rank
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.state.rows import Entry

MakeEntry = Callable[..., Entry]
MakeScene = Callable[..., Scene]
IdsOf = Callable[[Scene, Ranking], list[str]]


def test_whole_episodes_are_answered_by_mentions(make_entry: MakeEntry, make_scene: MakeScene, ids_of: IdsOf) -> None:
    # Four episodes; by the odds of their members, the ones opened by 6, 0 and 2 are in.
    words = {0: "tea", 1: "tea tea", 2: "", 3: "tea", 4: "tea tea tea", 5: "", 6: "tea", 7: ""}
    entries = [make_entry(n, episode=n - n % 2, created_ms=n, stems=text) for n, text in words.items()]
    ranking = rank(asked := make_scene("episode", entries, [5, 0, 0, 4, 3, 3, 0, 6], query="tea", k=5))
    assert ids_of(asked, ranking) == ["m1", "m0", "m3", "m6", "m2"]
    np.testing.assert_allclose(ranking.scores, [1, 0.5, 0.5, 0.5, 0])
    # Five of eight memories mention it: each time counts ln(1 + 8/5).
    np.testing.assert_allclose(ranking.factors["mentions"], np.array([2, 1, 1, 1, 0]) * math.log(2.6))


def test_what_few_memories_mention_counts_more(make_entry: MakeEntry, make_scene: MakeScene) -> None:
    said = ["bike", "tea tea", "tea bike", "tea"]
    entries = [make_entry(n, episode=0, created_ms=n, stems=stems) for n, stems in enumerate(said)]
    ranking = rank(make_scene("episode", entries, [0, 0, 1, 0], query="tea, tea and a bike"))
    # ln(1 + 4/3) for tea, ln(1 + 4/2) for bike; each word of the question counts once.
    tea, bike = math.log(7 / 3), math.log(3)
    np.testing.assert_allclose(ranking.factors["mentions"], [tea + bike, 2 * tea, bike, tea])
    assert ranking.places.tolist() == [2, 1, 0, 3]


def test_without_any_mention_an_episode_comes_as_it_was_said(
    make_entry: MakeEntry, make_scene: MakeScene, ids_of: IdsOf
) -> None:
    entries = [make_entry(n, episode=0, created_ms=n, stems="tea") for n in range(3)]
    for question in ("bike", "what?"):
        ranking = rank(asked := make_scene("episode", entries, [0, 2, 1], query=question))
        assert ids_of(asked, ranking) == ["m0", "m1", "m2"]
        assert ranking.scores.tolist() == [0, 0, 0]


def test_episodes_are_chosen_by_allowed_members_only(
    make_entry: MakeEntry, make_scene: MakeScene, ids_of: IdsOf
) -> None:
    entries = [make_entry(n, episode=n, created_ms=n, stems="tea") for n in range(5)]
    asked = make_scene("episode", entries, [9, 5, 4, 3, 2], allowed=[1, 2, 3, 4], query="tea", k=3)
    assert ids_of(asked, rank(asked)) == ["m1", "m2", "m3"]


def test_short_episodes_are_joined_by_others_until_k_is_full(
    make_entry: MakeEntry, make_scene: MakeScene, ids_of: IdsOf
) -> None:
    entries = [make_entry(n, episode=n, created_ms=n, stems="tea") for n in range(6)]
    asked = make_scene("episode", entries, [6, 5, 4, 3, 2, 1], query="tea", k=5)
    assert ids_of(asked, rank(asked)) == ["m0", "m1", "m2", "m3", "m4"]


def test_several_members_that_fit_outweigh_one_that_fits_a_little_better(
    make_entry: MakeEntry, make_scene: MakeScene, ids_of: IdsOf
) -> None:
    # ln(2·e) = 1.69 of the first episode against 1.5 of each of the three others, of which the last is out.
    entries = [make_entry(n, episode=0 if n < 2 else n, created_ms=n, stems="tea") for n in range(5)]
    asked = make_scene("episode", entries, [1, 1, 1.5, 1.5, 1.5], query="tea", k=4)
    assert ids_of(asked, rank(asked)) == ["m0", "m1", "m2", "m3"]


def test_among_equal_members_the_nearer_centroid_decides(
    make_entry: MakeEntry, make_scene: MakeScene, ids_of: IdsOf
) -> None:
    # Four episodes whose members fit alike; the question is at the centroids of all but the first.
    entries = [make_entry(n, episode=n, created_ms=n, stems="tea") for n in range(4)]
    vectors = {0: (1, 0), 1: (0, 1), 2: (0, 1), 3: (0, 1)}
    asked = make_scene("episode", entries, [0] * 4, query="tea", k=3, vectors=vectors, asked=(0, 1))
    assert ids_of(asked, rank(asked)) == ["m1", "m2", "m3"]
    blind = make_scene("episode", entries, [0] * 4, query="tea", k=3, vectors=vectors)
    assert ids_of(blind, rank(blind)) == ["m0", "m1", "m2"]
