"""Rows and columns of the index: what a record holds, and what a lookup finds."""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.embedder import Matrix
from recallflow.fields import EPOCH_MS_MAX, EPOCH_MS_MIN
from recallflow.limits import METADATA_NAME_CHARACTERS, METADATA_TEXT_CHARACTERS, METADATA_VALUES_MAX
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state import tokens as module
from recallflow.state.arrays import Ints
from recallflow.state.graph_codec import encode_row
from recallflow.state.hot_graph import (
    BITS,
    MAX_CACHED_VECTORS,
    SKETCH_BYTES,
    WINDOW,
    HotGraph,
    SketchWindow,
    max_differing_bits,
    sketches,
)
from recallflow.state.index import OwnerIndex
from recallflow.state.labels import Labels, metadata_label, metadata_labels
from recallflow.state.lexical import FEATURES, LexicalIndex
from recallflow.state.partition import Partition
from recallflow.state.rows import (
    CategorySummaryRow,
    Derivatives,
    Entry,
    EpisodeLogEntry,
    EpisodeRow,
    EpisodeSummaryRow,
    MemoryHead,
    MemoryRow,
    OwnerCounts,
    OwnerHead,
    Vectors,
)
from recallflow.state.tokens import NO_TOKENS, SCALE, TokenIndex, Tokens, to_bytes
from recallflow.state.usage import OwnerUsage, Usage, decode_seqs, encode_seqs
from recallflow.state.vectors import VectorIndex
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
    ("said", "with_assistant", "between_two"),
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
def test_kind_of_chat_follows_the_speakers(said: list[Said], with_assistant: list[int], between_two: list[int]) -> None:
    index = index_of(said)
    by_arrival = index.conversation.positions
    assert index.is_assistant_chat[by_arrival].tolist() == [bool(one) for one in with_assistant]
    assert index.is_chat_of_two[by_arrival].tolist() == [bool(one) for one in between_two]


def test_added_memories_change_the_kind_of_chat() -> None:
    index = index_of(chat("s", USER))
    assert index.is_assistant_chat.all()
    index.add([make_entry(1, episode=0, created_ms=1, session_id="s", author="Bo", role="user")], {})
    assert not index.is_assistant_chat.any()
    assert OwnerIndex("model", 2).is_assistant_chat.tolist() == []


COUNTS = st.integers(0, 2**32 - 1)
USAGES = st.builds(Usage, st.integers(-(2**62), 2**62), COUNTS, COUNTS, COUNTS)


@given(used=USAGES)
def test_a_record_comes_back_as_it_was(used: Usage) -> None:
    assert (Usage.decode(used.encode()), len(used.encode())) == (used, 20)


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
    assert [Usage.decode(data) for data in usage.record_returns([7, 3], 400)] == [Usage(400, 1), Usage(500, 3, 1, 0)]
    assert [Usage.decode(data) for data in usage.record_returns([3], 600)] == [Usage(600, 4, 1, 0)]
    assert usage.of(np.array([7, 3, 5])).tolist() == [(400, 1, 0, 0), (600, 4, 1, 0), (0, 0, 0, 0)]


def test_liked_memories_have_more_useful_votes() -> None:
    judged = [Usage(useful=1), Usage(useful=2, not_useful=2), Usage(not_useful=1), Usage(useful=3, not_useful=2)]
    usage = OwnerUsage([(3, judged[3].encode())])
    assert [*usage.liked()] == [3]
    for seq in (2, 1, 0, 0):
        usage.put(seq, judged[seq])
    assert [*usage.liked()] == [3, 0]
    usage.put(3, judged[3].with_feedback(useful=False))
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
        [max([0.0, *(float(np.dot(token, held)) for held in memories[slot])]) / SCALE for slot in slots]
        for token in question
    ]
    closest = index.closest(asked, np.array(slots, np.int64), np.ones(len(asked)))
    np.testing.assert_allclose(closest, np.reshape(expected, (len(question), len(slots))), rtol=1e-5, atol=1e-6)


def test_long_memories_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    memories: list[list[tuple[int, ...]]] = [[(n % 100, 1, 2)] * (n % 5) for n in range(40)]
    index, asked, slots = filled(memories), np.eye(DIMENSION, dtype=np.float32), np.arange(40)
    whole = index.closest(asked, slots, np.ones(3))
    monkeypatch.setattr(module, "_CHUNK_ROWS", 7)
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
        return [max([0.0, *(float(np.dot(token, held)) for held in passage)]) / SCALE for token in question]

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
    assert np.abs(to_bytes(matrix) / SCALE - unit).max() <= 0.5 / SCALE + 1e-6


