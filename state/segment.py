"""The encoding of segments: ranges of one owner's memories as arrays of the index, which load at the speed of a memory
copy. They are derived data.

Layout: a frame (version, header length, checksum of the rest), a JSON header (single values, strings, type and length
of each array), and the arrays, each in the smallest sufficient type. A damaged segment is decoded as None."""

import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import orjson

from recallflow.state.arrays import Array, Codes

STRING_COLUMNS = ("author", "kind", "layer", "role", "session", "project", "category")
# Columns of memories, by name. A column of strings contains their numbers, -1 for none.
COLUMNS: dict[str, type[np.generic]] = {
    "seq": np.int64,
    "version": np.int32,
    "live": np.bool_,
    "created_ms": np.int64,
    "episode": np.int64,
    "flags": np.uint8,
    **dict.fromkeys(STRING_COLUMNS, np.int32),
    "importance": np.float64,
    "confidence": np.float64,
    "valid_from_ms": np.int64,
    "valid_to_ms": np.int64,
    "expires_ms": np.int64,
    "edited_ms": np.int64,
}

# Segments of another version are rebuilt. The number must change with the content of any array, such as the identities
# and spelling features of stems (state/lexical.py) or the byte form of vectors (state/vectors.py).
VERSION = zlib.crc32(repr((7, [*COLUMNS])).encode())
_FRAME = struct.Struct("<IIQ")  # version, header bytes, checksum
_INTEGER_TYPES = [np.iinfo(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4")]  # smallest first
_ALIGNMENT = 8  # bytes, of arrays and of the checksum


class Words(NamedTuple):
    """Stems of a range of memories."""

    stems: Array  # the distinct identities
    flat: Array  # index in `stems` of each occurrence, memory by memory
    lengths: Array  # occurrences per memory
    counts: Array  # number of spelling features per stem
    features: Array  # spelling features, stem by stem
    cuts: Array  # index of the first occurrence of each passage other than a memory's first, ascending
    cut_places: Array  # position of that passage's memory in the range


class Rows(NamedTuple):
    """Vectors of a range of memories, one byte per number."""

    positions: Array  # position of each row's memory in the range, ascending
    codes: Codes  # (rows, dimension) bytes, `masked`
    units: Array  # the factor from each row's bytes to its numbers


class Segment(NamedTuple):
    """A range of an owner's live memories by sequence number."""

    end: int  # the sequence number after the last
    size: int  # number of memories
    facts: Mapping[str, Array]  # by column of `COLUMNS`, (size,), or (1,) if all values are equal
    names: list[str]  # the strings of the numbers in `facts`
    ids: Array  # the bytes of all ids
    id_ends: Array  # the end of each id in `ids`
    tags: bytes  # packed by `Labels`
    metadata: bytes  # packed by `Labels`
    words: Words
    rows: Rows
    token_dimension: int  # numbers per token vector, 0 without token vectors

    def versions(self) -> dict[int, int]:
        seqs, versions = (np.broadcast_to(self.facts[column], self.size) for column in ("seq", "version"))
        return dict(zip(seqs.tolist(), versions.tolist(), strict=True))

    def encode(self, model: str) -> bytes:
        facts = [_narrow(column[:1] if (column == column[:1]).all() else column) for column in self.facts.values()]
        rows, labels = self.rows, [np.frombuffer(packed, np.uint8) for packed in (self.tags, self.metadata)]
        narrow = map(_narrow, (self.id_ends, *self.words[1:], rows.positions))
        arrays = [*facts, self.words.stems, self.ids, *labels, *narrow, rows.codes.ravel(), rows.units]
        kinds = [(array.dtype.str, len(array)) for array in arrays]
        sizes = rows.codes.shape[1], self.end, self.size, self.token_dimension
        header = orjson.dumps([model, *sizes, self.names, kinds])
        parts = (header, *(array.tobytes() for array in arrays))
        body = b"".join(part.ljust(_padded(len(part)), b"\0") for part in parts)
        return _FRAME.pack(VERSION, len(header), _sum(body, len(header))) + body

    @classmethod
    def decode(cls, data: bytes, model: str, dimension: int) -> Self | None:
        """Return the segment, or None if it is damaged or of another version, model or dimension."""
        if len(data) < _FRAME.size or len(data) % _ALIGNMENT:
            return None
        version, length, total = _FRAME.unpack_from(data)
        start = _FRAME.size
        if version != VERSION or total != _sum(memoryview(data)[start:], length):
            return None
        header = orjson.loads(memoryview(data)[start : start + length])
        of_model, of_dimension, end, size, token_dimension, names, kinds = header
        if (of_model, of_dimension) != (model, dimension):
            return None
        start += _padded(length)
        arrays = []
        for dtype, count in kinds:
            arrays.append(np.frombuffer(data, dtype, count, start))
            start += _padded(arrays[-1].nbytes)
        facts = dict(zip(COLUMNS, arrays, strict=False))
        stems, ids, tags, metadata, id_ends, *of_words, positions, codes, units = arrays[len(COLUMNS) :]
        words, rows = Words(stems, *of_words), Rows(positions, codes.reshape(-1, dimension), units)
        labels = tags.tobytes(), metadata.tobytes()
        return cls(end, size, facts, names, ids, id_ends, *labels, words, rows, token_dimension)


def masked(codes: Codes, out: Codes | None = None) -> Codes:
    """Mask or unmask codes with noise: RocksDB does not compress masked ones, and reads them four times as fast."""
    noise = _noise_of(1 << codes.size.bit_length())[: codes.size]
    return np.bitwise_xor(codes, noise.reshape(codes.shape), out=out)


@lru_cache(4)
def _noise_of(count: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(np.random.RandomState(0).bytes(count), np.uint8)


def _narrow(array: Array) -> Array:
    """Return integers in the smallest sufficient type, and other values unchanged."""
    if array.dtype.kind in "iu" and len(array):
        least, most = int(array.min()), int(array.max())
        for limits in _INTEGER_TYPES:
            if limits.min <= least and most <= limits.max:
                return array.astype(limits.dtype, copy=False)
    return array


def _padded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _sum(body: bytes | memoryview, length: int) -> int:
    """Return a fast checksum against damage, not against tampering."""
    return (int(np.frombuffer(body, np.uint64).sum(dtype=np.uint64)) + length) % 2**64
