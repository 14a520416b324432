"""In-memory data for writing an owner's graph: all of it is derived, and is built from RocksDB on first use.

Sketches tell which of an owner's newest memories may have a vector close to a given one. A sketch has a bit for each of
256 random hyperplanes: on which side of it the vector lies. Two vectors with the angle a differ in a bit with the
probability a/π (Charikar, 2002, "Similarity estimation techniques from rounding algorithms"), so close vectors have
sketches that differ in few. The vectors themselves would take 48 times as much memory."""

import math
from array import array
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import faiss
import numpy as np

from recallflow.embedder import Matrix
from recallflow.state import keys
from recallflow.state.arrays import Codes, Ints
from recallflow.state.entity_names import NAMES_MOST, EntityNames, NameJoin, decode_names
from recallflow.state.graph_codec import NodeKey, NodeRow, Superseded, Unsynced, is_entity, sketch_of
from recallflow.state.partition import Partition
from recallflow.state.rows import Vectors

WINDOW = 2_048  # memories: the cost of a write must not grow with the owner
BITS = 256
SKETCH_BYTES = BITS // 8
_SIGMAS = 4  # standard deviations: of pairs just at the threshold, three in 100,000 are missed
_INITIAL_SLOTS = 64
_NO_SEQ = -1  # in place of a `seq`
_SEQ_BITS = 48  # of a sequence number
_products = faiss.fvec_inner_products_ny  # type: ignore[attr-defined]
_hammings = faiss.hammings  # type: ignore[attr-defined]


@lru_cache
def _hyperplanes(dimension: int) -> tuple[Matrix, Any]:
    """Return (BITS, dimension) hyperplanes, and their address. They are equal in every process, because `RandomState`
    has a stable stream (NEP 19)."""
    planes = np.random.RandomState(BITS).standard_normal((BITS, dimension)).astype(np.float32)
    return planes, faiss.swig_ptr(planes)


def sketches(vectors: Sequence[Matrix]) -> list[bytes]:
    """Return the sketch of each vector (dimension,). Each vector is multiplied alone, because the
    rounding of a batched product depends on the batch."""
    products = np.empty((len(vectors), BITS), np.float32)
    for vector, row in zip(vectors, products, strict=True):
        vector = np.ascontiguousarray(vector, np.float32)
        _products(faiss.swig_ptr(row), faiss.swig_ptr(vector), _hyperplanes(len(vector))[1], len(vector), BITS)
    return [code.tobytes() for code in np.packbits(products > 0, axis=1)]


@lru_cache
def max_differing_bits(cosine: float) -> int:
    """Return the maximum of differing bits, with near certainty, for vectors with at least this cosine."""
    differs = math.acos(cosine) / math.pi
    return math.floor(BITS * (differs + _SIGMAS * math.sqrt(differs * (1 - differs) / BITS)))


class SketchWindow:
    """Sketches of the memories whose `seq` is among the last `WINDOW` numbers. Numbers of forgotten memories
    take up room in the window, so that results do not depend on the time of loading."""

    def __init__(self) -> None:
        query_sketch = np.zeros(SKETCH_BYTES, np.uint8)
        self._asked, self._asked_pointer = query_sketch.data.cast("B"), faiss.swig_ptr(query_sketch)
        self._grow(np.zeros((_INITIAL_SLOTS, SKETCH_BYTES), np.uint8), array("q", [_NO_SEQ] * _INITIAL_SLOTS))

    def put(self, seq: int, sketch: bytes) -> None:
        slot = seq % WINDOW
        while slot >= len(self._seqs):
            self._grow(np.concatenate([self._codes, np.zeros_like(self._codes)]),
                       self._seqs + array("q", [_NO_SEQ] * len(self._seqs)))  # fmt: skip
        if self._seqs[slot] <= seq:  # a newer memory may have taken the slot
            self._bytes[slot * SKETCH_BYTES : (slot + 1) * SKETCH_BYTES] = sketch
            self._seqs[slot] = seq

    def remove(self, seq: int) -> None:
        place = seq % WINDOW
        if place < len(self._seqs) and self._seqs[place] == seq:
            self._seqs[place] = _NO_SEQ

    def near(self, sketch: bytes, most: int, newest: int) -> list[int]:
        """Return the `seq` of memories whose sketches differ in at most `most` bits, closest first, then newest, among
        the last `WINDOW` up to `newest`."""
        self._asked[:] = sketch
        _hammings(*self._pointers, 1, len(self._seqs), SKETCH_BYTES, self._differs_pointer)
        (places,) = np.less_equal(self._differs, most, self._are_near).nonzero()
        if not len(places):
            return []
        seqs = self._numbers.take(places)
        in_window = seqs > max(newest - WINDOW, _NO_SEQ)
        places, seqs = places[in_window], seqs[in_window]
        # Distance and -seq in one integer need one sort only.
        order = (self._differs.take(places).astype(np.int64) << _SEQ_BITS) - seqs
        found: list[int] = seqs[order.argsort()].tolist()
        return found

    def size_bytes(self) -> int:
        return self._codes.nbytes + self._differs.nbytes + self._are_near.nbytes + self._numbers.nbytes

    def _grow(self, codes: Codes, seqs: "array[int]") -> None:
        self._codes, self._seqs = codes, seqs
        self._bytes = codes.data.cast("B")
        self._numbers = np.frombuffer(seqs, np.int64)  # shares the buffer of `seqs`
        self._differs, self._are_near = np.empty(len(seqs), np.int32), np.empty(len(seqs), np.bool_)
        # Cached, because fetching the pointers takes longer than a search.
        self._pointers = self._asked_pointer, faiss.swig_ptr(codes)
        self._differs_pointer = faiss.swig_ptr(self._differs)


