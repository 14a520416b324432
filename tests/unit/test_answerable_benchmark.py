"""The figures of the benchmark that `answerable` is fitted and measured by."""

from collections import Counter

import numpy as np
import pytest

from benchmarks import kinds
from benchmarks.answerable import auc, error, fit
from benchmarks.stores import seen
from recallflow.flows.settings import Settings


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


def test_stores_of_withheld_questions_lack_the_evidence() -> None:
    (person,) = kinds.everyday(kinds.EVERYDAY / "de.json")
    asked = list(seen(Settings(embedder="hash"), "everyday", [person]))
    sizes = {one.size for one in asked}
    count = Counter((one.answerable, one.withheld) for one in asked)
    assert count == {
        (True, False): len(person.questions) * len(sizes),
        (False, False): len(person.unanswerable) * len(sizes),
        (False, True): len(person.questions) * len(sizes),
    }
    assert not any(one.is_evidence.any() for one in asked if not one.answerable)
    assert {one.talk for one in asked} == {"notes"}
