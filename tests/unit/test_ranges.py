"""Whole numbers as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.flows.config import parse_numbers
from recallflow.owner import parse_ranges, ranges_of


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-7,9", {*range(8), 9}), ("3", {3}), (" 4 - 5 , 1", {1, 4, 5}), ("0-3,2-5", {*range(6)})],
)
def test_ranges_are_read(text: str, numbers: set[int]) -> None:
    assert parse_ranges(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "7-0", "0-9999999999", "1-2-3", "½"])
def test_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no numbers as in 0-7,9|ends before it begins"):
        parse_ranges(text)


@given(st.frozensets(st.integers(0, 40), min_size=1))
def test_numbers_are_written_as_they_are_read(numbers: frozenset[int]) -> None:
    assert parse_ranges(ranges_of(numbers)) == numbers


def test_the_shortest_way() -> None:
    assert ranges_of({0, 1, 2, 3, 5, 7, 8}) == "0-3,5,7-8"


@pytest.mark.parametrize("value", [3, ["0-7"], "a"])
def test_setting_must_be_a_text_of_ranges(value: object) -> None:
    assert parse_numbers("0-1") == {0, 1}
    with pytest.raises(ValueError, match=r"names no numbers as in 0-7,9"):
        parse_numbers(value)
