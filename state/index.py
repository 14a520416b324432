"""One owner's memories, ready to be searched: built from index entries and vectors on first touch, kept up to date
with each event. Derived data only: whatever is here can be built again from RocksDB."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recallflow.embedder import Matrix
from recallflow.state.arrays import GrowingArray
from recallflow.state.lexical import LexicalIndex
from recallflow.state.rows import Entry, Episode, Vectors
from recallflow.state.vectors import VectorIndex

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NEVER_MS = np.iinfo(np.int64).max
ALWAYS_MS = np.iinfo(np.int64).min
WINDOWS = (2, 4)
_STRINGS_BYTES = 400  # about what an entry's Python objects take

_FACTS = np.dtype(
    [
        ("seq", np.int64),
        ("version", np.int32),
        ("live", np.bool_),
        ("created_ms", np.int64),
        ("episode", np.int64),
        ("flags", np.uint8),
        ("author", np.int32),
        ("kind", np.int32),
        ("layer", np.int32),
        ("role", np.int32),
        ("session", np.int32),
        ("project", np.int32),
        ("category", np.int32),
        ("importance", np.float64),
        ("confidence", np.float64),
        ("valid_from_ms", np.int64),
        ("valid_to_ms", np.int64),
        ("expires_ms", np.int64),
    ]
)


class Interner:
    """Strings ↔ small numbers, so that filters compare integers. -1 is no string."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.strings: list[str] = []

    def number(self, text: str | None) -> int:
        """The string's number, given on first sight."""
        if text is None:
            return -1
        if text not in self._numbers:
            self._numbers[text] = len(self.strings)
            self.strings.append(text)
        return self._numbers[text]

    def known(self, text: str) -> int:
        """The string's number, or -2 where it was never seen (which no memory has)."""
        return self._numbers.get(text, -2)


