"""What was made is kept within a budget of bytes."""

from recallflow.caching import Kept


def test_what_was_made_once_is_not_made_again() -> None:
    made: list[str] = []

    def make(text: str) -> str:
        made.append(text)
        return text.upper()

    kept = Kept(make, 100_000)
    assert [kept["tea"], kept["tea"], kept["oat"]] == ["TEA", "TEA", "OAT"]
    assert made == ["tea", "oat"]


def test_the_budget_holds_whatever_is_asked_for() -> None:
    kept: Kept[str, str] = Kept(str.upper, 64_000)
    for number in range(5_000):
        kept[f"word{number}"]
        assert kept.size_bytes <= 64_000
    assert 0 < len(kept) < 1_000


def test_value_that_takes_most_of_the_budget_is_not_kept() -> None:
    kept: Kept[str, str] = Kept(str.upper, 64_000)
    kept["tea"]
    assert kept["x" * 10_000] == "X" * 10_000
    assert list(kept) == ["tea"]


def test_what_a_value_holds_counts() -> None:
    flat: Kept[str, tuple[str, ...]] = Kept(lambda text: (text,), 1_000_000)
    deep: Kept[str, tuple[str, ...]] = Kept(lambda text: (text * 100,), 1_000_000)
    flat["tea"], deep["tea"]
    assert deep.size_bytes >= flat.size_bytes + 297