Text = list[str]

# Few words, some spelt alike, one too short for a 4-gram, one outside ASCII: hits, misses and repeats are all common.
WORDS = ["cat", "cats", "catch", "dog", "hotdog", "x", "straße", "日本", "日"]
STEMS = st.sampled_from(WORDS)
TEXTS = st.lists(st.lists(STEMS, max_size=7), max_size=12)
ASKED = st.lists(st.sampled_from([*WORDS, "never", "said", "本"]), min_size=1, max_size=5)


def filled_lexical(texts: Sequence[Text], cuts: Sequence[int] = ()) -> LexicalIndex:
    """An index to which the texts were added in several calls, cut at the given places."""
    index = LexicalIndex()
    bounds = [0, *sorted(cut for cut in cuts if cut < len(texts)), len(texts)]
    for start, stop in pairwise(bounds):
        index.add(texts[start:stop])
    return index


def every(index: LexicalIndex) -> npt.NDArray[np.int64]:
    return np.arange(len(index.lengths()))


def closest(index: LexicalIndex, stems: Sequence[str], slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    return index.closest(stems, slots, np.ones(len(stems)))


def features(word: str) -> set[int]:
    marked = f"<{word}>"
    grams = {marked, *word} if word >= "日" else {marked} | {marked[at : at + 4] for at in range(len(marked) - 3)}
    return {zlib.crc32(gram.encode()) % FEATURES for gram in grams}


def similarity(one: str, other: str) -> float:
    a, b = features(one), features(other)
    return len(a & b) / math.sqrt(len(a) * len(b))


def counts(index: LexicalIndex, stems: Sequence[str]) -> Ints:
    slots = len(index.lengths())
    found = [np.bincount(index.occurrences(stem), minlength=slots) for stem in stems]
    return np.array(found, np.int64).reshape(len(stems), slots)


def occurs(word: str, held: str) -> bool:
    """A single character of a script without blanks occurs in each word that holds it."""
    return word in held if word in "日本" else word == held


@given(texts=TEXTS.filter(bool), asked=ASKED, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_counts_are_occurrences(texts: list[Text], asked: list[str], cuts: list[int]) -> None:
    index = filled_lexical(texts, cuts)
    assert counts(index, asked).tolist() == [
        [sum(occurs(word, held) for held in text) for text in texts] for word in asked
    ]
    assert index.lengths().tolist() == [len(text) for text in texts]


@given(texts=TEXTS.filter(bool), asked=ASKED, cut=st.integers(0, 12))
def test_the_closest_word_is_the_one_spelt_most_alike(texts: list[Text], asked: list[str], cut: int) -> None:
    index = filled_lexical(texts, [cut])
    expected = [[max((similarity(word, held) for held in text), default=0.0) for text in texts] for word in asked]
    np.testing.assert_allclose(closest(index, asked, every(index)), np.reshape(expected, (len(asked), -1)), rtol=1e-6)
    some = every(index)[::2]
    assert closest(index, asked, some).tolist() == closest(index, asked, every(index))[:, some].tolist()


@given(texts=TEXTS, cuts=st.lists(st.integers(0, 12), max_size=4))
def test_repeated_lookup_finds_later_additions(texts: list[Text], cuts: list[int]) -> None:
    index, whole = LexicalIndex(), filled_lexical(texts)
    for start, stop in pairwise([0, *sorted(cut for cut in cuts if cut < len(texts)), len(texts)]):
        index.add(texts[start:stop])
        for word in WORDS:
            index.occurrences(word)
    assert counts(index, WORDS).tolist() == counts(whole, WORDS).tolist()


def test_word_has_similarity_one_to_itself() -> None:
    words = ["a", "ab", "abc", "abcdefghijklmnopqrstuvwxyz", "aaaaaaaa", "日本語", "naïve"]
    index = filled_lexical([[word] for word in words])
    # Ranking takes a similarity above 0.9999 for the word itself.
    assert closest(index, words, every(index)).diagonal().min() > 0.9999
    assert [(row > 0.9999).sum() for row in closest(index, words, every(index))] == [1] * len(words)


@pytest.mark.parametrize("texts", [[], [[]], [[], []]])
def test_texts_without_words_hold_nothing(texts: list[Text]) -> None:
    index = filled_lexical(texts)
    nothing = [[0.0] * len(texts)]
    assert (closest(index, ["cat"], every(index)).tolist(), counts(index, ["cat"]).tolist()) == (nothing, nothing)
    assert index.lengths().tolist() == nothing[0]


def test_a_long_history_keeps_every_word() -> None:
    # Far beyond the arrays' first capacities, added one by one and all at once.
    texts: list[Text] = [[f"word{n}", f"word{n + 1}"] for n in range(2_000)]
    one_by_one, at_once = filled_lexical(texts, range(2_000)), filled_lexical(texts)
    for index in (one_by_one, at_once):
        assert counts(index, ["word1500"]).nonzero()[1].tolist() == [1499, 1500]
        last = every(at_once)[-3:]
    assert closest(one_by_one, ["word1999"], last).tolist() == closest(at_once, ["word1999"], last).tolist()


WORD_PASSAGES = st.lists(st.lists(st.lists(STEMS, max_size=3), min_size=1, max_size=4), min_size=1, max_size=8)
Passages = list[list[Text]]


def divided(memories: Passages, cuts: Sequence[int] = (), packed: bool = False) -> LexicalIndex:
    """An index of memories in passages, added in several calls, or packed in between."""
    index = LexicalIndex()
    for start, stop in pairwise([0, *sorted(cut for cut in cuts if cut < len(memories)), len(memories)]):
        some = memories[start:stop]
        sizes = {at: [*map(len, memory)] for at, memory in enumerate(some) if len(memory) > 1}
        part = LexicalIndex() if packed else index
        part.add([[stem for passage in memory for stem in passage] for memory in some], sizes)
        if packed:
            index.append(part.packed())
    return index


@given(memories=WORD_PASSAGES, cuts=st.lists(st.integers(0, 8), max_size=3), packed=st.booleans())
def test_part_scores_are_of_one_passage(memories: Passages, cuts: list[int], packed: bool) -> None:
    index = divided(memories, cuts, packed)
    flat = [(slot, passage) for slot, memory in enumerate(memories) for passage in memory]
    parts = index.parts()
    assert parts.slots.tolist() == [slot for slot, _ in flat]
    assert parts.lengths.tolist() == [len(passage) for _, passage in flat]
    assert parts.counts(every(index)).tolist() == [*map(len, memories)]
    assert [parts.slots[first] for first in parts.firsts] == [*range(len(memories))]
    assert index.has_parts == any(len(memory) > 1 for memory in memories)
    for word in WORDS:
        expected = [at for at, (_, passage) in enumerate(flat) for held in passage if occurs(word, held)]
        assert index.part_occurrences(word).tolist() == expected
    assert counts(index, WORDS).tolist() == [
        [sum(occurs(word, held) for passage in memory for held in passage) for memory in memories] for word in WORDS
    ]


@given(memories=WORD_PASSAGES, asked=ASKED, data=st.data())
def test_closest_words_are_of_the_best_weighted_passage(
    memories: Passages, asked: list[str], data: st.DataObject
) -> None:
    index, weights = divided(memories), np.arange(1.0, len(asked) + 1)
    slots = np.array(data.draw(st.lists(st.sampled_from(range(len(memories))), unique=True)), np.int64)

    def by_hand(passage: Text) -> list[float]:
        return [max((similarity(word, held) for held in passage), default=0.0) for word in asked]

    found = index.closest(asked, slots, weights)
    for slot, column in zip(slots, found.T, strict=True):
        passages = [by_hand(passage) for passage in memories[slot]]
        assert weights @ column == pytest.approx(max(weights @ one for one in passages), rel=1e-5)
        assert any(np.allclose(column, one, atol=1e-6) for one in passages)


def pairs(dimension: int, cosine: float, count: int, seed: int) -> list[tuple[Matrix, Matrix]]:
    """Pairs of unit vectors with the given cosine, in random directions."""
    draw = np.random.default_rng(seed)
    one, other = draw.standard_normal((2, count, dimension))
    one /= np.linalg.norm(one, axis=1, keepdims=True)
    other -= np.sum(one * other, axis=1, keepdims=True) * one
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    second = cosine * one + math.sqrt(1 - cosine * cosine) * other
    return list(zip(one.astype(np.float32), second.astype(np.float32), strict=True))


def sketch(vector: Matrix) -> bytes:
    return sketches([vector])[0]


def differing(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()


@pytest.mark.parametrize("dimension", [4, 256, 384])
@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.85, 0.99])
def test_sketches_differ_as_the_angle_says(dimension: int, cosine: float) -> None:
    bits = [differing(sketch(one), sketch(other)) for one, other in pairs(dimension, cosine, 500, seed=1)]
    assert np.mean(bits) == pytest.approx(BITS * math.acos(cosine) / math.pi, abs=8)
    assert sum(found > max_differing_bits(cosine) for found in bits) <= 1


def test_sketch_does_not_depend_on_its_batch() -> None:
    # Stored sketches are compared with new ones: other hyperplanes would be another format.
    draw = np.random.RandomState(0)
    rows = draw.standard_normal((60, 384)).astype(np.float32)
    planes = np.random.RandomState(BITS).standard_normal((BITS, 384)).astype(np.float32)
    rows[20:40] -= np.outer(rows[20:40] @ planes[7] / (planes[7] @ planes[7]), planes[7])  # hardly off a hyperplane
    rows[50] = 0
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    alone = [sketch(row) for row in rows]
    assert sketches([*rows]) == sketches([*np.asfortranarray(rows)]) == alone
    assert sketches([*rows[::-1]]) == alone[::-1]
    assert alone[0].hex() == "211a825b797400dd06b2f6b69ea161666387a6a544944055a921bbabfcb3e0b9"
    assert ({len(one) for one in alone}, sketches([])) == ({SKETCH_BYTES}, [])


SKETCHES = [bytes([value]) * SKETCH_BYTES for value in (0x00, 0x01, 0x03, 0x0F, 0xFF)]
CHANGES = st.lists(st.tuples(st.integers(0, 3 * WINDOW), st.sampled_from([None, *SKETCHES])), max_size=12)


@given(changes=CHANGES, asked=st.sampled_from(SKETCHES), most=st.integers(0, BITS))
def test_window_holds_the_newest_sequence_numbers(
    changes: list[tuple[int, bytes | None]], asked: bytes, most: int
) -> None:
    window, there = SketchWindow(), dict[int, bytes]()
    newest = max((seq for seq, _ in changes), default=0)
    for seq, found in changes:
        if found is None:
            window.remove(seq)
            there.pop(seq, None)
        else:
            window.put(seq, found)
            there[seq] = found
    distances = {seq: differing(found, asked) for seq, found in there.items() if seq > newest - WINDOW}
    expected = sorted((seq for seq in distances if distances[seq] <= most), key=lambda seq: (distances[seq], -seq))
    assert window.near(asked, most, newest) == expected


@pytest.mark.parametrize("rounds", [1, 2])
def test_late_sketch_does_not_replace_a_newer_one(rounds: int) -> None:
    window, newer = SketchWindow(), 7 + rounds * WINDOW
    window.put(newer, SKETCHES[0])
    window.put(7, SKETCHES[-1])
    window.remove(7)
    assert (window.near(SKETCHES[0], 0, newer), window.near(SKETCHES[-1], 0, newer)) == ([newer], [])


def test_a_window_grows_to_its_size_and_no_further() -> None:
    window = SketchWindow()
    small = window.size_bytes()
    for seq in range(3 * WINDOW):
        window.put(seq, SKETCHES[0])
    assert small < window.size_bytes() == WINDOW * (SKETCH_BYTES + 8 + 4 + 1)  # place, distance, near


Row = tuple[int, ...]

ROWS = st.tuples(*[st.integers(-3, 3)] * DIMENSION)
ROUNDED = 0.5 / 127 + 1e-5  # how far a byte is from the number it stands for, as a share of its row's largest
VECTOR_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.lists(ROWS, max_size=3), min_size=1, max_size=4)),
        st.tuples(st.just("remove"), st.integers(0, 30)),
    ),
    max_size=12,
)


