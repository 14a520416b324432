"""The search index of one owner's memories. It is loaded on first use, from segments (state/segments.py) or from index
entries and vectors, and updated with each event."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial, wraps
from typing import Any, NamedTuple, Self, TypeVar
from weakref import proxy

import numpy as np
import numpy.typing as npt

from recallflow.caching import BoundedCache
from recallflow.embedder import Matrix
from recallflow.language.places import StemPositions
from recallflow.language.statements import StatementReading
from recallflow.state.arrays import Array, Floats, GrowingArray, Interner, Ints, JoinedArray, Mask, Positions, Texts
from recallflow.state.labels import Labels
from recallflow.state.lexical import OCCURRENCE_BYTES, LexicalIndex
from recallflow.state.rows import BLANK, ENDS_ASKING, HAS_QUESTION, PASSAGE_END, Entry, EpisodeRow, Vectors
from recallflow.state.segment import COLUMNS, STRING_COLUMNS, Segment
from recallflow.state.tokens import TokenIndex, Tokens
from recallflow.state.vectors import Clusters, VectorIndex

NEVER_MS = np.iinfo(np.int64).max
ALWAYS_MS = np.iinfo(np.int64).min
NEIGHBOURS = 2  # size of a neighbourhood: this many memories before and after a memory, in its episode
MAX_NEIGHBOURS = 2 * NEIGHBOURS  # size of the widest neighbourhood
_FACTS_BYTES = sum(np.dtype(kind).itemsize for kind in COLUMNS.values())
# Minimum bytes of the stem cache of an owner. One stem may use up to a quarter of the budget.
_STEM_CACHE_BYTES, _STEM_CACHE_SHARE = 1024 * 1024, 4
_STEM_CACHE_BYTES_PER_MEMORY = 40
_STATEMENT_BYTES = 1_200
_STEM_POSITIONS_BYTES = 400
_NO_TOKENS = Tokens()
_NO_SLOT = -1  # in place of a slot
NON_PERSON_ROLES = ("assistant", "system", "tool")  # roles of non-persons
DEFAULT_TIMES = {"valid_from_ms": ALWAYS_MS, "valid_to_ms": NEVER_MS, "expires_ms": NEVER_MS, "edited_ms": ALWAYS_MS}
_FIELDS = {"session": "session_id", "project": "project_id"}  # the field of an entry for columns with a shorter name


T = TypeVar("T")


def cached_per_index(work: Callable[["OwnerIndex"], T]) -> Callable[["OwnerIndex"], T]:
    """Cache the result of a function of an index until the index's memories change."""

    @wraps(work)
    def read(index: "OwnerIndex") -> T:
        cached = index.cached_results
        if work not in cached:
            cached[work] = work(index)
        found: T = cached[work]
        return found

    return read


class IndexColumns:
    """The columns of `COLUMNS` by slot, including the slots of removed memories. Each is joined at its first use."""

    def __init__(self) -> None:
        self._columns = {name: JoinedArray(dtype) for name, dtype in COLUMNS.items()}

    def __getitem__(self, name: str) -> Array:
        return self._columns[name].view

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns.values())

    def extend(self, values: Mapping[str, npt.ArrayLike], count: int, names: Ints | None = None) -> None:
        """Append columns; a single value means all are equal. `names` maps the values' numbers of strings to
        those of this index."""
        for name, column in self._columns.items():
            column.extend(values[name], count, names if name in STRING_COLUMNS else None)


class IndexFacts(dict[str, Array]):
    """The columns of `COLUMNS` in conversation order. Each is gathered at its first use."""

    def __init__(self, columns: IndexColumns, slots: Ints) -> None:
        super().__init__(episode=columns["episode"][slots])  # at once, because values of this column may change
        self._columns, self._slots = columns, slots

    def __missing__(self, name: str) -> Array:
        column = self[name] = self._columns[name].take(self._slots)
        return column


