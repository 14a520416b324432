"""What writing an owner's graph needs in memory. All of it is derived: it is built from RocksDB on first touch."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import TypeVar

import numpy as np

from recallflow.embedder import Matrix
from recallflow.state import keys
from recallflow.state.arrays import Ints
from recallflow.state.entity_names import NAMES_MOST, EntityNames, NameJoin, decode_names
from recallflow.state.graph_codec import NodeKey, NodeRow, Superseded, Unsynced, is_entity, sketch_of
from recallflow.state.partition import Partition
from recallflow.state.rows import Vectors
from recallflow.state.window import WINDOW, SketchWindow

K = TypeVar("K")
V = TypeVar("V")

KNOWN_NODES = KNOWN_VECTORS = 1_024
_FEWEST_VECTORS = 16
_NOBODY = -1  # where a `seq` would be
_NODE_BYTES = 250


@dataclass(slots=True)
class Staged:
    """The changes of one event to its owner's graph: records to write (None deletes), and updates of in-memory data."""

    effects: dict[bytes, bytes | None] = field(default_factory=dict)
    nodes: dict[str, bytes | None] = field(default_factory=dict)  # see `HotGraph`; None for a deleted node
    superseded: dict[int, list[Superseded]] = field(default_factory=dict)  # see `OwnerGraph`
    unsynced: dict[int, Unsynced | None] = field(default_factory=dict)  # None for a memory that is synced again
    joined: dict[str, list[NameJoin]] = field(default_factory=dict)  # see `Unions`
    caseless: list[str] | None = None  # all caseless names, if they changed
    sketches: dict[int, bytes] = field(default_factory=dict)  # empty for a memory without a sketch
    edges: int = 0  # the number of edge numbers in use
    more_edges: int = 0  # the change of the number of edges
    kept: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)  # keys of history, by node or edge prefix

    def get(self, partition: Partition, key: bytes) -> bytes | None:
        """Return a record, including this event's changes."""
        return self.effects[key] if key in self.effects else partition.get(key)

    def copied(self) -> "Staged":
        return Staged(*(copy(getattr(self, one.name)) for one in fields(self)))