class Model:
    """Rows by slot, in the order in which they were added."""

    def __init__(self) -> None:
        self.index = VectorIndex(DIMENSION)
        self.rows: list[tuple[int, Row]] = []
        self.slots = 0

    def add(self, groups: list[list[Row]]) -> None:
        added = [(self.slots + at, row) for at, group in enumerate(groups) for row in group]
        self.slots += len(groups)
        self.rows += added
        if added:
            self.index.add(np.array([s for s, _ in added]), np.array([r for _, r in added], np.float32))

    def remove(self, slot: int) -> None:
        self.rows = [(s, row) for s, row in self.rows if s != slot]
        self.index.remove(slot)


def changed(changes: list[tuple[str, object]]) -> Model:
    model = Model()
    for action, what in changes:
        getattr(model, action)(what)
        model.index.cosines(np.zeros(DIMENSION, np.float32))  # what is cached must not outlive the next change
    return model


@given(changes=VECTOR_CHANGES, query=ROWS)
def test_cosine_of_a_slot_is_that_of_its_best_row(changes: list[tuple[str, object]], query: Row) -> None:
    model = changed(changes)
    cosines, slots = model.index.cosines(np.array(query, np.float32))
    assert slots.tolist() == list(dict.fromkeys(slot for slot, _ in model.rows))
    for found, slot in zip(cosines, slots, strict=True):
        rows = [row for of, row in model.rows if of == slot]
        exact = [float(np.dot(row, query)) for row in rows]
        rounded = ROUNDED * max(abs(number) for row in rows for number in row) * sum(map(abs, query))
        assert abs(found - max(exact)) <= rounded
        each = model.index.cosines_of(np.array(query, np.float32), int(slot))
        assert np.abs(each - exact).max() <= rounded
        assert each.max() == pytest.approx(found, abs=1e-5)
    assert len(model.index) == len(model.rows)


