"""In-memory data for writing an owner's graph. All of it is derived, and is built from RocksDB on first use.

Sketches select the memories whose vectors may be close to a given one. Each bit of a sketch tells on which side of one
of 256 random hyperplanes the vector lies. The sketches of two vectors with the angle a differ in a bit with probability
a/π (Charikar, 2002, "Similarity estimation techniques from rounding algorithms"), so those of close vectors differ in
few bits. The vectors themselves would take 48 times as much memory."""

import math
from array import array
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import islice
from typing import Any

import faiss
import numpy as np
import orjson

from recallflow.embedder import Matrix
from recallflow.state import keys
from recallflow.state.arrays import Codes
from recallflow.state.entity_names import SIMILAR_NAMES_MAX, EntityNames, NameJoin
from recallflow.state.graph_codec import NodeKey, NodeRow, Superseded, Unsynced, is_entity, sketch_of
from recallflow.state.partition import Partition
from recallflow.state.rows import Vectors

WINDOW = 2_048  # newest memories that are searched, so that the cost of a write does not grow with the owner
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
    """Return (BITS, dimension) hyperplanes and their address. They are equal in every process (NEP 19)."""
    planes = np.random.RandomState(BITS).standard_normal((BITS, dimension)).astype(np.float32)
    return planes, faiss.swig_ptr(planes)


def sketches(vectors: Sequence[Matrix]) -> list[bytes]:
    """Return the sketch of each (dimension,) vector. The rounding of a batched product would depend on the batch."""
    products = np.empty((len(vectors), BITS), np.float32)
    for vector, row in zip(vectors, products, strict=True):
        vector = np.ascontiguousarray(vector, np.float32)
        _products(faiss.swig_ptr(row), faiss.swig_ptr(vector), _hyperplanes(len(vector))[1], len(vector), BITS)
    return [code.tobytes() for code in np.packbits(products > 0, axis=1)]


@lru_cache
def max_differing_bits(cosine: float) -> int:
    """Return the number of differing bits that vectors with at least this cosine do not exceed (see `_SIGMAS`)."""
    differs = math.acos(cosine) / math.pi
    return math.floor(BITS * (differs + _SIGMAS * math.sqrt(differs * (1 - differs) / BITS)))


class SketchWindow:
    """Sketches of the memories whose `seq` is among the last `WINDOW` numbers. Numbers of forgotten memories count, so
    that results do not depend on the time of loading."""

    def __init__(self) -> None:
        query = np.zeros(SKETCH_BYTES, np.uint8)
        self._query, self._query_pointer = query.data.cast("B"), faiss.swig_ptr(query)
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
        slot = seq % WINDOW
        if slot < len(self._seqs) and self._seqs[slot] == seq:
            self._seqs[slot] = _NO_SEQ

    def near(self, sketch: bytes, max_bits: int, newest: int) -> list[int]:
        """Return the `seq` of memories whose sketches differ in at most `max_bits` bits, closest first, then newest.
        Only the last `WINDOW` numbers up to `newest` count."""
        self._query[:] = sketch
        _hammings(*self._pointers, 1, len(self._seqs), SKETCH_BYTES, self._distances_pointer)
        (slots,) = np.less_equal(self._distances, max_bits, self._is_near).nonzero()
        if not len(slots):
            return []
        seqs = self._numbers.take(slots)
        in_window = seqs > max(newest - WINDOW, _NO_SEQ)
        slots, seqs = slots[in_window], seqs[in_window]
        # Pack (bits, -seq) into one integer, so that one sort is enough.
        order = (self._distances.take(slots).astype(np.int64) << _SEQ_BITS) - seqs
        found: list[int] = seqs[order.argsort()].tolist()
        return found

    def size_bytes(self) -> int:
        return self._codes.nbytes + self._distances.nbytes + self._is_near.nbytes + self._numbers.nbytes

    def _grow(self, codes: Codes, seqs: "array[int]") -> None:
        self._codes, self._seqs = codes, seqs
        self._bytes = codes.data.cast("B")
        self._numbers = np.frombuffer(seqs, np.int64)  # shares the buffer of `seqs`
        self._distances, self._is_near = np.empty(len(seqs), np.int32), np.empty(len(seqs), np.bool_)
        # Cache the SWIG pointers: creating them takes longer than a search.
        self._pointers = self._query_pointer, faiss.swig_ptr(codes)
        self._distances_pointer = faiss.swig_ptr(self._distances)


MAX_CACHED_NODES = MAX_CACHED_VECTORS = 1_024
_NODE_BYTES, _VECTOR_BYTES = 250, 250  # of Python objects per item


@dataclass(slots=True)
class StagedGraphChanges:
    """The changes of one event to its owner's graph: records to write (`effects`, None deletes), and in-memory data."""

    effects: dict[bytes, bytes | None] = field(default_factory=dict)
    nodes: dict[str, bytes | None] = field(default_factory=dict)  # see `HotGraph`; None for a deleted node
    superseded: dict[int, list[Superseded]] = field(default_factory=dict)  # supersessions by `seq`
    unsynced: dict[int, Unsynced | None] = field(default_factory=dict)  # None once the failed graph write is repeated
    joined: dict[str, list[NameJoin]] = field(default_factory=dict)  # joins by name; empty to remove them
    caseless: list[str] | None = None  # all caseless names, if they changed
    sketches: dict[int, bytes] = field(default_factory=dict)  # empty for a memory without a sketch
    edge_numbers: int = 0  # edge numbers assigned by the event
    edge_count_delta: int = 0
    past_keys: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)  # added past records, by key prefix

    def get(self, partition: Partition, key: bytes) -> bytes | None:
        """Return a record, including this event's changes."""
        return self.effects[key] if key in self.effects else partition.get(key)

    def copied(self) -> "StagedGraphChanges":
        return StagedGraphChanges(*(copy(getattr(self, one.name)) for one in fields(self)))


