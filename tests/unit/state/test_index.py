"""An updated index equals a new one, and filters pass matching memories."""

import gc
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.recall.filters import Filtering, valid
from recallflow.operators.recall.moment import Moment
from recallflow.queries import Filters
from recallflow.state.graph import OwnerGraph
from recallflow.state.graph_codec import encode_row
from recallflow.state.index import MAX_NEIGHBOURS, NEIGHBOURS, OwnerIndex
from recallflow.state.rows import Entry, EpisodeRow, Vectors
from recallflow.state.segment import Segment
from recallflow.state.tokens import NO_TOKENS, SCALE
from tests.unit.operators.harness import make_entry

MODEL, DIMENSION, TOKEN_DIMENSION = "model", 2, 3
QUERY = np.array([3, 1], np.float32)
QUERY_TOKENS = np.array([[1, 0, 0]], np.float32)
WORDS = ["red", "bike", "rides", "far"]
NAMED = ("author", "kind", "layer", "role", "session", "project", "category")
NUMBERS = ("seq", "version", "created_ms", "episode", "flags", "importance", "confidence")
TIMES = ("valid_from_ms", "valid_to_ms", "expires_ms")


def optional(values: list[str]) -> st.SearchStrategy[str | None]:
    return st.none() | st.sampled_from(values)


# What an event may say of a memory. Few values of each, so that filters and merges hit often.
SAID = st.fixed_dictionaries(
    {
        "created_ms": st.integers(-3, 6),
        "flags": st.integers(0, 7),
        "author": optional(["Ann", "Bo", "user", "fact"]),
        "author_stems": st.sampled_from(["", "ann", "bo"]),
        "stems": st.lists(st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join), max_size=3).map("\n".join),
        "kind": st.sampled_from(["message", "fact", "rule"]),
        "layer": st.sampled_from(["rule", "working", "long_term"]),
        "role": optional(["user", "assistant"]),
        "session_id": optional(["s", "t"]),
        "project_id": optional(["p", "s"]),  # a project may be called like a session
        "category": optional(["work", "p"]),
        "tags": st.lists(st.sampled_from(["x", "y", "work"]), max_size=2),
        "metadata": st.lists(st.sampled_from(["x", "y", "work"]), max_size=2),  # as labels
        "importance": st.sampled_from([0.0, 0.5, 1.0]),
        "confidence": st.sampled_from([0.0, 0.3, 0.6, 1.0]),
        "valid_from_ms": st.sampled_from([None, None, None, None, -1, 2, 5]),
        "valid_to_ms": st.sampled_from([None, None, None, None, -1, 2, 5]),
        "expires_ms": st.sampled_from([None, None, None, None, -1, 2, 5]),
    }
)
# Whole numbers, so that sums are exact in any order. Vectors of another model may not meet these; a text may have none.
ROW = st.tuples(st.integers(-2, 2), st.integers(-2, 2))
TOKENS = st.lists(st.tuples(*[st.integers(-2, 2)] * TOKEN_DIMENSION), max_size=3)


def vectors_of(model: str, passages: list[tuple[tuple[int, ...], list[tuple[int, ...]]]]) -> Vectors:
    """The vectors of a memory: of each passage a row, and tokens."""
    tokens = [token for _, found in passages for token in found]
    sizes = tuple(len(found) for _, found in passages) if len(passages) > 1 and tokens else ()
    held = np.array(tokens, np.int8) if tokens else NO_TOKENS
    return Vectors(model, np.array([row for row, _ in passages], np.float32), held, sizes)


VECTORS = st.none() | st.builds(
    vectors_of, st.sampled_from([MODEL, MODEL, MODEL, "another"]),
    st.lists(st.tuples(ROW, TOKENS), min_size=1, max_size=3),
)  # fmt: skip
PICK = st.integers(0, 50)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SAID, VECTORS, PICK), st.tuples(st.just("add"), SAID, VECTORS, PICK),
        st.tuples(st.just("update"), SAID, VECTORS, PICK), st.tuples(st.just("remove"), PICK),
        st.tuples(st.just("merge"), PICK, PICK), st.tuples(st.just("read")),
    ),
    max_size=25,
)  # fmt: skip


