"""Which of an owner's newest memories may have a vector close to a given one: by sketches of 32 bytes.

A sketch has a bit for each of 256 random hyperplanes: on which side of it the vector lies. Two vectors with the angle a
differ in a bit with the probability a/π (Charikar, 2002, "Similarity estimation techniques from rounding algorithms"),
so close vectors have sketches that differ in few. The vectors themselves would be 48 times as much to keep in memory,
and to read for each write."""

import math
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import faiss
import numpy as np

from recallflow.embedder import Matrix
from recallflow.state.arrays import Codes

WINDOW = 2_048  # memories: the cost of a write must not grow with the owner
BITS = 256
SKETCH_BYTES = BITS // 8
_SURE = 4  # standard deviations: of pairs just at the threshold, three in 100,000 are missed
_SMALLEST = 64
_NOBODY = -1  # where a `seq` would be
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
    """Return the sketch of each vector (dimension,). Each product is computed separately, so that it does not depend on
    the other vectors."""
    products = np.empty((len(vectors), BITS), np.float32)
    for vector, row in zip(vectors, products, strict=True):
        vector = np.ascontiguousarray(vector, np.float32)
        _products(faiss.swig_ptr(row), faiss.swig_ptr(vector), _hyperplanes(len(vector))[1], len(vector), BITS)
    return [code.tobytes() for code in np.packbits(products > 0, axis=1)]


@lru_cache
def most_different(cosine: float) -> int:
    """Return the maximum number of differing bits between sketches of vectors with at least this cosine, with near
    certainty."""
    differs = math.acos(cosine) / math.pi
    return math.floor(BITS * (differs + _SURE * math.sqrt(differs * (1 - differs) / BITS)))


class SketchWindow:
    """Sketches of the memories whose `seq` is among the last `WINDOW` numbers. Forgotten memories count too, so that
    results do not depend on the time of loading."""

    def __init__(self) -> None:
        asked = np.zeros(SKETCH_BYTES, np.uint8)
        self._asked, self._asked_pointer = asked.data.cast("B"), faiss.swig_ptr(asked)
        self._grow(np.zeros((_SMALLEST, SKETCH_BYTES), np.uint8), array("q", [_NOBODY] * _SMALLEST))

    def put(self, seq: int, sketch: bytes) -> None:
        place = seq % WINDOW
        while place >= len(self._seqs):
            self._grow(np.concatenate([self._codes, np.zeros_like(self._codes)]),
                       self._seqs + array("q", [_NOBODY] * len(self._seqs)))  # fmt: skip
        if self._seqs[place] <= seq:  # its place may be a newer one's by now
            self._bytes[place * SKETCH_BYTES : (place + 1) * SKETCH_BYTES] = sketch
            self._seqs[place] = seq

    def remove(self, seq: int) -> None:
        place = seq % WINDOW
        if place < len(self._seqs) and self._seqs[place] == seq:
            self._seqs[place] = _NOBODY

    def near(self, sketch: bytes, most: int, newest: int) -> list[int]:
        """Return the `seq` of memories whose sketches differ in at most `most` bits, closest first, then newest, among
        the last `WINDOW` up to `newest`."""
        self._asked[:] = sketch
        _hammings(*self._pointers, 1, len(self._seqs), SKETCH_BYTES, self._differs_pointer)
        (places,) = np.less_equal(self._differs, most, self._are_near).nonzero()
        if not len(places):
            return []
        seqs = self._numbers.take(places)
        in_window = seqs > max(newest - WINDOW, _NOBODY)
        places, seqs = places[in_window], seqs[in_window]
        # One sort of one number each: of two numbers it would be two.
        order = (self._differs.take(places).astype(np.int64) << _SEQ_BITS) - seqs
        found: list[int] = seqs[order.argsort()].tolist()
        return found

    def size_bytes(self) -> int:
        return self._codes.nbytes + self._differs.nbytes + self._are_near.nbytes + self._numbers.nbytes

    def _grow(self, codes: Codes, seqs: "array[int]") -> None:
        self._codes, self._seqs = codes, seqs
        self._bytes = codes.data.cast("B")
        self._numbers = np.frombuffer(seqs, np.int64)  # the very memory of `seqs`
        self._differs, self._are_near = np.empty(len(seqs), np.int32), np.empty(len(seqs), np.bool_)
        # Looked up once: that is slower than a search.
        self._pointers = self._asked_pointer, faiss.swig_ptr(codes)
        self._differs_pointer = faiss.swig_ptr(self._differs)