@given(changes=VECTOR_CHANGES, data=st.data())
def test_vector_of_a_slot_is_its_row_or_their_mean(changes: list[tuple[str, object]], data: st.DataObject) -> None:
    model = changed(changes)
    # Slots in any order and repeated; removed ones, rowless ones and ones never given among them.
    asked = data.draw(st.lists(st.integers(0, model.slots + 2), max_size=10))
    for slot, found in zip(asked, model.index.of(np.array(asked, np.int64)), strict=True):
        rows = np.array([row for of, row in model.rows if of == slot] or [(0,) * DIMENSION], np.float64)
        rounded = len(rows) * ROUNDED * np.abs(rows).max()
        if len(rows) == 1:
            assert np.abs(found - rows[0]).max() <= rounded
        else:
            total = rows.sum(axis=0)
            length = np.linalg.norm(total)  # whole numbers: 0, or 1 at least
            assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5) or length <= 4 * rounded
            assert np.abs(found * length - total).max() <= 8 * rounded


@given(rows=st.integers(2, 200), before=st.integers(1, 17), seed=st.integers(0, 1_000))
def test_cosine_is_bit_identical_at_any_position(rows: int, before: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((before + rows, 48)).astype(np.float32)
    query = random.standard_normal(48).astype(np.float32)
    everything, behind = VectorIndex(48), VectorIndex(48)
    everything.add(np.arange(before + rows), vectors)
    behind.add(np.arange(rows), vectors[before:])
    assert everything.cosines(query)[0][before:].tobytes() == behind.cosines(query)[0].tobytes()


@given(seed=st.integers(0, 1_000), held=st.integers(1, 384))
def test_a_cosine_moves_by_less_than_a_hundredth(seed: int, held: int) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal((2, 384)) * (draw.permutation(384) < held)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    stored, query = rows.astype(np.float32)
    index = VectorIndex(384)
    index.add(np.array([0]), stored.reshape(1, -1))
    assert index.cosines(query)[0][0] == pytest.approx(float(stored @ query), abs=0.01)


def test_a_result_is_unharmed_by_later_changes() -> None:
    # Rows are read without a copy: what was handed out must not be memory that FAISS moves.
    model = Model()
    model.add([[(1, 0, 0)], [(0, 1, 0)]])
    cosines, slots = model.index.cosines(np.array([1, 0, 0], np.float32))
    own = model.index.of(np.array([0, 1]))
    model.remove(0)
    model.add([[(5, 5, 5)]] * 500)
    assert ((cosines.tolist(), slots.tolist()), own.tolist()) == (([1, 0], [0, 1]), [[1, 0, 0], [0, 1, 0]])


OWNER = b"o" * keys.OWNER_BYTES


def vectors(number: int, model: str = "m") -> Vectors:
    return Vectors(model, np.eye(1, 4, number % 4, dtype=np.float32))


def first_numbers(graph: HotGraph, *seqs: int, model: str = "m") -> dict[int, float]:
    found, wholes = graph.memory_vectors(seqs, model, 4)
    return dict(zip(found, wholes[:, 0].tolist(), strict=True))


def test_kept_vectors_follow_changes(opened: Callable[..., Partition]) -> None:
    partition = opened()
    partition.stage({keys.vectors(OWNER, seq): vectors(seq).encode() for seq in range(3)})
    graph = HotGraph(partition, OWNER, was_empty=False)
    assert first_numbers(graph, 0, 1, 9) == {0: 1.0, 1: 0.0}
    partition.stage({keys.vectors(OWNER, 0): vectors(1).encode(), keys.vectors(OWNER, 1): None})
    graph.put_vectors(0, vectors(1))
    graph.put_vectors(1, None)
    assert first_numbers(graph, 0, 1, 2) == {0: 0.0, 2: 0.0}
    partition.stage({keys.vectors(OWNER, 0): vectors(0, "other").encode()})
    graph.put_vectors(0, vectors(0, "other"))
    assert (first_numbers(graph, 0), first_numbers(graph, 0, model="other")) == ({}, {0: 1.0})


def test_vectors_beyond_the_newest_are_read_again(opened: Callable[..., Partition]) -> None:
    partition = opened()
    partition.stage({keys.vectors(OWNER, seq): vectors(seq).encode() for seq in (3, 4)})
    graph = HotGraph(partition, OWNER, was_empty=False)
    assert first_numbers(graph, 3, 4) == {3: 0.0, 4: 1.0}
    graph.put_vectors(3 + MAX_CACHED_VECTORS, vectors(0))
    assert first_numbers(graph, 4, 3, 3 + MAX_CACHED_VECTORS) == {4: 1.0, 3: 0.0, 3 + MAX_CACHED_VECTORS: 1.0}


def test_kept_vectors_are_bounded(opened: Callable[..., Partition]) -> None:
    graph = HotGraph(opened(), OWNER, was_empty=True)
    assert first_numbers(graph, 0) == {}
    before = graph.size_bytes()
    for seq in range(3 * MAX_CACHED_VECTORS):
        graph.put_vectors(seq, vectors(seq))
    assert before < graph.size_bytes() <= before + MAX_CACHED_VECTORS * 1_000


# All of Unicode but lone surrogates, which no JSON text holds; NUL and line ends among them.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIME = st.integers(EPOCH_MS_MIN, EPOCH_MS_MAX)  # the years 1 to 9999: before 1970 is negative
SEQ = st.integers(0, 2**63 - 1)
VERSION = st.integers(0, 2**31 - 1)
SHARE = st.floats(0, 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)

ROW_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": TEXT, "seq": SEQ, "version": VERSION, "change": SEQ, "content": TEXT, "created_ms": TIME,
    "ingested_ms": TIME, "created_logged": st.booleans(), "ingested_logged": st.booleans(), "kind": TEXT,
    "layer": TEXT, "role": st.none() | TEXT, "name": st.none() | TEXT, "session_id": st.none() | TEXT,
    "project_id": st.none() | TEXT, "summary": st.none() | TEXT, "category": st.none() | TEXT,
    "tags": st.lists(TEXT, max_size=3), "topics": st.lists(TEXT, max_size=3),
    "entities": st.lists(OBJECT, max_size=2), "relations": st.lists(OBJECT, max_size=2), "importance": SHARE,
    "confidence": SHARE, "valid_from_ms": st.none() | TIME, "valid_to_ms": st.none() | TIME,
    "expires_ms": st.none() | TIME, "metadata": st.none() | OBJECT, "edited_ms": st.none() | TIME,
    "edited_logged": st.booleans(),
}  # fmt: skip
ENTRY_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    name: ROW_FIELDS[name] for name in Entry._fields if name in ROW_FIELDS
} | {
    "episode": st.integers(-1, 2**63 - 1), "flags": st.integers(0, 255), "author": st.none() | TEXT,
    "author_stems": TEXT, "stems": TEXT, "metadata": st.lists(TEXT, max_size=3),
}  # fmt: skip
EPISODE_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "number": SEQ, "id": TEXT, "session_id": st.none() | TEXT, "start_ms": TIME, "last_ms": TIME,
    "ended_ms": st.none() | TIME, "merged_into": st.none() | SEQ, "logged": st.booleans(), "of_facts": st.booleans(),
    "summarised": st.booleans(),
}  # fmt: skip
ROW_FIELDS |= {"derived_from": st.none() | OBJECT, "filled": st.lists(TEXT, max_size=3)}
MEMORY_ROWS = st.builds(MemoryRow, **ROW_FIELDS)
EPISODES = st.builds(EpisodeRow, **EPISODE_FIELDS)