@dataclass
class World:
    index: OwnerIndex = field(default_factory=lambda: OwnerIndex(MODEL, DIMENSION))
    entries: dict[int, Entry] = field(default_factory=dict)
    vectors: dict[tuple[int, int], Vectors | None] = field(default_factory=dict)
    episodes: dict[int, EpisodeRow] = field(default_factory=dict)
    seq: int = 0

    def add(self, said: dict[str, Any], vectors: Vectors | None, pick: int) -> None:
        """A new memory: outside any episode, opening one, or in an open one."""
        seq, self.seq = self.seq, self.seq + 1
        standing = [e.number for e in self.episodes.values() if e.merged_into is None]
        episode = [-1, seq, *standing][pick % (2 + len(standing))]
        if episode == seq:
            self._put(EpisodeRow(seq, f"ep_{seq}", "s", 0, 0))
        self._store(make_entry(seq, **said | {"episode": episode}), vectors)

    def update(self, said: dict[str, Any], vectors: Vectors | None, pick: int) -> None:
        """The next version, as the state knows it: its episode is still the one it once joined."""
        if self.entries:
            before = list(self.entries.values())[pick % len(self.entries)]
            kept = {"id": before.id, "episode": before.episode, "version": before.version + 1}
            self._store(make_entry(before.seq, **said | kept), vectors)

    def remove(self, pick: int) -> None:
        if self.entries:
            seq = list(self.entries)[pick % len(self.entries)]
            del self.vectors[seq, self.entries[seq].version], self.entries[seq]
            self.index.remove(seq)

    def merge(self, one: int, other: int) -> None:
        """The episode that is older takes the other one in."""
        standing = [e for e in self.episodes.values() if e.merged_into is None]
        if len(standing) > 1:
            into, taken = sorted({one % len(standing), (one + 1 + other % (len(standing) - 1)) % len(standing)})
            self._put(standing[into]._replace(last_ms=9))
            self._put(standing[taken]._replace(merged_into=standing[into].number))

    def read(self) -> None:
        self.index.clusters.cosines(np.arange(self.index.conversation.size))
        assert all(self.index.stem_occurrences[word].memory_count <= len(self.index) for word in WORDS)

    def built_anew(self) -> OwnerIndex:
        index = OwnerIndex(MODEL, DIMENSION)
        for number in sorted(self.episodes):
            index.put_episode(self.episodes[number])
        index.add(sorted(self.entries.values(), key=lambda e: e.seq), self.vectors)
        return index

    def unpacked(self, cuts: list[int]) -> OwnerIndex:
        """Loaded from segments that were cut anywhere, encoded and decoded, and the last of it from entries."""
        index = OwnerIndex(MODEL, DIMENSION, self._read)
        index.load_episodes({number: encode_row(episode) for number, episode in self.episodes.items()})
        *packed, rest = self._stretches(cuts)
        for entries in packed:
            part = OwnerIndex(MODEL, DIMENSION)
            part.add(entries, self.vectors)
            segment = Segment.decode(part.packed(0).encode(MODEL), MODEL, DIMENSION)
            assert segment is not None
            index.append(segment)
        index.add(rest, self.vectors)
        return index

    def repacked(self, cuts: list[int]) -> OwnerIndex:
        """Loaded from one segment that was made of others."""
        whole, index = OwnerIndex(MODEL, DIMENSION), OwnerIndex(MODEL, DIMENSION, self._read)
        for entries in self._stretches(cuts):
            part = OwnerIndex(MODEL, DIMENSION)
            part.add(entries, self.vectors)
            whole.append(part.packed(0))
        index.load_episodes({number: encode_row(episode) for number, episode in self.episodes.items()})
        index.append(whole.packed(0))
        return index

    def _stretches(self, cuts: list[int]) -> list[list[Entry]]:
        entries = sorted(self.entries.values(), key=lambda e: e.seq)
        ends = sorted({min(cut, len(entries)) for cut in cuts})
        return [entries[first:end] for first, end in zip([0, *ends], [*ends, len(entries)], strict=True)]

    def _read(self, seqs: npt.NDArray[np.int64]) -> list[Vectors | None]:
        return [self.vectors[seq, self.entries[seq].version] for seq in seqs.tolist()]

    def _put(self, episode: EpisodeRow) -> None:
        self.episodes[episode.number] = episode
        self.index.put_episode(episode)

    def _store(self, entry: Entry, vectors: Vectors | None) -> None:
        self.entries[entry.seq], self.vectors[entry.seq, entry.version] = entry, vectors
        self.index.add([entry], {(entry.seq, entry.version): vectors})


