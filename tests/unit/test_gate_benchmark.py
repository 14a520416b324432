from random import Random

import pytest

from benchmarks.gate import LIMIT, Interval, NoBaselineError, find_baseline, find_losses

WORSE = Interval(1.1, 1.06, 1.15, 1.1, 1.0)
SAME = Interval(1.0, 0.97, 1.03, 1.0, 1.0)


def pairs(ratio: float, count: int = 120) -> list[tuple[float, float]]:
    """Return noisy measurements of two sides; one in twenty met a pause."""
    random = Random(7)
    noise = [(random.uniform(0.8, 1.2), random.uniform(0.8, 1.2)) for _ in range(count)]
    return [(ratio * ours * (10 if number % 20 == 0 else 1), theirs) for number, (ours, theirs) in enumerate(noise)]


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.1, 1.5])
def test_noisy_pairs_give_an_interval_around_their_ratio(ratio: float) -> None:
    one = Interval.of(pairs(ratio))
    assert one.low < ratio < one.high
    assert one.high / one.low < 1.12


def test_loss_of_ten_percent_fails_and_noise_does_not() -> None:
    figures = {name: Interval.of(pairs(ratio, 480)) for name, ratio in (("query", 1.12), ("message", 1.0))}
    figures["at the limit"] = Interval(1.07, LIMIT, 1.1, 1.0, 1.0)
    assert find_losses(figures, "", "") == ["query"]


@pytest.mark.parametrize(
    ("accepted", "earlier", "failed"),
    [
        ("- query: exact scores cost this", "", []),
        ("- query: exact scores cost this", "- query: exact scores cost this", ["query"]),  # accepted before: landed
        ("- query: ", "", ["query"]),  # no reason
        ("- message: parsing is strict", "", ["query"]),
    ],
)
def test_loss_passes_only_with_a_new_line(accepted: str, earlier: str, failed: list[str]) -> None:
    assert find_losses({"query": WORSE, "import": SAME}, accepted, earlier) == failed


def test_last_baseline_line_counts_without_a_landed_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*_: str) -> str:
        raise NoBaselineError

    monkeypatch.setattr("benchmarks.gate._git", git)
    assert find_baseline("- baseline 0a1b2c3d: first\n- query: reason\n- baseline 4e5f6a7b: second") == "4e5f6a7b"
    with pytest.raises(NoBaselineError):
        find_baseline("- baseline 0a1b2c3d:")


def test_landed_commit_comes_before_the_baseline_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"status": "", "merge-base": "aaaa1111\n", "rev-parse": "bbbb2222\n"}
    monkeypatch.setattr("benchmarks.gate._git", lambda command, *_: answers[command])
    assert find_baseline("- baseline 0a1b2c3d: first") == "aaaa1111"
    answers["rev-parse"] = "aaaa1111\n"
    assert find_baseline("- baseline 0a1b2c3d: first") == "0a1b2c3d"
    answers["status"] = " M operators/step.py\n"
    assert find_baseline("- baseline 0a1b2c3d: first") == "HEAD"
