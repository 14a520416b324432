"""What the quality gate makes of what it sees, and how it goes back and forth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.graph.gate import BOUNDS, Compared, Gate, Outcome, Seen, Window, compare

SPAN_MS = 1_000
WINDOW = Window(span_ms=SPAN_MS, most=100, answers=10, feedback=4)
GOOD, BAD = Compared(0.2, 0.9, 0.8), Compared(0.0, 0.9, 0.1)


def gate(*outcomes: tuple[int, Outcome], compared: Compared | None = None) -> Gate:
    """A gate that saw so many of each, at time 0."""
    watching = Gate(WINDOW)
    for count, outcome in outcomes:
        for _ in range(count):
            watching.observe(Seen(0, outcome, compared))
    return watching


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_figures() -> None:
    watching = gate((15, "expanded"), compared=GOOD)
    for outcome in ("failed", "stopped", "stopped", "stopped", "expanded"):
        watching.observe(Seen(0, outcome))
    for useful in (True, False, True, True):
        watching.feedback(0, useful)
    assert watching.figures() == {
        "answers": 20,
        "feedback": 4,
        "error_rate": 0.05,
        "fallback_rate": 0.2,
        "overlap": 0.2,
        "baseline_relevance": 0.9,
        "expanded_relevance": 0.8,
        "relevance_loss": 0.111111,
        "not_useful_rate": 0.25,
    }


def test_too_little_is_unknown() -> None:
    watching = gate((9, "failed"), compared=BAD)
    for _ in range(3):
        watching.feedback(0, False)
    known = {name: value for name, value in watching.figures().items() if value is not None}
    assert known == {"answers": 9, "feedback": 3}
    assert not watching.blocks(False)
    assert watching.blocks(True)


def test_the_windows_roll_over_the_time_of_the_queries() -> None:
    watching = gate((10, "failed"))
    for at_ms in (SPAN_MS, SPAN_MS + 1):
        watching.observe(Seen(at_ms, "expanded"))
    assert watching.figures()["answers"] == 2  # of 11 until the second came
    watching.observe(Seen(500, "expanded"))  # late, as another source may be
    assert watching.figures()["answers"] == 3


def test_only_the_last_ones_are_kept() -> None:
    watching = gate((100, "failed"), (100, "expanded"))
    assert (watching.figures()["answers"], watching.figures()["error_rate"]) == (100, 0)


# ── verdicts ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("watching", "reason"),
    [
        (gate((18, "expanded"), (2, "failed")), "error_rate 0.10"),
        (gate((14, "expanded"), (6, "stopped")), "fallback_rate 0.30"),
        (gate((20, "expanded"), compared=BAD), "relevance_loss 0.89"),
    ],
)
def test_a_regression_blocks(watching: Gate, reason: str) -> None:
    assert watching.blocks(False)
    assert watching.reason(False) == reason


def test_feedback_blocks_and_time_frees() -> None:
    watching = gate((20, "expanded"))
    for _ in range(4):
        watching.feedback(0, False)
    assert watching.blocks(False)
    assert watching.blocks(True)
    for at_ms in range(SPAN_MS - 10, SPAN_MS + 10):
        watching.observe(Seen(at_ms, "expanded"))
    assert not watching.blocks(True)
    assert watching.reason(True) == "recovered"


@pytest.mark.parametrize("failed", [4, 5])
def test_between_the_bounds_what_holds_goes_on(failed: int) -> None:
    watching = gate((100 - failed, "expanded"), (failed, "failed"))
    assert not watching.blocks(False)
    assert watching.blocks(True)


def test_recovery_frees() -> None:
    watching = gate((20, "expanded"), compared=BAD)
    assert watching.blocks(True)
    for _ in range(80):
        watching.observe(Seen(0, "expanded", GOOD))
    assert not watching.blocks(True)


@given(
    st.lists(
        st.builds(
            Seen,
            st.integers(0, 3 * SPAN_MS),
            st.sampled_from(["expanded", "failed", "stopped"]),
            st.sampled_from([None, GOOD, BAD]),
        ),
        max_size=60,
    )
)
def test_what_blocks_would_not_free(seen: list[Seen]) -> None:
    """There is no state in which a gate goes back and forth with nothing new to see."""
    watching = Gate(WINDOW)
    for one in seen:
        watching.observe(one)
        assert not watching.blocks(False) or watching.blocks(True)


def test_a_bound_to_free_is_stricter_than_the_one_to_block() -> None:
    assert all(bounds.free < bounds.block for bounds in BOUNDS.values())


# ── beside the baseline ───────────────────────────────────────────────────────────────────────────────────────────

SIGNAL = np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
LEFT_OUT = np.arange(2, 10)  # the first two were answered


def test_what_the_baseline_ranks_next_loses_nothing() -> None:
    assert compare(SIGNAL, LEFT_OUT, np.array([2, 3])) == Compared(1.0, 0.875, 0.875)


def test_the_worst_of_all_lose_all() -> None:
    assert compare(SIGNAL, LEFT_OUT, np.array([8, 9])) == Compared(0.0, 0.875, 0.125)


def test_all_that_is_left_is_as_good_as_by_lot() -> None:
    assert compare(SIGNAL, LEFT_OUT, LEFT_OUT) == Compared(1.0, 0.5, 0.5)


def test_without_a_signal_nothing_is_lost() -> None:
    assert compare(np.zeros(10), LEFT_OUT, np.array([9])) == Compared(1.0, 0.5, 0.5)


def test_nothing_expanded_is_not_compared() -> None:
    assert compare(SIGNAL, LEFT_OUT, np.array([], np.int64)) is None