def held_in_parts(index: OwnerIndex, word: str) -> list[tuple[str, int]]:
    """The memory and the passage of each occurrence of a word."""
    parts, positions = index.words.parts(), index.conversation.positions
    at = index.words.part_occurrences(word)
    slots = parts.slots[at]
    numbers = zip(slots.tolist(), (at - parts.firsts[slots]).tolist(), strict=True)
    return sorted((index.ids[slot], number) for slot, number in numbers if positions[slot] >= 0)


def alive(index: OwnerIndex, tag: str) -> list[int]:
    slots: list[int] = index.conversation.slots[index.conversation.live_positions(index.tags.slots(tag))].tolist()
    return slots


def picture(index: OwnerIndex) -> dict[str, Any]:
    conversation, names = index.conversation, index.names.strings
    facts, slots = conversation.facts, conversation.slots
    cosines, of = index.vectors.cosines(QUERY)
    return {
        "ids": [index.ids[slot] for slot in slots], "tags": [index.tags[slot] for slot in slots],
        "metadata": [index.metadata[slot] for slot in slots],
        "labelled": {tag: sorted(index.ids[slot] for slot in alive(index, tag)) for tag in ("x", "y", "work")},
        "named": {column: [names[n] if n >= 0 else None for n in facts[column]] for column in NAMED},
        "numbers": {column: facts[column].tolist() for column in (*NUMBERS, *TIMES)},
        "segments": conversation.episode_ordinal.tolist(), "starts": conversation.starts.tolist(),
        "opens": conversation.starts_episode.tolist(),
        "windows": [np.stack(conversation.window(reach)).tolist() for reach in (NEIGHBOURS, MAX_NEIGHBOURS)],
        "authors": {names[author] if author >= 0 else None for author in conversation.authors},
        "cosines": sorted((index.ids[slot], float(cosine)) for slot, cosine in zip(of, cosines, strict=True)),
        "tokens": index.tokens.closest(QUERY_TOKENS, slots, np.ones(1)).tolist(),
        "rows": [index.vectors.cosines_of(QUERY, slot).tolist() for slot in slots.tolist()],
        "parts": index.words.parts().counts(slots).tolist(), "in parts": [held_in_parts(index, word) for word in WORDS],
        "clusters": index.clusters.cosines(np.arange(conversation.size)).tolist(),
        "centroids": index.clusters.centroids(np.arange(len(conversation.starts))).tolist(),
        "lengths": index.words.lengths()[slots].tolist(),
        "counts": [(index.words.occurrences(word) == slots[:, np.newaxis]).sum(axis=1).tolist() for word in WORDS],
        "standing": [(sorted((o := index.stem_occurrences[word]).positions), o.memory_count) for word in WORDS],
        "asking": index.asks.tolist(), "answering": index.answers_question.tolist(),
        "closest": index.words.closest(WORDS, slots, np.ones(len(WORDS))).tolist(),
        "positions": conversation.positions[slots].tolist(),
        "episodes": sorted(episode.number for episode in index.episodes()), "size": len(index),
    }  # fmt: skip