class HotGraph:
    """The in-memory data of one owner's graph."""

    def __init__(self, partition: Partition, owner: bytes, *, was_empty: bool) -> None:
        """`was_empty`: nothing was stored of the owner at loading."""
        self._partition = partition
        self._owner = owner
        self._window = SketchWindow() if was_empty else None
        self.has_all_nodes = was_empty
        # Whole vectors of one model, of some of the newest memories: each in the place `seq % KNOWN_VECTORS`.
        self._model = ""
        self._wholes: Matrix = np.empty((0, 0), np.float32)
        self._whole_seqs: Ints = np.empty(0, np.int64)
        self._caseless: list[str] | None = None
        self._names: EntityNames | None = None
        self.nodes: dict[str, bytes] = {}  # stored names of some nodes by key; of all if `has_all_nodes`
        self.absent: set[str] = set()  # keys of missing nodes that were looked up
        self.unsynced: dict[int, Unsynced] = {}  # by `seq` of memories whose graph write failed
        if was_empty:
            return
        # A scan returns commits only. That is complete when an owner is loaded, because owners are evicted only between
        # batches.
        stored = partition.scan(keys.table(owner, keys.UNSYNCED))
        self.unsynced = {keys.sequence(key): Unsynced.decode(value) for key, value in stored}

    def caseless(self) -> list[str]:
        """Return the owner's names in scripts without case, loaded on first use."""
        if self._caseless is None:
            stored = self._partition.get(keys.caseless(self._owner))
            self._caseless = decode_names(stored) if stored else []
        return self._caseless

    def names(self) -> EntityNames:
        """Return the owner's entities by the words of their names, loaded on first use."""
        if self._names is None:
            nodes = self._partition.scan(keys.table(self._owner, keys.NODE))
            found = [NodeRow.decode(value).key for _, value in islice(nodes, NAMES_MOST + 1)]
            self._names = EntityNames(key.text for key in found if is_entity(key) and len(found) <= NAMES_MOST)
        return self._names

    def window(self, newest: int) -> SketchWindow:
        """Return the sketches of the owner's newest vectors up to the `seq` `newest`. They are loaded on first use,
        before the current event changes any."""
        if self._window is None:
            self._window = SketchWindow()
            first = keys.links(self._owner, max(0, newest - WINDOW + 1))
            end = keys.after(keys.table(self._owner, keys.LINKS))
            for key, value in self._partition.scan_range(first, end):
                if sketch := sketch_of(value):
                    self._window.put(keys.sequence(key), sketch)
        return self._window

    def wholes(self, seqs: Sequence[int], model: str, dimension: int) -> tuple[list[int], Matrix]:
        """Return the memories among `seqs` that have a vector of a model, and these vectors, (memories, dimension), as
        they were before the event at hand."""
        if model != self._model or dimension != self._wholes.shape[1]:
            self._model, self._wholes = model, np.empty((0, dimension), np.float32)
            self._whole_seqs = np.empty(0, np.int64)
        asked = np.array(seqs, np.int64)
        if len(self._whole_seqs) < KNOWN_VECTORS:
            self._make_room(max(seqs, default=_NOBODY))
        places = asked % KNOWN_VECTORS
        rows = self._wholes.take(places, axis=0)
        (missing,) = (self._whole_seqs.take(places) != asked).nonzero()
        if not len(missing):
            return [*seqs], rows
        has_vector = np.ones(len(asked), np.bool_)
        stored = self._partition.get_many([keys.vectors(self._owner, seqs[at]) for at in missing])
        for at, value in zip(missing.tolist(), stored, strict=True):
            whole = None if value is None else Vectors.read_whole(value, model, dimension)
            if whole is None:
                has_vector[at] = False
            else:
                rows[at] = whole
                self._keep_whole(seqs[at], whole)
        return asked[has_vector].tolist(), rows[has_vector]

    def put_vectors(self, seq: int, vectors: Vectors | None) -> None:
        """Take in the vectors that a memory has now; None where it has none."""
        if vectors is not None and vectors.model == self._model:
            self._keep_whole(seq, vectors.whole)
        elif (place := seq % KNOWN_VECTORS) < len(self._whole_seqs) and self._whole_seqs[place] == seq:
            self._whole_seqs[place] = _NOBODY

    def _keep_whole(self, seq: int, whole: Matrix) -> None:
        self._make_room(seq)
        place = seq % KNOWN_VECTORS
        if self._whole_seqs[place] <= seq:  # the newest are kept
            self._wholes[place], self._whole_seqs[place] = whole, seq

    def _make_room(self, seq: int) -> None:
        held = len(self._whole_seqs)
        if (wanted := min(seq + 1, KNOWN_VECTORS)) <= held:
            return
        size = min(max(wanted, 2 * held, _FEWEST_VECTORS), KNOWN_VECTORS)
        wholes, whole_seqs = np.zeros((size, self._wholes.shape[1]), np.float32), np.full(size, _NOBODY, np.int64)
        wholes[:held], whole_seqs[:held] = self._wholes, self._whole_seqs
        self._wholes, self._whole_seqs = wholes, whole_seqs

    def publish(self, staged: Staged) -> None:
        if len(self.nodes) > KNOWN_NODES:
            self.nodes.clear()
            self.has_all_nodes = False
        if len(self.absent) > KNOWN_NODES:
            self.absent.clear()
        self.absent.difference_update(staged.nodes)  # `-=` would copy the whole set
        for key, name in staged.nodes.items():
            _put(self.nodes, key, name)
        if self._names is not None:
            for key, name in staged.nodes.items():
                if is_entity(NodeKey(key)):
                    self._names.remove(key) if name is None else self._names.put(key)
        for seq, marker in staged.unsynced.items():
            _put(self.unsynced, seq, marker)
        if staged.caseless is not None:
            self._caseless = staged.caseless
        if self._window is not None:
            for seq, sketch in staged.sketches.items():
                if sketch:
                    self._window.put(seq, sketch)
                else:
                    self._window.remove(seq)

    def size_bytes(self) -> int:
        window = self._window.size_bytes() if self._window is not None else 0
        names = self._names.size_bytes() if self._names is not None else 0
        return window + names + self._wholes.nbytes + _NODE_BYTES * (len(self.nodes) + len(self.absent))


def _put(kept: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        kept.pop(key, None)
    else:
        kept[key] = value