def test_the_properties_below_vary_every_field() -> None:
    assert ROW_FIELDS.keys() == {f.name for f in fields(MemoryRow)}
    assert ENTRY_FIELDS.keys() == set(Entry._fields)
    assert EPISODE_FIELDS.keys() == set(EpisodeRow._fields)


SEQS = st.lists(SEQ, max_size=3)
RECORDS: list[st.SearchStrategy[Any]] = [
    MEMORY_ROWS, st.builds(Entry, **ENTRY_FIELDS), EPISODES,
    st.builds(EpisodeLogEntry, SEQ, TIME, st.none() | TEXT, st.none() | TIME, st.none() | EPISODES),
    st.builds(EpisodeSummaryRow, SEQ, TIME, SEQ, TEXT),
    st.builds(Derivatives, SEQS, st.lists(st.tuples(TEXT, SEQ), max_size=3), SEQS),
    st.builds(CategorySummaryRow, SEQ, TIME, TEXT, TEXT, SEQS),
    st.builds(MemoryHead, SEQ, VERSION, TEXT, st.booleans(), SEQ),
]  # fmt: skip


@pytest.mark.parametrize("records", RECORDS)
@given(data=st.data())
def test_encoded_record_decodes_to_itself(records: st.SearchStrategy[Any], data: st.DataObject) -> None:
    record = data.draw(records)
    encoded = record.encode() if isinstance(record, MemoryRow) else encode_row(record)
    assert type(record).decode(encoded) == record


