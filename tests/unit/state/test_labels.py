"""Columns of an owner's index: labels, kinds of chats, usage and tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.limits import METADATA_NAME_CHARACTERS, METADATA_TEXT_CHARACTERS, METADATA_VALUES_MAX
from recallflow.state import tokens as module
from recallflow.state.index import OwnerIndex
from recallflow.state.labels import Labels, metadata_label, metadata_labels
from recallflow.state.tokens import NO_TOKENS, ONE, TokenIndex, Tokens, to_bytes
from recallflow.state.usage import OwnerUsage, Usage, decode_seqs, encode_seqs
from tests.unit.operators.harness import make_entry


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
def test_metadata_values_known_to_filters(metadata: dict[str, Any] | None, known: list[tuple[str, Any]]) -> None:
    assert metadata_labels(metadata) == [metadata_label(*one) for one in known]


Said = tuple[str | None, str | None, str | None]  # session, author, role

ANN, BO, CY = ("Ann", "user"), ("Bo", "user"), ("Cy", "user")
USER, BOT, FACT = ("user", "user"), ("assistant", "assistant"), (None, None)


def index_of(said: Sequence[Said]) -> OwnerIndex:
    index = OwnerIndex("model", 2)
    index.add(
        [
            make_entry(seq, episode=0, created_ms=seq, session_id=session, author=author, role=role)
            for seq, (session, author, role) in enumerate(said)
        ],
        {},
    )
    return index


def chat(session: str | None, *speakers: tuple[str | None, str | None]) -> list[Said]:
    return [(session, author, role) for author, role in speakers]


@pytest.mark.parametrize(
    ("said", "with_assistant", "of_two"),
    [
        (chat("s", USER, BOT), [1, 1], [0, 0]),
        (chat("s", ANN, BO), [0, 0], [1, 1]),
        (chat("s", ANN, BO, CY), [0, 0, 0], [0, 0, 0]),
        (chat("s", ANN, BO, BOT), [0, 0, 0], [1, 1, 1]),  # two people, who let a bot listen
        (chat("s", USER, USER), [1, 1], [0, 0]),  # notes
        (chat(None, FACT, FACT), [1, 1], [0, 0]),
        (chat("s", USER) + chat("t", USER), [1, 1], [0, 0]),
        (chat("s", ANN) + chat("t", BO), [0, 0], [1, 1]),  # neither session tells, both do
        (chat("s", ANN, BO) + chat("t", ANN) + chat(None, FACT), [0, 0, 0, 0], [1, 1, 1, 1]),
        (chat("s", USER, BOT) + chat("t", USER) + chat(None, FACT), [1, 1, 1, 1], [0, 0, 0, 0]),
        (chat("s", ANN, BOT) + chat("t", ANN, BO), [1, 1, 0, 0], [0, 0, 1, 1]),  # each session for itself
        (chat("s", ANN, BOT) + chat("t", ANN, BO, BO) + chat(None, FACT), [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1]),
    ],
)
def test_kind_of_chat_follows_the_speakers(said: list[Said], with_assistant: list[int], of_two: list[int]) -> None:
    index = index_of(said)
    by_arrival = index.conversation.places
    assert index.with_assistant[by_arrival].tolist() == [bool(one) for one in with_assistant]
    assert index.of_two[by_arrival].tolist() == [bool(one) for one in of_two]


def test_added_memories_change_the_kind_of_chat() -> None:
    index = index_of(chat("s", USER))
    assert index.with_assistant.all()
    index.add([make_entry(1, episode=0, created_ms=1, session_id="s", author="Bo", role="user")], {})
    assert not index.with_assistant.any()
    assert OwnerIndex("model", 2).with_assistant.tolist() == []


COUNTS = st.integers(0, 2**32 - 1)
USAGES = st.builds(Usage, st.integers(-(2**62), 2**62), COUNTS, COUNTS, COUNTS)


@given(used=USAGES)
def test_a_record_comes_back_as_it_was(used: Usage) -> None:
    assert Usage.decode(used.encode()) == used
    assert len(used.encode()) == 20


@pytest.mark.parametrize("data", [b"", b"x" * 19, b"x" * 40])
def test_another_size_is_no_record(data: bytes) -> None:
    with pytest.raises(ValueError, match="usage record"):
        Usage.decode(data)


@given(seqs=st.lists(st.integers(0, 2**62)))
def test_sequence_numbers_come_back_in_order(seqs: list[int]) -> None:
    assert decode_seqs(encode_seqs(seqs)).tolist() == seqs


@given(stored=st.dictionaries(st.integers(0, 40), USAGES), asked=st.lists(st.integers(0, 60)))
def test_stored_usage_is_found_and_others_are_zero(stored: dict[int, Usage], asked: list[int]) -> None:
    found = OwnerUsage((seq, used.encode()) for seq, used in stored.items()).of(np.array(asked, np.int64))
    assert [Usage(*record) for record in found.tolist()] == [stored.get(seq, Usage()) for seq in asked]


def test_answer_counts_once_per_memory_with_the_latest_time() -> None:
    usage = OwnerUsage([(3, Usage(500, 2, 1, 0).encode())])
    assert [Usage.decode(data) for data in usage.count([7, 3], 400)] == [Usage(400, 1), Usage(500, 3, 1, 0)]
    assert [Usage.decode(data) for data in usage.count([3], 600)] == [Usage(600, 4, 1, 0)]
    assert usage.of(np.array([7, 3, 5])).tolist() == [(400, 1, 0, 0), (600, 4, 1, 0), (0, 0, 0, 0)]


def test_liked_memories_have_more_useful_votes() -> None:
    judged = [Usage(useful=1), Usage(useful=2, not_useful=2), Usage(not_useful=1), Usage(useful=3, not_useful=2)]
    usage = OwnerUsage([(3, judged[3].encode())])
    assert [*usage.liked()] == [3]
    for seq in (2, 1, 0, 0):
        usage.put(seq, judged[seq])
    assert [*usage.liked()] == [3, 0]
    usage.put(3, judged[3].judged(useful=False))
    assert [*usage.liked()] == [0]


DIMENSION = 3
ROW = st.tuples(*[st.integers(-127, 127)] * DIMENSION)
MEMORIES = st.lists(st.lists(ROW, max_size=4), max_size=8)
QUESTION = st.lists(st.tuples(*[st.integers(-3, 3)] * DIMENSION), max_size=3)


def filled(
    memories: list[list[tuple[int, ...]]], cut: int = 0, sizes: dict[int, tuple[int, ...]] | None = None
) -> TokenIndex:
    """An index to which the memories were added in two calls. `sizes`: of memories that have several passages."""
    index = TokenIndex()
    rows = [
        Tokens(np.array(memory, np.int8) if memory else NO_TOKENS, (sizes or {}).get(at, ()))
        for at, memory in enumerate(memories)
    ]
    index.add(rows[:cut])
    index.add(rows[cut:])
    return index


@given(memories=MEMORIES, question=QUESTION, cut=st.integers(0, 8), data=st.data())
def test_question_token_takes_the_closest_token_of_a_memory(
    memories: list[list[tuple[int, ...]]], question: list[tuple[int, ...]], cut: int, data: st.DataObject
) -> None:
    index = filled(memories, cut)
    slots = data.draw(st.lists(st.integers(0, len(memories) - 1), max_size=6)) if memories else []
    asked = np.array(question, np.float32).reshape(len(question), DIMENSION)
    expected = [
        [max([0.0, *(float(np.dot(token, held)) for held in memories[slot])]) / ONE for slot in slots]
        for token in question
    ]
    closest = index.closest(asked, np.array(slots, np.int64), np.ones(len(asked)))
    np.testing.assert_allclose(closest, np.reshape(expected, (len(question), len(slots))), rtol=1e-5, atol=1e-6)


def test_long_memories_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    memories: list[list[tuple[int, ...]]] = [[(n % 100, 1, 2)] * (n % 5) for n in range(40)]
    index, asked, slots = filled(memories), np.eye(DIMENSION, dtype=np.float32), np.arange(40)
    whole = index.closest(asked, slots, np.ones(3))
    monkeypatch.setattr(module, "_ROWS", 7)
    np.testing.assert_array_equal(index.closest(asked, slots, np.ones(3)), whole)


PASSAGES = st.lists(st.lists(st.lists(ROW, max_size=3), min_size=1, max_size=4), min_size=1, max_size=6)


@given(memories=PASSAGES, question=QUESTION, cut=st.integers(0, 6), data=st.data())
def test_passage_with_the_highest_weighted_sum_counts(
    memories: list[list[list[tuple[int, ...]]]], question: list[tuple[int, ...]], cut: int, data: st.DataObject
) -> None:
    flat = [[row for passage in memory for row in passage] for memory in memories]
    sizes = {at: tuple(map(len, memory)) for at, memory in enumerate(memories) if len(memory) > 1}
    index = filled(flat, cut, sizes)
    slots = data.draw(st.lists(st.integers(0, len(memories) - 1), max_size=6))
    asked = np.array(question, np.float32).reshape(len(question), DIMENSION)
    weights = np.arange(1.0, len(question) + 1)

    def by_hand(passage: list[tuple[int, ...]]) -> list[float]:
        return [max([0.0, *(float(np.dot(token, held)) for held in passage)]) / ONE for token in question]

    best = [max(float(weights @ by_hand(passage)) for passage in memories[slot]) for slot in slots]
    found = index.closest(asked, np.array(slots, np.int64), weights)
    np.testing.assert_allclose(weights @ found, best, rtol=1e-4, atol=1e-5)
    for slot, column in zip(slots, found.T, strict=True):
        assert any(np.allclose(column, by_hand(passage), rtol=1e-4, atol=1e-5) for passage in memories[slot])


@given(st.lists(st.tuples(*[st.floats(-9, 9, width=32)] * DIMENSION), min_size=1, max_size=5))
def test_bytes_are_within_half_a_step_of_the_unit_vector(rows: list[tuple[float, ...]]) -> None:
    matrix = np.array(rows, np.float32)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    unit = np.divide(matrix, norms, out=np.zeros_like(matrix), where=norms > 0)
    assert np.abs(to_bytes(matrix) / ONE - unit).max() <= 0.5 / ONE + 1e-6


def test_index_takes_its_dimension_from_the_first_tokens() -> None:
    index = filled([[], []])
    assert index.dimension == 0
    assert index.closest(np.zeros((0, 0), np.float32), np.array([0, 1]), np.zeros(0)).shape == (0, 2)
    index.add([Tokens(np.array([[1, 2, 3]], np.int8))])
    assert index.dimension == 3
