"""The figures of the benchmark that `answerable` is fitted and measured by."""

from datetime import UTC, datetime

import numpy as np
import pytest

from benchmarks.answerable import auc, chance, error, fit
from benchmarks.locomo import Conversation, Turn
from benchmarks.relevance_tables import renewed, written
from benchmarks.stores import renamer
from recallflow.operators.recall.relevance_weights import GROUNDS


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    own = np.array([True, True, False, False])
    assert auc(np.array([0.9, 0.4, 0.4, 0.1]), own) == (1 + 1 + 0.5 + 1) / 4


def test_the_error_is_what_bins_are_off_by_weight() -> None:
    # One bin of 0.25 with a true one in two, one of 0.95 that is right, and counts twice.
    likely, label, weight = np.array([0.25, 0.25, 0.95]), np.array([1.0, 0.0, 1.0]), np.array([1.0, 1.0, 2.0])
    assert error(likely, label, weight) == pytest.approx((2 * 0.25 + 2 * 0.05) / 4)


def test_a_fit_finds_the_shares_it_was_given() -> None:
    terms = np.array([[0.0], [1.0]]).repeat(400, axis=0)
    label = np.concatenate([np.arange(400) < 100, np.arange(400) < 300]) * 1.0
    found = fit(terms, label, np.ones(800))
    np.testing.assert_allclose(found.probability(np.array([[0.0], [1.0]])), [0.25, 0.75], atol=0.01)


def test_a_question_about_others_names_the_people_of_this_conversation() -> None:
    def conversation(*speakers: str) -> Conversation:
        at = datetime(2024, 1, 1, tzinfo=UTC)
        return Conversation("c", [Turn(str(n), "s", at, name, "x") for n, name in enumerate(speakers)], [])

    renamed = renamer(conversation("Ann Lee", "Ann Lee", "Bo"), conversation("Cy", "Di Roy", "Di Roy"))
    assert renamed("Did Ann's sister meet Bo, and ann lee Annie?") == "Did Di's sister meet Cy, and Di Roy Annie?"


def test_right_probabilities_are_off_by_as_much_as_few_labels_are() -> None:
    sure, few, many = np.array([0.0, 1.0]), np.full(4, 0.5), np.full(4_000, 0.5)
    assert chance(sure, np.ones(2)) == 0
    assert 0 < chance(many, np.ones(4_000)) < 0.02 < chance(few, np.ones(4))


def test_weights_fitted_anew_stand_in_the_file_in_place_of_their_own() -> None:
    before = {"one": tuple(map(float, range(len(GROUNDS)))), "gone": (0.0,) * len(GROUNDS)}
    renewed_ = renewed(before, "static", {"people": {"one": -1.5, "new": 2.25}}, ("one", "new"))
    at = GROUNDS.index(("static", "people"))
    source = written('"""Said first."""\n\nA: Table = {\n    "one": (7,),\n}  # fmt: skip\n', {"A": renewed_})
    head, _, table = source.partition("A: Table = ")
    assert head == '"""Said first."""\n\n'
    assert eval(table) == {
        "one": tuple(-1.5 if number == at else number for number in range(len(GROUNDS))),
        "new": tuple(2.25 if number == at else 0 for number in range(len(GROUNDS))),
    }