@given(changes=CHANGES, cuts=st.lists(st.integers(0, 12), max_size=3), later=CHANGES)
def test_index_from_segments_equals_one_built_anew(
    changes: list[tuple[Any, ...]], cuts: list[int], later: list[tuple[Any, ...]]
) -> None:
    world = World()
    for action, *arguments in changes:
        getattr(world, action)(*arguments)
    anew = world.built_anew()
    bytes_anew = anew.live_bytes()
    assert picture(world.index) == picture(anew)
    for index in (world.unpacked(cuts), world.repacked(cuts)):
        assert picture(index) == picture(anew)
        assert index.live_bytes() == world.index.live_bytes() == bytes_anew
        assert [index.slot(seq) for seq in range(world.seq + 1)] == [anew.slot(seq) for seq in range(world.seq + 1)]
        assert sorted(index.episodes()) == sorted(anew.episodes())
    world.index = world.unpacked(cuts)
    for action, *arguments in later:
        getattr(world, action)(*arguments)
    assert picture(world.index) == picture(world.built_anew())


def test_tokens_are_read_once_for_compared_memories_only() -> None:
    entries = [make_entry(seq) for seq in range(4)]
    rows = np.array([[SCALE, 0, 0]], np.int8)
    vectors: dict[tuple[int, int], Vectors | None] = {
        (seq, 0): Vectors(MODEL, np.ones((1, DIMENSION), np.float32), rows) for seq in range(4)
    }
    part, asked = OwnerIndex(MODEL, DIMENSION), list[int]()
    part.add(entries, vectors)

    def read(seqs: npt.NDArray[np.int64]) -> list[Vectors | None]:
        asked.extend(seqs.tolist())
        return [vectors[seq, 0] for seq in seqs.tolist()]

    index = OwnerIndex(MODEL, DIMENSION, read)
    index.append(part.packed(0))
    assert index.tokens.dimension == TOKEN_DIMENSION
    for slots in ([1, 3], [3, 0], [1]):
        assert index.tokens.closest(QUERY_TOKENS, np.array(slots), np.ones(1)).tolist() == [[1.0] * len(slots)]
    assert asked == [1, 3, 0]


@given(changes=CHANGES)
def test_the_conversation_is_by_episode_then_time_then_arrival(changes: list[tuple[Any, ...]]) -> None:
    world = World()
    for action, *arguments in changes:
        getattr(world, action)(*arguments)

    def standing(entry: Entry) -> int:
        number = entry.episode
        while number >= 0 and (into := world.episodes[number].merged_into) is not None:
            number = into
        return number if number >= 0 else -1 - entry.seq  # outside any episode: alone

    order = sorted(world.entries.values(), key=lambda e: (standing(e), e.created_ms, e.seq))
    conversation = world.index.conversation
    assert [world.index.ids[slot] for slot in conversation.slots] == [entry.id for entry in order]
    numbers = [standing(entry) for entry in order]
    assert conversation.episode_ordinal.tolist() == [sorted(set(numbers)).index(number) for number in numbers]
    assert conversation.starts_episode.tolist() == [
        number >= 0 and number not in numbers[:position] for position, number in enumerate(numbers)
    ]
    for reach in (NEIGHBOURS, MAX_NEIGHBOURS):
        low, high = conversation.window(reach)
        for position, number in enumerate(numbers):
            near = [p for p, other in enumerate(numbers) if abs(p - position) <= reach and other == number]
            assert list(range(low[position], high[position])) == near


@given(
    values=st.lists(st.integers(-9, 9), min_size=6, max_size=6),
    episodes=st.lists(st.integers(-1, 2), min_size=6, max_size=6),
)
def test_previous_message_is_of_the_same_episode(values: list[int], episodes: list[int]) -> None:
    index = OwnerIndex(MODEL, DIMENSION)
    index.add([make_entry(seq, episode=episode) for seq, episode in enumerate(episodes)], {})
    conversation = index.conversation
    segments = conversation.episode_ordinal.tolist()
    expected = [values[at - 1] if at and segments[at - 1] == segments[at] else 0 for at in range(len(values))]
    assert conversation.before(np.array(values)).tolist() == expected