@given(
    head=st.builds(
        OwnerHead, st.builds(Owner, TEXT, TEXT, TEXT), SEQ, SEQ, st.none() | TIME, st.integers(0, 7),
        st.builds(OwnerCounts, SEQ, SEQ, SEQ),
    )
)  # fmt: skip
def test_an_owner_head_round_trips(head: OwnerHead) -> None:
    decoded = OwnerHead.decode(head.encode())
    assert decoded == head
    assert isinstance(decoded.owner, Owner)


@given(model=TEXT, rows=st.integers(0, 4), dimension=st.integers(1, 8), data=st.data())
def test_vectors_round_trip_bit_by_bit(model: str, rows: int, dimension: int, data: st.DataObject) -> None:
    size = rows * dimension
    floats = data.draw(st.lists(st.floats(width=32, allow_nan=False), min_size=size, max_size=size))
    matrix = np.array(floats, np.float32).reshape(rows, dimension)
    decoded = Vectors.decode(Vectors(model, matrix).encode())
    assert (decoded.model, decoded.matrix.shape, decoded.matrix.dtype) == (model, matrix.shape, matrix.dtype)
    assert decoded.matrix.tobytes() == matrix.tobytes()


@given(tokens=st.integers(1, 3), dimension=st.integers(1, 4), data=st.data())
def test_token_vectors_round_trip(tokens: int, dimension: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(-127, 127), min_size=tokens * dimension, max_size=tokens * dimension))
    rows = np.array(numbers, np.int8).reshape(tokens, dimension)
    matrix = np.array([[1, 0.5]], np.float32)
    decoded = Vectors.decode(Vectors("m", matrix, rows).encode())
    assert decoded.tokens.tolist() == rows.tolist()
    assert decoded.matrix.tolist() == matrix.tolist()
    assert Vectors.decode(Vectors("m", matrix, rows[:0]).encode()).tokens.shape == (0, 0)