class Conversation:
    """Live memories in the order they were said: by episode, then event time, then arrival.

    `slots`: (n,) the slot of each place; `facts`: what is known of each place's memory. Memories outside any episode
    are episodes of one. `starts`: first place of each episode; `segment`: each place's episode, counted from 0;
    `opens`: whether a place is the first of a real episode. `windows`: for each reach, the bounds [low, high) of each
    place's neighbourhood, itself and as many places to each side as its episode has. `authors`: who wrote any of them.
    """

    def __init__(self, facts: npt.NDArray[Any]) -> None:
        live = np.flatnonzero(facts["live"])
        episode = facts["episode"][live]
        alone = episode < 0
        episode = np.where(alone, -1 - facts["seq"][live], episode)
        order = np.lexsort((facts["seq"][live], facts["created_ms"][live], episode))
        self.slots: Ints = live[order]
        self.facts: npt.NDArray[Any] = facts[self.slots]
        ordered = episode[order]
        self.size = len(order)
        first = np.ones(self.size, np.bool_)
        first[1:] = ordered[1:] != ordered[:-1]
        self.opens: Mask = first & (ordered >= 0)
        self.starts: Ints = np.flatnonzero(first)
        self.segment: Ints = np.cumsum(first) - 1
        self.ends: Ints = np.append(self.starts, self.size)[1:]
        self.authors: Ints = np.unique(self.facts["author"])
        self.windows = {reach: self._window(reach) for reach in WINDOWS}

    def _window(self, reach: int) -> tuple[Ints, Ints]:
        places = np.arange(self.size)
        low = np.maximum(places - reach, self.starts[self.segment])
        high = np.minimum(places + reach + 1, self.ends[self.segment])
        return low, high

    def back(self, values: npt.NDArray[Any], places: int) -> npt.NDArray[Any]:
        """For each place, the value `places` earlier in its episode; 0 where there is none."""
        shifted = np.zeros_like(values)
        if self.size > places:
            same = self.segment[places:] == self.segment[:-places]
            shifted[places:] = np.where(same, values[:-places], 0)
        return shifted

    def best(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """For each place, the highest value in its episode."""
        best: npt.NDArray[Any] = np.maximum.reduceat(values, self.starts)[self.segment]
        return best


@dataclass(slots=True)
class _Cached:
    conversation: Conversation | None = None
    clusters: Any = None


class OwnerIndex:
    """Facts, words and vectors of one owner's current memories, by slot. A slot is never used again; a removed memory
    leaves a dead one behind until the index is built anew."""

    def __init__(self, model: str, dimension: int) -> None:
        self._model = model
        self._facts = GrowingArray(_FACTS)
        self.ids: list[str] = []
        self.tags: list[list[str]] = []
        self.names = Interner()
        self.words = LexicalIndex()
        self.vectors = VectorIndex(dimension)
        self.sentences = VectorIndex(dimension)
        self._slot_of_seq: dict[int, int] = {}
        self._merged: dict[int, int] = {}
        self._episodes: dict[int, Episode] = {}
        self._cached = _Cached()

    # ------------------------------------------------------------------ changes

    def add(self, entries: Sequence[Entry], vectors: Mapping[int, Vectors | None]) -> None:
        """Adds memories, or their next versions in place of the ones before; vectors by sequence number."""
        rows: list[tuple[int, Matrix]] = []
        for slot, entry in enumerate(entries, len(self.ids)):
            self.remove(entry.seq)
            self._slot_of_seq[entry.seq] = slot
            stored = vectors.get(entry.seq)
            if stored is not None and stored.model == self._model:
                rows.append((slot, stored.matrix))
        self._facts.extend(np.array([self._fact(entry) for entry in entries], _FACTS))
        self.ids += [entry.id for entry in entries]
        self.tags += [entry.tags for entry in entries]
        self.words.add((entry.author_stems.split(), entry.stems.split()) for entry in entries)
        self._add_vectors(rows)
        self._cached = _Cached()

    def _fact(self, entry: Entry) -> tuple[Any, ...]:
        number = self.names.number
        return (
            entry.seq,
            entry.version,
            True,
            entry.created_ms,
            self._merged.get(entry.episode, entry.episode),
            entry.flags,
            number(entry.author),
            number(entry.kind),
            number(entry.layer),
            number(entry.role),
            number(entry.session_id),
            number(entry.project_id),
            number(entry.category),
            entry.importance,
            entry.confidence,
            ALWAYS_MS if entry.valid_from_ms is None else entry.valid_from_ms,
            NEVER_MS if entry.valid_to_ms is None else entry.valid_to_ms,
            NEVER_MS if entry.expires_ms is None else entry.expires_ms,
        )

    def remove(self, seq: int) -> None:
        """Takes a memory out, if it is in."""
        slot = self._slot_of_seq.pop(seq, None)
        if slot is None:
            return
        self._facts.view["live"][slot] = False
        self.vectors.remove(slot)
        self.sentences.remove(slot)
        self._cached = _Cached()

    def put_episode(self, episode: Episode) -> None:
        """Takes an episode's new state; members of an episode that was taken in move to the one that took it."""
        self._episodes[episode.number] = episode
        if episode.merged_into is not None:
            into = self._merged.get(episode.merged_into, episode.merged_into)
            facts = self._facts.view
            facts["episode"][facts["episode"] == episode.number] = into
            self._merged.update({number: into for number, to in self._merged.items() if to == episode.number})
            self._merged[episode.number] = into
        self._cached = _Cached()

    def load(
        self, episodes: Iterable[Episode], entries: Sequence[Entry], vectors: Mapping[int, Vectors | None]
    ) -> None:
        """Fills an empty index from what is stored."""
        for episode in sorted(episodes, key=lambda e: e.number):
            self.put_episode(episode)
        self.add(entries, vectors)

    def _add_vectors(self, rows: list[tuple[int, Matrix]]) -> None:
        if not rows:
            return
        self.vectors.add(np.array([slot for slot, _ in rows], np.int64), np.stack([m[0] for _, m in rows]))
        if sentences := [(slot, m[1:]) for slot, m in rows if len(m) > 1]:
            slots = np.repeat([slot for slot, _ in sentences], [len(m) for _, m in sentences]).astype(np.int64)
            self.sentences.add(slots, np.concatenate([m for _, m in sentences]))

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return len(self._slot_of_seq)

    @property
    def facts(self) -> npt.NDArray[Any]:
        """Structured array by slot; dead slots included."""
        return self._facts.view

    @property
    def conversation(self) -> Conversation:
        if self._cached.conversation is None:
            self._cached.conversation = Conversation(self.facts)
        return self._cached.conversation

    def episode(self, number: int) -> Episode | None:
        return self._episodes.get(int(number))

    def episodes(self) -> list[Episode]:
        """All episodes that still stand for themselves."""
        return [e for e in self._episodes.values() if e.merged_into is None]

    def cluster_cosines(self) -> npt.NDArray[np.float32]:
        """Each place's cosine to the centroid of its episode, in conversation order."""
        if self._cached.clusters is None:
            conversation = self.conversation
            groups = np.full(len(self.ids), -1, np.int64)
            groups[conversation.slots] = conversation.segment
            centroids = self.vectors.means(groups, len(conversation.starts))
            norms = np.linalg.norm(centroids, axis=1, keepdims=True)
            centroids = np.divide(centroids, norms, out=centroids, where=norms > 0)
            own = self.vectors.of(conversation.slots)
            self._cached.clusters = (centroids, np.einsum("ij,ij->i", own, centroids[conversation.segment]))
        cosines: npt.NDArray[np.float32] = self._cached.clusters[1]
        return cosines

    def centroids(self) -> Matrix:
        """Unit centroid of each episode of `conversation`, (episodes, dimension); zeros where no member has one."""
        self.cluster_cosines()
        centroids: Matrix = self._cached.clusters[0]
        return centroids

    def wasted(self) -> bool:
        """Whether more slots are dead than alive: time to build anew."""
        return len(self.ids) - len(self) > max(64, len(self))

    def size_bytes(self) -> int:
        arrays = self._facts.nbytes + self.words.nbytes + self.vectors.nbytes + self.sentences.nbytes
        return arrays + _STRINGS_BYTES * len(self.ids) + 24 * len(self.ids)
