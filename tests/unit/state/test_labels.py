"""Labels of memories: found by slot and by label, however they came in, and what they hold of metadata."""

from typing import Any

import pytest

from recallflow.limits import METADATA_NAME_CHARACTERS, METADATA_TEXT_CHARACTERS, METADATA_VALUES_MAX
from recallflow.state.labels import Labels, metadata_label, metadata_labels


def test_label_added_after_a_lookup_is_found() -> None:
    labels = Labels()
    labels.add(0, [["a"], [], ["a", "b"]])
    assert [labels.slots(label).tolist() for label in ("a", "b", "c")] == [[0, 2], [2], []]
    labels.add(3, [["b"], ["c"]])
    assert [labels.slots(label).tolist() for label in ("a", "b", "c")] == [[0, 2], [2, 3], [4]]
    later = Labels()
    later.add(0, [["b"]])
    assert later.slots("b").tolist() == [0]
    later.append(10, labels.packed())
    later.add(20, [["b"]])
    assert sorted(later.slots("b").tolist()) == [0, 12, 13, 20]
    assert [later[slot] for slot in (0, 12, 14, 15, 20)] == [["b"], ["a", "b"], ["c"], [], ["b"]]


def test_many_at_once_are_as_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[tuple[int, list[list[str]]]] = [(0, [["a"], [], ["a", "b"]]), (3, [["b"]]), (4, [["c"], ["a", "c"]])]
    alone, together = Labels(), Labels()
    for first, labels in added:
        for place, one in enumerate(labels):
            alone.add(first + place, [one])
    monkeypatch.setattr("recallflow.state.labels.PACKED_FROM", 2)
    for first, labels in added:
        together.add(first, labels)
        assert sorted(together.slots("a").tolist()) == [slot for slot in (0, 2, 5) if slot < first + len(labels)]
    assert [sorted(together.slots(label).tolist()) for label in "bcd"] == [[2, 3], [4, 5], []]
    assert [together[slot] for slot in range(7)] == [alone[slot] for slot in range(7)]


def test_numbers_are_equal_as_numbers_and_nothing_else_is() -> None:
    assert metadata_label("n", 5) == metadata_label("n", 5.0)
    others: list[Any] = [5, "5", True, 1, "true", 5.5, 2**53 + 1, 2**53]
    assert len({metadata_label("n", value) for value in others}) == len(others)
    assert metadata_label("a", "b") != metadata_label("b", "a")


@pytest.mark.parametrize(
    ("metadata", "known"),
    [
        (None, []),
        ({"a": {"deep": 1}, "b": None, "c": [None, {"d": 1}, [2]]}, []),
        ({"b": "x", "a": [1, "y", False]}, [("a", 1), ("a", "y"), ("a", False), ("b", "x")]),
        ({"a": "x" * METADATA_TEXT_CHARACTERS, "b": "x" * (METADATA_TEXT_CHARACTERS + 1)},
         [("a", "x" * METADATA_TEXT_CHARACTERS)]),
        ({"n" * METADATA_NAME_CHARACTERS: 1, "n" * (METADATA_NAME_CHARACTERS + 1): 1},
         [("n" * METADATA_NAME_CHARACTERS, 1)]),
        ({"a": [*range(METADATA_VALUES_MAX)], "b": 1}, [("a", n) for n in range(METADATA_VALUES_MAX)]),
    ],
)  # fmt: skip
def test_what_filters_know_of_metadata(metadata: dict[str, Any] | None, known: list[tuple[str, Any]]) -> None:
    assert metadata_labels(metadata) == [metadata_label(*one) for one in known]
