"""What a member is named that owns partitions by hand."""

import pytest

from recallflow.connectors.kafka.own import name_of, overlapping


def test_a_name_is_one_that_a_broker_takes() -> None:
    assert name_of({0, 1, 2, 9}) == "own-0-2_9"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["own-0-3"], None),  # our own place
        (["own-4-7_9", "own-12"], None),
        (["own-4-7", "own-2_3-5"], "2,3-5"),
        (["engine", "own-", "own-a", "pod-0-3"], None),
        ([], None),
    ],
)
def test_who_owns_what_is_ours_is_found(names: list[str], found: str | None) -> None:
    assert overlapping({0, 1, 2, 3}, names) == found