K = TypeVar("K")
V = TypeVar("V")

MAX_CACHED_NODES = MAX_CACHED_VECTORS = 1_024
_FEWEST_VECTORS = 16
_NODE_BYTES = 250


@dataclass(slots=True)
class StagedGraphChanges:
    """The changes of one event to its owner's graph: records to write (None deletes), and updates of in-memory data."""

    effects: dict[bytes, bytes | None] = field(default_factory=dict)
    nodes: dict[str, bytes | None] = field(default_factory=dict)  # see `HotGraph`; None for a deleted node
    superseded: dict[int, list[Superseded]] = field(default_factory=dict)  # see `OwnerGraph`
    unsynced: dict[int, Unsynced | None] = field(
        default_factory=dict
    )  # None once the failed graph write of the memory is repeated
    joined: dict[str, list[NameJoin]] = field(default_factory=dict)  # see `Unions`
    caseless: list[str] | None = None  # all caseless names, if they changed
    sketches: dict[int, bytes] = field(default_factory=dict)  # empty for a memory without a sketch
    edges: int = 0  # the next edge number
    more_edges: int = 0  # the difference of the number of edges
    kept: dict[bytes, tuple[bytes, ...]] = field(
        default_factory=dict
    )  # keys of past records to keep, by prefix of the node or edge

    def get(self, partition: Partition, key: bytes) -> bytes | None:
        """Return a record, including this event's changes."""
        return self.effects[key] if key in self.effects else partition.get(key)

    def copied(self) -> "StagedGraphChanges":
        return StagedGraphChanges(*(copy(getattr(self, one.name)) for one in fields(self)))


class HotGraph:
    """The in-memory data of one owner's graph."""

    def __init__(self, partition: Partition, owner: bytes, *, was_empty: bool) -> None:
        """`was_empty`: nothing was stored of the owner at loading."""
        self._partition = partition
        self._owner = owner
        self._window = SketchWindow() if was_empty else None
        self.has_all_nodes = was_empty
        # Memory vectors (means of their passages) of one model, at index `seq % MAX_CACHED_VECTORS`.
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
        # A scan sees committed data only. That is enough: an owner is loaded only when nothing of it is staged, because
        # owners are evicted between batches.
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
        if len(self._whole_seqs) < MAX_CACHED_VECTORS:
            self._make_room(max(seqs, default=_NO_SEQ))
        places = asked % MAX_CACHED_VECTORS
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
        """Cache a memory's current vectors, or drop its cached vector if it has none."""
        if vectors is not None and vectors.model == self._model:
            self._keep_whole(seq, vectors.whole)
        elif (place := seq % MAX_CACHED_VECTORS) < len(self._whole_seqs) and self._whole_seqs[place] == seq:
            self._whole_seqs[place] = _NO_SEQ

    def _keep_whole(self, seq: int, whole: Matrix) -> None:
        self._make_room(seq)
        place = seq % MAX_CACHED_VECTORS
        if self._whole_seqs[place] <= seq:  # the newest are kept
            self._wholes[place], self._whole_seqs[place] = whole, seq

    def _make_room(self, seq: int) -> None:
        held = len(self._whole_seqs)
        if (wanted := min(seq + 1, MAX_CACHED_VECTORS)) <= held:
            return
        size = min(max(wanted, 2 * held, _FEWEST_VECTORS), MAX_CACHED_VECTORS)
        wholes, whole_seqs = np.zeros((size, self._wholes.shape[1]), np.float32), np.full(size, _NO_SEQ, np.int64)
        wholes[:held], whole_seqs[:held] = self._wholes, self._whole_seqs
        self._wholes, self._whole_seqs = wholes, whole_seqs

    def publish(self, staged: StagedGraphChanges) -> None:
        if len(self.nodes) > MAX_CACHED_NODES:
            self.nodes.clear()
            self.has_all_nodes = False
        if len(self.absent) > MAX_CACHED_NODES:
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