def test_cluster_cosines_by_hand() -> None:
    index = OwnerIndex(MODEL, DIMENSION)
    entries = [make_entry(n, episode=e) for n, e in enumerate([0, 0, 2, 2, -1])]
    rows = {0: [1, 0], 1: [0, 1], 2: [1, 0], 4: [0, 1]}  # 3 has no vector
    index.add(entries, {(seq, 0): Vectors(MODEL, np.array([row], np.float32)) for seq, row in rows.items()})
    # In conversation order: 4 alone; 0 and 1 at 45° to their centroid; 2 is its centroid, 3 is nothing.
    np.testing.assert_allclose(index.clusters.cosines(np.arange(5)), [1, 0.7071068, 0.7071068, 1, 0], rtol=1e-6)
    # What was not asked for before is worked out beside what was.
    index = OwnerIndex(MODEL, DIMENSION)
    index.add(entries, {(seq, 0): Vectors(MODEL, np.array([row], np.float32)) for seq, row in rows.items()})
    np.testing.assert_allclose(index.clusters.cosines(np.array([2])), [0.7071068], rtol=1e-6)
    np.testing.assert_allclose(index.clusters.cosines(np.array([4, 1, 0])), [0, 0.7071068, 1], rtol=1e-6)
    np.testing.assert_allclose(index.clusters.centroids(np.array([1]))[0], [0.7071068, 0.7071068], rtol=1e-6)


def test_vectors_of_different_models_never_meet() -> None:
    index = OwnerIndex(MODEL, DIMENSION)
    row, tokens = np.array([[1, 0]], np.float32), np.full((1, TOKEN_DIMENSION), SCALE, np.int8)
    vectors = {(0, 0): Vectors("another", row, tokens), (1, 0): Vectors(MODEL, row, tokens)}
    index.add([make_entry(0), make_entry(1)], vectors)
    assert index.vectors.cosines(QUERY)[1].tolist() == [1]
    assert index.tokens.closest(QUERY_TOKENS, np.array([0, 1]), np.ones(1)).tolist() == [[0, 1]]


def test_an_index_is_wasted_once_most_of_it_is_dead() -> None:
    index = OwnerIndex(MODEL, DIMENSION)
    index.add([make_entry(seq) for seq in range(200)], {})
    for seq in range(100):
        index.remove(seq)
    assert not index.needs_rebuild()
    index.remove(100)
    assert index.needs_rebuild()


def test_small_index_is_not_rebuilt_for_few_deletions() -> None:
    index = OwnerIndex(MODEL, DIMENSION)
    for version in range(65):
        index.add([make_entry(0, version=version)], {})
    assert not index.needs_rebuild()
    index.add([make_entry(0, version=65)], {})
    assert index.needs_rebuild()


def test_index_size_grows_with_its_content() -> None:
    # The cache's byte budget rests on this.
    index = OwnerIndex(MODEL, 384)
    empty = index.size_bytes()
    matrix = np.ones((1, 384), np.float32)
    entries = [make_entry(seq, stems="red bike") for seq in range(1_000)]
    index.add(entries, {(entry.seq, 0): Vectors(MODEL, matrix) for entry in entries})
    assert index.size_bytes() - empty > 1_000 * (matrix.size + 100)


def test_an_unknown_name_matches_no_memory() -> None:
    index = OwnerIndex(MODEL, DIMENSION)
    index.add([make_entry(0, category=None)], {})
    assert index.names.number_of("never seen") not in index.facts["category"]


def some(values: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=2)