class HotGraph:
    """The in-memory data of one owner's graph."""

    def __init__(self, partition: Partition, owner: bytes, *, was_empty: bool) -> None:
        """`was_empty`: whether the owner had no records at loading."""
        self._partition = partition
        self._owner = owner
        self._window = SketchWindow() if was_empty else None
        self.has_all_nodes = was_empty
        self._model = ("", 0)  # and the dimension of the cached vectors
        # By `seq % MAX_CACHED_VECTORS`: the newest such `seq` used, and its vector (the mean of its passages).
        self._vectors: dict[int, tuple[int, Matrix]] = {}
        self._caseless: list[str] | None = None
        self._names: EntityNames | None = None
        self.nodes: dict[str, bytes] = {}  # stored names of some nodes by key; of all if `has_all_nodes`
        self.absent: set[str] = set()  # keys of some nodes that do not exist
        self.unsynced: dict[int, Unsynced] = {}  # by `seq` of memories whose graph write failed
        if was_empty:
            return
        stored = partition.scan(keys.table(owner, keys.UNSYNCED))
        self.unsynced = {keys.sequence(key): Unsynced.decode(value) for key, value in stored}

    def caseless(self) -> list[str]:
        """Return the owner's names in scripts without case, loaded on first use."""
        if self._caseless is None:
            stored = self._partition.get(keys.caseless(self._owner))
            self._caseless = orjson.loads(stored or b"[]")
        return self._caseless

    def names(self) -> EntityNames:
        """Return the owner's entities by the words of their names, loaded on first use."""
        if self._names is None:
            nodes = self._partition.scan(keys.table(self._owner, keys.NODE))
            found = [NodeRow.decode(value).key for _, value in islice(nodes, SIMILAR_NAMES_MAX + 1)]
            self._names = EntityNames(key.text for key in found if is_entity(key) and len(found) <= SIMILAR_NAMES_MAX)
        return self._names

    def window(self, newest: int) -> SketchWindow:
        """Return the sketches of the memories up to `newest`, loaded at the first call. `publish` updates them."""
        if self._window is None:
            self._window = SketchWindow()
            first = keys.links(self._owner, max(0, newest - WINDOW + 1))
            end = keys.after(keys.table(self._owner, keys.LINKS))
            for key, value in self._partition.scan_range(first, end):
                if sketch := sketch_of(value):
                    self._window.put(keys.sequence(key), sketch)
        return self._window

    def memory_vectors(self, seqs: Sequence[int], model: str, dimension: int) -> tuple[list[int], Matrix]:
        """Return the memories with a committed vector of a model, and these vectors, (memories, dimension)."""
        if (model, dimension) != self._model:
            self._model, self._vectors = (model, dimension), {}
        slots = ((seq, self._vectors.get(seq % MAX_CACHED_VECTORS)) for seq in seqs)
        vectors: dict[int, Matrix | None] = {seq: slot[1] for seq, slot in slots if slot is not None and slot[0] == seq}
        if missing := [seq for seq in seqs if seq not in vectors]:
            stored = self._partition.get_many([keys.vectors(self._owner, seq) for seq in missing])
            for seq, value in zip(missing, stored, strict=True):
                vectors[seq] = None if value is None else Vectors.read_whole(value, model, dimension)
                self._cache_vector(seq, vectors[seq])
            vectors = {seq: vectors[seq] for seq in seqs if vectors[seq] is not None}
        return [*vectors], np.array([*vectors.values()], np.float32).reshape(-1, dimension)

    def put_vectors(self, seq: int, vectors: Vectors | None) -> None:
        """Cache a memory's current vector, or drop its cached vector if it has none of the model."""
        is_of_model = vectors is not None and vectors.model == self._model[0]
        self._cache_vector(seq, vectors.whole if vectors is not None and is_of_model else None)

    def _cache_vector(self, seq: int, vector: Matrix | None) -> None:
        slot = seq % MAX_CACHED_VECTORS
        cached, _ = self._vectors.get(slot, (_NO_SEQ, None))
        if vector is not None and cached <= seq:  # the newest are kept
            self._vectors[slot] = seq, vector
        elif cached == seq:
            del self._vectors[slot]

    def publish(self, staged: StagedGraphChanges) -> None:
        if len(self.nodes) > MAX_CACHED_NODES:
            self.nodes.clear()
            self.has_all_nodes = False
        if len(self.absent) > MAX_CACHED_NODES:
            self.absent.clear()
        self.absent.difference_update(staged.nodes)  # `-=` would copy the whole set
        _update(self.nodes, staged.nodes)
        if self._names is not None:
            for key, name in staged.nodes.items():
                if is_entity(NodeKey(key)):
                    self._names.remove(key) if name is None else self._names.put(key)
        _update(self.unsynced, staged.unsynced)
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
        vectors = (_VECTOR_BYTES + 4 * self._model[1]) * len(self._vectors)
        return window + names + vectors + _NODE_BYTES * (len(self.nodes) + len(self.absent))


def _update(cache: dict[Any, Any], changes: Mapping[Any, Any]) -> None:
    """Apply changes by key; None deletes."""
    for key, value in changes.items():
        if value is None:
            cache.pop(key, None)
        else:
            cache[key] = value