def test_the_tokens_of_several_passages_round_trip_with_their_sizes() -> None:
    several = Vectors("m", np.eye(3, dtype=np.float32), np.arange(8, dtype=np.int8).reshape(4, 2), (3, 0, 1))
    decoded = Vectors.decode(several.encode())
    assert (decoded.sizes, decoded.tokens.tolist()) == ((3, 0, 1), several.tokens.tolist())
    assert decoded.encode() == several.encode()
    np.testing.assert_allclose(decoded.whole, [3**-0.5] * 3, rtol=1e-6)
    assert Vectors("m", np.array([[3, 4]], np.float32)).whole.tolist() == [3, 4]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("tokens", [0, 5])
def test_whole_vector_is_read_alone_if_of_the_model(rows: int, tokens: int) -> None:
    matrix = np.eye(8, dtype=np.float32)[:rows]
    sizes = (tokens - 2, 1, 1) if rows > 1 and tokens else ()
    stored = Vectors("m", matrix, np.ones((tokens, 4), np.int8), sizes)
    found = Vectors.read_whole(stored.encode(), "m", 8)
    assert found is not None
    assert found.tolist() == stored.whole.tolist()
    assert Vectors.read_whole(stored.encode(), "n", 8) is None
    assert Vectors.read_whole(stored.encode(), "m1", 8) is None


