"""Log-odds of the signal as probabilities."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.embedder import Kind
from recallflow.operators.recall.explain import CALIBRATIONS, log_odds_of_share, log_total, probabilities
from recallflow.operators.recall.weights import Chat

SCORES = st.lists(st.floats(-50, 50), min_size=1, max_size=20)
KINDS: list[Kind] = ["spelling", "static", "contextual"]
CHATS: list[Chat] = ["people", "pair", "assistant"]


def test_by_hand() -> None:
    # Shares of e²/(e² + 2) = 0.786986 and 1/(e² + 2) = 0.106507; their log-odds 1.306853 and -2.126928.
    scores = np.array([2.0, 0.0, 0.0])
    total = log_total(scores)
    assert total == pytest.approx(math.log(math.e**2 + 2))
    np.testing.assert_allclose(log_odds_of_share(scores, total), [1.306853, -2.126928, -2.126928], rtol=1e-5)
    offset, slope = CALIBRATIONS["spelling"]["people"]
    expected = [1 / (1 + math.exp(-(offset + slope * odds))) for odds in (1.306853, -2.126928, -2.126928)]
    np.testing.assert_allclose(probabilities(scores, total, "spelling", "people"), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chat", CHATS)
@given(scores=SCORES, shift=st.floats(-1e3, 1e3))
def test_probabilities_rise_with_the_score(kind: Kind, chat: Chat, scores: list[float], shift: float) -> None:
    rising = np.sort(np.array(scores))
    found = probabilities(rising, log_total(rising), kind, chat)
    assert np.all((found > 0) & (found < 1))
    assert np.all(np.diff(found) >= 0)
    moved = rising + shift  # only differences between scores count
    np.testing.assert_allclose(probabilities(moved, log_total(moved), kind, chat), found, rtol=1e-6)


def test_of_thousands_of_hopeless_memories_none_counts_for_much() -> None:
    scores = np.concatenate([[12.0], np.zeros(5_000)])
    found = probabilities(scores[:2], log_total(scores), "static", "assistant")
    assert found[0] > 0.9
    assert found[1] < 0.01
