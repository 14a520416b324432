"""A segment: a stretch of one owner's memories as an index keeps them, packed so that it loads as fast as memory is
copied. Derived data only.

As bytes: a frame (which format, a sum over all the rest, how long the header is), a header of JSON (what there is only
now and then, strings), and arrays one behind the other. What does not fit, for whatever reason, is no segment.
"""

import struct
import zlib
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import orjson

FACTS = np.dtype(
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
NAMED = ("author", "kind", "layer", "role", "session", "project", "category")

# Segments are made again where this changes. It stands for all that shapes them: what is in an array, spelling features
# (state/lexical.py), vectors in bytes (state/vectors.py).
VERSION = zlib.crc32(repr((1, FACTS.descr)).encode())
_FRAME = struct.Struct("<IIQ")  # version, bytes of the header, sum
_ALIGNED = 8  # bytes: of what is summed up, and of where an array begins

Array = npt.NDArray[Any]


class Words(NamedTuple):
    """Stems of a stretch of memories. `stems`: each once, in the order of first sight; `flat`: the number in `stems` of
    each occurrence, memory by memory; `lengths`: occurrences of each memory; `counts`: spelling features of each stem;
    `features`: these, stem by stem."""

    stems: list[str]
    flat: Array
    lengths: Array
    counts: Array
    features: Array


class Rows(NamedTuple):
    """Vectors of a stretch of memories, a byte a number: the place of each one's memory in the stretch, rising; (rows,
    dimension) bytes; the unit of each row."""

    places: Array
    codes: Array
    units: Array


class Segment(NamedTuple):
    """`facts`: of `FACTS`, all live; `names`: what their numbers stand for; `tags`: by place, of those that have any;
    `token_dimension`: numbers per token vector, 0 where no memory has any."""

    facts: Array
    names: list[str]
    ids: list[str]
    tags: list[tuple[int, list[str]]]
    words: Words
    rows: Rows
    token_dimension: int

    def encode(self, model: str) -> bytes:
        words, rows = self.words, self.rows
        dimension = rows.codes.shape[1]
        arrays = [self.facts, words.flat, words.lengths, words.counts, words.features, *rows]
        parts = [array.astype(dtype, copy=False).tobytes() for array, (_, dtype) in zip(arrays, _ARRAYS, strict=True)]
        counts = [len(array) for array in arrays]
        header = orjson.dumps(
            [model, dimension, self.token_dimension, counts, self.names, self.ids, self.tags, words.stems]
        )
        body = b"".join(_padded(part) for part in (header, *parts))
        return _FRAME.pack(VERSION, len(header), _sum(body, len(header))) + body

    @classmethod
    def decode(cls, data: bytes, model: str, dimension: int) -> Self | None:
        """The segment, if it is one of this model."""
        if len(data) < _FRAME.size or len(data) % _ALIGNED:
            return None
        version, length, total = _FRAME.unpack_from(data)
        if version != VERSION or total != _sum(memoryview(data)[_FRAME.size :], length):
            return None
        start = _FRAME.size
        of_model, of_dimension, token_dimension, counts, names, ids, tags, stems = orjson.loads(
            memoryview(data)[start : start + length]
        )
        if (of_model, of_dimension) != (model, dimension):
            return None
        start += _whole(length)
        found = []
        for count, (name, dtype) in zip(counts, _ARRAYS, strict=True):
            values = count * dimension if name == "codes" else count
            found.append(np.frombuffer(data, dtype, values, start))
            start += _whole(found[-1].nbytes)
        facts, flat, lengths, per_word, features, places, codes, units = found
        words = Words(stems, flat, lengths, per_word, features)
        return cls(facts, names, ids, tags, words, Rows(places, codes.reshape(-1, dimension), units), token_dimension)


_ARRAYS: tuple[tuple[str, npt.DTypeLike], ...] = (
    ("facts", FACTS),
    ("flat", np.uint32),
    ("lengths", np.uint32),
    ("counts", np.uint32),
    ("features", np.uint16),
    ("places", np.uint32),
    ("codes", np.uint8),
    ("units", np.float32),
)


def _whole(length: int) -> int:
    """The length with what makes it a whole number of aligned steps."""
    return -(-length // _ALIGNED) * _ALIGNED


def _padded(part: bytes) -> bytes:
    return part.ljust(_whole(len(part)), b"\0")


def _sum(body: bytes | memoryview, length: int) -> int:
    """Tells damage from what was written, at the speed of memory: no checksum against intent."""
    return (int(np.frombuffer(body, np.uint64).sum(dtype=np.uint64)) + length) % 2**64