class Conversation:
    """Live memories in conversation order: by episode, event time, arrival. A position is an index into this order."""

    def __init__(self, facts: IndexColumns) -> None:
        live = np.flatnonzero(facts["live"])
        columns = (facts[name] for name in ("episode", "seq", "created_ms"))
        episode, seqs, created_ms = (one if len(live) == len(one) else one[live] for one in columns)
        episode = np.where(episode < 0, -1 - seqs, episode)
        order = np.lexsort((seqs, created_ms, episode))
        self.slots: Ints = live[order]  # (n,) the slot of each position
        self.positions: Ints = np.full(len(facts["live"]), -1)  # (slots,) the position of each slot, or -1
        self.positions[self.slots] = np.arange(len(order))
        # Columns by position. A memory without an episode counts as an episode of one.
        self.facts = IndexFacts(facts, self.slots)
        ordered = episode[order]
        self.size = len(order)
        first = np.ones(self.size, np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        self.has_predecessor: Mask = ~first  # whether its episode has an earlier one
        self.has_successor: Mask = np.append(self.has_predecessor[1:], False)[: self.size]  # and a later one
        self.starts_episode: Mask = first & (ordered >= 0)  # whether it is the first of a real episode
        self.starts: Ints = np.flatnonzero(first)  # the first position of each episode
        self.episode_ordinal: Ints = np.cumsum(first)  # the number of its episode, from 0
        self.episode_ordinal -= 1
        self.ends: Ints = np.append(self.starts, self.size)[1:]  # the position after the last one of each episode
        self.authors: Ints = np.flatnonzero(np.bincount(self.facts["author"] + 1)) - 1  # the authors; -1 for none
        behind, ahead = _run_lengths(self.has_predecessor), _run_lengths(self.has_successor[::-1])[::-1].copy()
        # Distance from each position to the start and the end of its neighbourhood, one byte each.
        reaches = NEIGHBOURS, MAX_NEIGHBOURS
        self._bounds = {reach: (np.minimum(behind, reach), np.minimum(ahead, reach) + 1) for reach in reaches}

    def window(self, reach: int, positions: Positions | None = None) -> tuple[Positions, Positions]:
        """Return the bounds [low, high) of the neighbourhoods of positions (default: all): each position, and up to
        `reach` (`NEIGHBOURS` or `MAX_NEIGHBOURS`) positions before and after it in its episode."""
        behind, ahead = self._bounds[reach]
        if positions is None:
            positions = np.arange(self.size)
        else:
            behind, ahead = behind.take(positions), ahead.take(positions)
        return positions - behind, positions + ahead

    def near(self, positions: Positions, reach: int) -> Mask:
        """Return a mask (n,) of the neighbourhoods of positions."""
        mask = np.zeros(self.size, np.bool_)
        mask[positions] = True
        before = after = mask
        for _ in range(reach):
            before, after = self.before(before), self.after(after)
            mask = mask | before | after
        return mask

    @cached_property
    def has_time_limits(self) -> bool:
        """Return whether any memory has a limited validity or an expiry."""
        facts = self.facts
        since = bool((facts["valid_from_ms"] != ALWAYS_MS).any())
        return since or bool(((facts["valid_to_ms"] != NEVER_MS) | (facts["expires_ms"] != NEVER_MS)).any())

    @cached_property
    def has_blank_texts(self) -> bool:
        return bool((self.facts["flags"] & BLANK).any())

    def live_positions(self, slots: npt.NDArray[np.integer[Any]]) -> Positions:
        """Return the positions of slots, without removed memories."""
        positions = self.positions.take(slots)
        return positions[positions >= 0] if len(self.positions) > self.size else positions

    def neighbourhood_sums(self, values: Array, reaches: Iterable[int]) -> Array:
        """Return for each position the sum of its neighbours' values without its own, added up over `reaches`."""
        up_to, summed = np.concatenate([[0.0], np.cumsum(values)]), np.zeros(self.size)
        for low, high in map(self.window, reaches):
            summed += up_to.take(high) - up_to.take(low) - values
        return summed

    def before(self, values: Array) -> Array:
        """Return the value of each position's predecessor in its episode, or 0 without one."""
        shifted = np.zeros_like(values)
        np.multiply(values[:-1], self.has_predecessor[1:], out=shifted[1:])
        return shifted

    def after(self, values: Array) -> Array:
        """Return the value of each position's successor in its episode, or 0 without one."""
        shifted = np.zeros_like(values)
        np.multiply(values[1:], self.has_predecessor[1:], out=shifted[:-1])
        return shifted


def _run_lengths(mask: Mask) -> npt.NDArray[np.uint8]:
    """Return the length of the run of set values that ends at each position, at most `MAX_NEIGHBOURS`."""
    lengths = mask.astype(np.uint8)
    continues = mask
    for step in range(1, MAX_NEIGHBOURS):
        continues = continues[1:] & mask[:-step]
        lengths[step:] += continues
    return lengths


def is_person(facts: Mapping[str, Array], names: Interner) -> Mask:
    """Return a mask of the memories that a person wrote."""
    has_author: Mask = facts["author"] >= 0
    return has_author & ~np.isin(facts["role"], [names.number_of(role) for role in NON_PERSON_ROLES])


class Lengths(NamedTuple):
    """The number of stems of each text, (n,), and their mean."""

    words: Floats
    mean: float

    @classmethod
    def of(cls, words: Floats) -> Self:
        """Return lengths with their mean, which is never 0."""
        return cls(words, max(float(words.sum()) / max(len(words), 1), 1e-9))


class StemOccurrences(NamedTuple):
    """The occurrences of a stem: the position of each, grouped by memory, and the number of memories."""

    positions: Positions
    memory_count: int


class OwnerIndex:
    """Columns, words and vectors of one owner's current memories, by slot. The slot of a removed memory is not reused:
    it stays empty (dead) until the index is rebuilt."""

    def __init__(
        self, model: str, dimension: int, read_vectors: Callable[[Ints], Sequence[Vectors | None]] | None = None
    ) -> None:
        """Create an empty index. `read_vectors` reads vectors of current memories by `seq`: segments have no tokens."""
        self.projects: tuple[str, ...] | None = None  # the projects of its memories; None if it is of all projects
        self._model = model
        self._read_vectors = read_vectors
        self.facts = IndexColumns()
        self.ids = Texts()
        self.tags = Labels()
        self.metadata = Labels()
        self.names = Interner()
        self.words = LexicalIndex()
        self.vectors = VectorIndex(dimension)
        # A proxy avoids a reference cycle, so that an unreferenced index is freed at once.
        self.tokens = TokenIndex(partial(OwnerIndex._read_tokens, proxy(self)))
        self.statements: dict[int, StatementReading] = {}  # cached by slot, of the best memories of answers
        self.stem_positions: dict[int, StemPositions | None] = {}  # cached by slot, of returned memories
        self.cached_results: dict[Callable[[OwnerIndex], Any], Any] = {}  # by function, see `cached_per_index`
        self._earlier_clusters: Clusters | None = None
        self._slot_of_seq = GrowingArray(np.int64)
        self._size = 0
        self._absorbing: dict[int, int] = {}  # by merged episode: the current episode that contains its memories
        self._episodes: dict[int, EpisodeRow | bytes] = {}  # bytes are decoded on demand

    def add(self, entries: Sequence[Entry], vectors: Mapping[tuple[int, int], Vectors | None]) -> None:
        """Add memories, or replace them by their next versions. `vectors` are by sequence number and version."""
        seqs = [entry.seq for entry in entries]
        if len(self):
            self.remove(*seqs)
        self._assign_slots(np.array(seqs, np.int64), len(self.ids))
        self.append_versions(entries, vectors)

    def append(self, segment: Segment) -> None:
        """Add the memories of a segment, which must not be in the index yet."""
        first = len(self.ids)
        numbers = np.array([*self.names.numbers(segment.names), -1])  # the last one maps -1 to itself
        self.facts.extend(segment.facts, segment.size, numbers)
        if self._absorbing:
            episodes = self.facts["episode"][first:]
            for number in self._absorbing.keys() & set(episodes.tolist()):
                episodes[episodes == number] = self._absorbing[number]
        self._assign_slots(segment.facts["seq"].astype(np.int64), first)
        self.ids.append(segment.ids, segment.id_ends)
        self.tags.append(first, segment.tags)
        self.metadata.append(first, segment.metadata)
        self.words.append(segment.words)
        self.vectors.append(segment.rows, first)
        self.tokens.defer(segment.size, segment.token_dimension)
        self._drop_cached()

    def packed(self, end: int) -> Segment:
        """Return all memories as a segment. No memory may have been removed. `end`: see `Segment`."""
        ids, id_ends = self.ids.packed()
        rows, words = self.vectors.packed(), self.words.packed()
        tags, metadata = self.tags.packed(), self.metadata.packed()
        names, dimension = self.names.strings, self.tokens.dimension
        facts = {name: self.facts[name] for name in COLUMNS}
        return Segment(end, len(self), facts, names, ids, id_ends, tags, metadata, words, rows, dimension)

    def reserve(self, memories: int) -> None:
        self.vectors.reserve(memories)
        self._slot_of_seq.reserve(memories)

    def append_versions(self, entries: Sequence[Entry], vectors: Mapping[tuple[int, int], Vectors | None]) -> None:
        """Append versions of memories, each in a slot of its own. `vectors` are by sequence number and version."""
        if not entries:
            return
        first = len(self.ids)
        slots: list[int] = []
        rows: list[Matrix] = []
        tokens = [_NO_TOKENS] * len(entries)
        for at, entry in enumerate(entries):
            stored = vectors.get((entry.seq, entry.version))
            if stored is not None and stored.model == self._model:
                slots += [first + at] * len(stored.matrix)
                rows.append(stored.matrix)
                tokens[at] = Tokens(stored.tokens, stored.sizes)
        self._append_facts(entries)
        if rows:
            self.vectors.add(np.array(slots, np.int64), np.concatenate(rows))
        self.tokens.add(tokens)
        self.ids.add(entry.id for entry in entries)
        self.tags.add(first, (entry.tags for entry in entries))
        self.metadata.add(first, (entry.metadata for entry in entries))
        texts = [f"{entry.author_stems} {entry.stems}" for entry in entries]
        passages = {at: text.split(PASSAGE_END) for at, text in enumerate(texts) if PASSAGE_END in text}
        sizes = {at: [len(passage.split()) for passage in parts] for at, parts in passages.items()}
        self.words.add(map(str.split, texts), sizes)
        self._drop_cached()

    def _append_facts(self, entries: Sequence[Entry]) -> None:
        """Append the columns of memories, in a third of the time of appending row by row."""
        fields: dict[str, Sequence[Any]] = dict(zip(Entry._fields, zip(*entries, strict=True), strict=True))
        columns = fields | {name: self.names.numbers(fields[_FIELDS.get(name, name)]) for name in STRING_COLUMNS}
        columns["live"] = (True,) * len(entries)
        columns["episode"] = [self._absorbing.get(number, number) for number in fields["episode"]]
        for name, default in DEFAULT_TIMES.items():
            columns[name] = [default if at_ms is None else at_ms for at_ms in fields[name]]
        self.facts.extend(columns, len(entries))

    def remove(self, *seqs: int) -> None:
        """Remove memories, if they are in the index, in one pass."""
        found = {seq: slot for seq in seqs if (slot := self.slot(seq)) is not None}
        if found:
            slots = [*found.values()]
            self._slot_of_seq.view[[*found]] = _NO_SLOT
            self._size -= len(found)
            self.facts["live"][slots] = False
            self.vectors.remove(*slots)
            self._drop_cached()

    def put_episode(self, episode: EpisodeRow) -> None:
        """Apply the changed state of an episode. Memories of a merged episode move to the one that absorbed it."""
        self._episodes[episode.number] = episode
        if episode.merged_into is not None:
            into = self._absorbing.get(episode.merged_into, episode.merged_into)
            episodes = self.facts["episode"]
            episodes[episodes == episode.number] = into
            self._absorbing.update({number: into for number, to in self._absorbing.items() if to == episode.number})
            self._absorbing[episode.number] = into
        self._drop_cached()

    def load_episodes(self, stored: Mapping[int, bytes]) -> None:
        """Fill an empty index with all stored episodes, by number."""
        self._episodes.update(stored)
        into = {number: to for number, data in stored.items() if (to := EpisodeRow.read_merged_into(data)) is not None}
        for number in into:
            chain = [number]
            while (to := into.get(chain[-1])) is not None and chain[-1] not in self._absorbing:
                chain.append(to)
            end = self._absorbing.get(chain[-1], chain[-1])
            self._absorbing.update((one, end) for one in chain if one != end)

    def _drop_cached(self) -> None:
        """Drop all cached results, because memories have changed."""
        self.cached_results.clear()
        self._earlier_clusters = self.__dict__.pop("clusters", self._earlier_clusters)
        for name in _COMPUTED:
            self.__dict__.pop(name, None)

    def _assign_slots(self, seqs: Ints, first: int) -> None:
        """Assign the slots from `first` on to new memories."""
        missing = int(seqs.max(initial=-1)) + 1 - len(self._slot_of_seq)
        if missing > 0:
            self._slot_of_seq.extend(_NO_SLOT, missing)
        self._slot_of_seq.view[seqs] = np.arange(first, first + len(seqs))
        self._size += len(seqs)

    def _read_tokens(self, slots: Ints) -> list[Tokens]:
        stored = self._read_vectors(self.facts["seq"][slots]) if self._read_vectors else [None] * len(slots)
        return [
            _NO_TOKENS if one is None or one.model != self._model else Tokens(one.tokens, one.sizes) for one in stored
        ]

    def __len__(self) -> int:
        return self._size

    def slot(self, seq: int) -> int | None:
        slot = int(self._slot_of_seq.view[seq]) if seq < len(self._slot_of_seq) else _NO_SLOT
        return None if slot == _NO_SLOT else slot

    @cached_property
    def conversation(self) -> Conversation:
        return Conversation(self.facts)

    @cached_property
    def stem_occurrences(self) -> BoundedCache[str, StemOccurrences]:
        """Return a cache of the occurrences of stems in `conversation`. A query needs each several times."""
        budget_bytes = max(_STEM_CACHE_BYTES, _STEM_CACHE_BYTES_PER_MEMORY * self.conversation.size)
        return BoundedCache(partial(OwnerIndex._read_occurrences, proxy(self)), budget_bytes, _STEM_CACHE_SHARE)

    def _read_occurrences(self, stem: str) -> StemOccurrences:
        positions = self.conversation.live_positions(self.words.occurrences(stem))
        return StemOccurrences(positions, len(positions) and 1 + int(np.count_nonzero(positions[1:] != positions[:-1])))

    @cached_property
    def is_assistant_chat(self) -> Mask:
        """Return a mask of the memories from chats of one person with an assistant.

        A session of one person and an assistant is such a chat; a session of several persons is a group chat. All
        other memories count like the majority of these two kinds. If no memory is of these kinds, all memories count
        as such chats if at most one person wrote."""
        facts = self.conversation.facts
        sessions, persons = facts["session"] + 1, is_person(facts, self.names)
        count = int(sessions.max(initial=0)) + 1
        session_of, person_of = sessions[persons], facts["author"][persons]
        any_person = np.zeros(count, person_of.dtype)  # any one person of each session
        any_person[session_of] = person_of
        has_several = np.bincount(session_of[person_of != any_person.take(session_of)], minlength=count) > 0
        has_assistant = np.bincount(sessions[(facts["author"] >= 0) & ~persons], minlength=count) > 0
        is_assisted = ~has_several & has_assistant
        has_several[0] = is_assisted[0] = False  # number 0: no session
        found: Mask = is_assisted.take(sessions)
        is_group = has_several.take(sessions)
        is_clear, majority = found | is_group, int(found.sum()) - int(is_group.sum())
        found[~is_clear] = majority >= 0 if is_clear.any() else bool((person_of == person_of[:1]).all())
        return found

    @cached_property
    def asks(self) -> Mask:
        """Return a mask of the memories that contain a question or, if from a chat with an assistant, end with one."""
        flags = self.conversation.facts["flags"]
        found: Mask = np.where(self.is_assistant_chat, flags & ENDS_ASKING, flags & HAS_QUESTION) != 0
        return found

    @cached_property
    def answers_question(self) -> Mask:
        """Return a mask of the memories that follow a question of another author."""
        conversation, authors = self.conversation, self.conversation.facts["author"]
        is_other_author = (authors < 0) | (conversation.before(authors) != authors)
        found: Mask = is_other_author & conversation.before(self.asks)
        return found

    @cached_property
    def is_chat_of_two(self) -> Mask:
        """Return a mask of the memories outside of assistant chats, if exactly two persons wrote them; else empty."""
        facts = self.conversation.facts
        others = ~self.is_assistant_chat
        counts = np.bincount(facts["author"][others & is_person(facts, self.names)])
        found: Mask = others & (np.count_nonzero(counts) == 2)
        return found

    @cached_property
    def lengths(self) -> Mapping[int, Lengths]:
        """Return the lengths of the texts (key 0) and of the neighbourhoods (key `NEIGHBOURS`)."""
        own = self.words.lengths().take(self.conversation.slots).astype(np.float64)
        up_to, (low, high) = np.concatenate([[0.0], own.cumsum()]), self.conversation.window(NEIGHBOURS)
        return {0: Lengths.of(own), NEIGHBOURS: Lengths.of(up_to.take(high) - up_to.take(low))}

    @cached_property
    def log_lengths(self) -> Floats:
        """Return the logarithm of each text's length, minus the mean."""
        logarithms = np.log1p(self.lengths[0].words)
        centred: Floats = logarithms - logarithms.sum() / max(len(logarithms), 1)
        return centred

    @cached_property
    def episode_lengths(self) -> Lengths:
        """Return the length of each episode as one text."""
        starts, words = self.conversation.starts, self.lengths[0].words
        return Lengths.of(np.add.reduceat(words, starts) if len(starts) else words)

    @cached_property
    def clusters(self) -> Clusters:
        earlier, self._earlier_clusters = self._earlier_clusters, None
        talk = self.conversation
        order, episodes = (talk.slots, talk.positions), (talk.episode_ordinal, talk.starts, talk.ends)
        return Clusters(self.vectors, order, episodes, earlier)

    def episode(self, number: int) -> EpisodeRow | None:
        found = self._episodes.get(int(number))
        if isinstance(found, bytes):
            found = self._episodes[int(number)] = EpisodeRow.decode(found)
        return found

    def episodes(self) -> list[EpisodeRow]:
        every = [episode for number in self._episodes if (episode := self.episode(number)) is not None]
        return [episode for episode in every if episode.merged_into is None]

    def needs_rebuild(self) -> bool:
        """Return whether there are more dead slots than live ones."""
        return len(self.ids) - len(self) > max(64, len(self))

    def live_bytes(self) -> int:
        """Return the bytes of live memories' facts, stems and vectors, without dead slots, caches and reserved space.
        The result does not depend on how the index was built."""
        stems = int(self.words.lengths()[self.conversation.slots].sum())
        return len(self) * _FACTS_BYTES + stems * OCCURRENCE_BYTES + self.vectors.row_bytes * len(self.vectors)

    def size_bytes(self) -> int:
        """Return the bytes in memory, including caches."""
        found = self._stored_bytes + self.words.cache_bytes + self.tokens.nbytes + self.stem_occurrences.size_bytes
        return found + _STATEMENT_BYTES * len(self.statements) + _STEM_POSITIONS_BYTES * len(self.stem_positions)

    @cached_property
    def _stored_bytes(self) -> int:
        """Return the bytes of all data that queries do not change."""
        arrays = self.facts.nbytes + self.words.nbytes + self.vectors.nbytes + self._slot_of_seq.nbytes
        return arrays + self.ids.nbytes + self.tags.size_bytes() + self.metadata.size_bytes()


_COMPUTED = [name for name, value in vars(OwnerIndex).items() if isinstance(value, cached_property)]