def test_vectors_are_stored_as_little_endian_floats_row_by_row() -> None:
    # The bytes are hashed into the state hash: another layout is another format version.
    matrix = np.array([[1.0, -2.0], [0.5, 0.0]], np.float32)
    header = bytes([2, 0, 2, 0, 2, 0, 0, 0])
    floats = bytes.fromhex("0000803f 000000c0 0000003f 00000000")
    assert Vectors("mö", matrix[:0]).encode() == bytes([3, 0, 0, 0, 2, 0, 0, 0]) + "mö".encode()
    assert Vectors("ab", matrix).encode() == header + b"ab" + floats


@pytest.mark.parametrize("order", ["C", "F"])
def test_matrix_is_stored_by_rows_in_any_memory_layout(order: Any) -> None:
    matrix = np.array([[1, 2, 3], [4, 5, 6]], np.float32, order=order)
    assert Vectors.decode(Vectors("m", matrix).encode()).matrix.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert Vectors.decode(Vectors("m", matrix[:, ::2]).encode()).matrix.tolist() == [[1, 3], [4, 6]]


def test_numbers_beyond_64_bits_are_refused_and_not_rounded() -> None:
    row = MemoryRow("m", 0, 0, 0, "", 0, 0, metadata={"n": 2**64})
    with pytest.raises(orjson.JSONEncodeError):
        row.encode()


def test_the_author_is_the_name_or_else_the_role() -> None:
    def author(**told: Any) -> str | None:
        return MemoryRow("m", 0, 0, 0, "", 0, 0, **told).author

    assert (author(name="Ann", role="user"), author(role="user")) == ("Ann", "user")
    assert author() is None


@given(row=MEMORY_ROWS, created=TIME, ingested=TIME, edited=TIME)
def test_unlogged_times_stay_out_of_the_hash(row: MemoryRow, created: int, ingested: int, edited: int) -> None:
    logical = row.logged_fields()
    assert ("created_ms" in logical, "ingested_ms" in logical) == (row.created_logged, row.ingested_logged)
    assert ("edited_ms" in logical) == row.edited_logged
    assert logical.keys() >= ROW_FIELDS.keys() - {"created_ms", "ingested_ms", "edited_ms"}
    stamped = MemoryRow(
        **{f.name: getattr(row, f.name) for f in fields(row)}
        | {
            "created_ms": row.created_ms if row.created_logged else created,
            "ingested_ms": row.ingested_ms if row.ingested_logged else ingested,
            "edited_ms": row.edited_ms if row.edited_logged else edited,
        }
    )
    assert stamped.logged_fields() == logical


@given(episode=EPISODES, at_ms=TIME)
def test_episode_with_an_unlogged_time_is_hashed_without_span(episode: EpisodeRow, at_ms: int) -> None:
    moved = episode._replace(start_ms=at_ms, last_ms=at_ms, ended_ms=at_ms)
    span = {"start_ms", "last_ms", "ended_ms"}
    assert episode.logged_fields().keys() & span == (span if episode.logged else set())
    if not episode.logged:
        assert moved.logged_fields() == episode.logged_fields()


@pytest.mark.parametrize("stored", [b"{}", b"[]", b'["m",0,0,0,"",0,0]', b'"m"'])
def test_invalid_memory_row_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="memory row"):
        MemoryRow.decode(stored)