# One or two of the fields, so that something is left; and values that no memory has.
EACH_FILTER: dict[str, st.SearchStrategy[Any]] = {
    "categories": some(["work", "p", "none"]), "tags": some(["x", "y", "work", "none"]),
    "kinds": some(["message", "fact", "rule", "none"]), "layers": some(["rule", "working", "long_term"]),
    "roles": some(["user", "assistant", "tool"]), "names": some(["Ann", "Bo", "user", "none"]),
    "project_id": st.sampled_from(["p", "s", "none"]), "session_ids": some(["s", "t", "none"]),
    "created_after": st.integers(-4, 7), "created_before": st.integers(-4, 7),
    "min_confidence": st.sampled_from([0.0, 0.3, 0.5, 1.0]), "min_importance": st.sampled_from([0.0, 0.5, 0.7]),
    "all_tags": some(["x", "y", "work", "none"]),
}  # fmt: skip
FILTERS = st.lists(st.sampled_from(sorted(EACH_FILTER)), max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: EACH_FILTER[name] for name in names})
)


def at(now_ms: int) -> Moment:
    return Moment(now_ms, happened_by_ms=None, known_by_ms=None, history=False)


def permits(entry: Entry, wanted: Filters, now_ms: int) -> bool:
    """The contract in plain words: in force at the asking time, and within every filter given."""
    any_of = [
        (wanted.categories, entry.category), (wanted.kinds, entry.kind), (wanted.layers, entry.layer),
        (wanted.roles, entry.role), (wanted.names, entry.author), (wanted.session_ids, entry.session_id),
    ]  # fmt: skip
    return (
        (entry.valid_from_ms is None or entry.valid_from_ms <= now_ms)
        and (entry.valid_to_ms is None or now_ms < entry.valid_to_ms)
        and (entry.expires_ms is None or now_ms < entry.expires_ms)
        and all(values is None or own in values for values, own in any_of)
        and wanted.project_id in (None, entry.project_id)
        and (wanted.tags is None or any(tag in wanted.tags for tag in entry.tags))
        and set(wanted.all_tags or ()) <= set(entry.tags)
        and (wanted.min_importance is None or entry.importance >= wanted.min_importance)
        and (wanted.created_after is None or entry.created_ms >= wanted.created_after)
        and (wanted.created_before is None or entry.created_ms < wanted.created_before)
        and (wanted.min_confidence is None or entry.confidence >= wanted.min_confidence)
    )


def allowed(index: OwnerIndex, filters: Filters, moment: Moment) -> npt.NDArray[np.bool_]:
    """Which positions may be in an answer, where nothing is linked to any entity."""
    return valid(index, moment) & Filtering(index, cast("OwnerGraph", None), moment).within(filters)


def check_filters(index: OwnerIndex, entries: Iterable[Entry], filters: Filters, now_ms: int) -> None:
    mask = allowed(index, filters, at(now_ms))
    found = {index.ids[slot] for slot in index.conversation.slots[mask]}
    assert found == {entry.id for entry in entries if permits(entry, filters, now_ms)}


@pytest.mark.parametrize("name", EACH_FILTER)
@given(told=st.lists(SAID, min_size=4, max_size=10), now_ms=st.integers(-2, 6), data=st.data())
def test_each_filter_passes_matching_memories(
    name: str, told: list[dict[str, Any]], now_ms: int, data: st.DataObject
) -> None:
    entries = [make_entry(seq, **said) for seq, said in enumerate(told)]
    index = OwnerIndex(MODEL, DIMENSION)
    index.add(entries, {})
    check_filters(index, entries, Filters(**{name: data.draw(EACH_FILTER[name])}), now_ms)


@given(changes=CHANGES, wanted=FILTERS, now_ms=st.integers(-2, 6))
def test_combined_filters_pass_memories_matching_all(
    changes: list[tuple[Any, ...]], wanted: dict[str, Any], now_ms: int
) -> None:
    world = World()
    for action, *arguments in changes:
        getattr(world, action)(*arguments)
    check_filters(world.index, world.entries.values(), Filters(**wanted), now_ms)


def test_unreferenced_index_is_freed_at_once() -> None:
    index = OwnerIndex(MODEL, DIMENSION, lambda seqs: [None] * len(seqs))
    held = weakref.ref(index)
    gc.collect()
    gc.disable()
    try:
        del index
        assert held() is None
    finally:
        gc.enable()
