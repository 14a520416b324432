"""The records kept per owner, and their codecs: JSON for records, packed floats for vectors."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from recallflow.embedder import Matrix
from recallflow.owner import Owner
from recallflow.state.arrays import Bytes, mean
from recallflow.state.tokens import NO_TOKENS

# Bits of `Entry.flags`:
HAS_QUESTION = 1  # the text contains a question mark
ENDS_ASKING = 2  # the text ends with a question mark
TELLS_TIME = 4  # the text holds a time expression
LANGUAGE_SHIFT = 3  # bits 3 to 6: the language of the words in Latin script, as an index in `language.LATIN`
BLANK = 128  # the text is blank, and the memory is never ranked; the highest bit
PASSAGE_END = "\n"  # in an entry's stems

F = TypeVar("F", int, npt.NDArray[Any])


def language_in(flags: F) -> F:
    """Return the language in the flags of entries, as an index in `language.LATIN`."""
    return (flags & (BLANK - 1)) >> LANGUAGE_SHIFT


@dataclass(slots=True)
class MemoryRow:
    """One version of one memory. It is immutable by convention (a frozen class would take three times as long to
    create). Times are in epoch milliseconds.

    `created_ms` is the event time of the memory, `edited_ms` that of the update that made this version (None for the
    first), `ingested_ms` the ingestion time of this version. `…_logged` is False for a time from the clock of an
    embedded source: a replay does not repeat it, and the state hash omits it. `change` is the number of the owner's
    event that wrote this version. `derived_from` has the source memories; `filled`, the columns with derived values."""

    id: str
    seq: int
    version: int
    change: int
    content: str
    created_ms: int
    ingested_ms: int
    created_logged: bool = True
    ingested_logged: bool = True
    kind: str = "message"
    layer: str = "long_term"
    role: str | None = None
    name: str | None = None
    session_id: str | None = None
    project_id: str | None = None
    summary: str | None = None
    category: str | None = None
    tags: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    entities: list[dict[str, Any]] = field(default_factory=list)
    relations: list[dict[str, Any]] = field(default_factory=list)
    importance: float = 0.5
    confidence: float = 1.0
    valid_from_ms: int | None = None
    valid_to_ms: int | None = None
    expires_ms: int | None = None
    metadata: dict[str, Any] | None = None
    edited_ms: int | None = None
    edited_logged: bool = True
    derived_from: dict[str, Any] | None = None
    filled: list[str] = field(default_factory=list)

    def encode(self) -> bytes:
        return orjson.dumps(_columns(self))

    @classmethod
    def decode(cls, data: bytes) -> "MemoryRow":
        """Decode a row. Raise ValueError for another number of columns."""
        columns = orjson.loads(data)
        if not isinstance(columns, list) or len(columns) != len(_COLUMNS):
            raise ValueError(f"a memory row is a list of {len(_COLUMNS)} columns")
        return cls(*columns)

    @property
    def author(self) -> str | None:
        return self.name or self.role

    @property
    def updated_ms(self) -> int:
        """Return the event time of this version."""
        return self.created_ms if self.edited_ms is None else self.edited_ms

    def logged_fields(self) -> dict[str, Any]:
        """Return the fields that any replay of the log gives again."""
        columns = dict(zip(_COLUMNS, _columns(self), strict=True))
        for time in ("created", "ingested", "edited"):
            if not columns[f"{time}_logged"]:
                del columns[f"{time}_ms"]
        return columns


_COLUMNS = [column.name for column in fields(MemoryRow)]
# A list without names takes less than half the bytes, a third of the encoding time and a fifth of the decoding time.
_columns = attrgetter(*_COLUMNS)


class Entry(NamedTuple):
    """The index entry of a memory's current version: all fields of ranking and filtering, so that building an index
    reads no row.

    `episode` is the number of its episode, -1 for none. `stems` are in text order, separated by blanks, and passages by
    line ends; `author_stems` are those of the author's name. `metadata` has labels for filters (state/labels.py)."""

    seq: int
    version: int
    change: int
    id: str
    created_ms: int
    created_logged: bool
    ingested_ms: int
    episode: int
    flags: int
    author: str | None
    author_stems: str
    stems: str
    kind: str
    layer: str
    role: str | None
    session_id: str | None
    project_id: str | None
    category: str | None
    tags: list[str]
    importance: float
    confidence: float
    valid_from_ms: int | None
    valid_to_ms: int | None
    expires_ms: int | None
    metadata: list[str]
    edited_ms: int | None = None

    @property
    def updated_ms(self) -> int:
        """Return the event time of this version."""
        return self.created_ms if self.edited_ms is None else self.edited_ms

    @classmethod
    def decode(cls, data: bytes) -> "Entry":
        return cls._make(orjson.loads(data))

    @classmethod
    def decode_all(cls, encoded: Iterable[bytes]) -> "list[Entry]":
        """Decode many entries in one call, which is faster."""
        return [*map(cls._make, orjson.loads(b"[%b]" % b",".join(encoded)))]


class EpisodeRow(NamedTuple):
    """The memories of one session between two inactivity gaps.

    A merged episode keeps its row with the number of the episode that absorbed it, so its members are not rewritten."""

    number: int
    id: str
    session_id: str | None
    start_ms: int  # of the first message
    last_ms: int  # of the last message
    ended_ms: int | None = None  # of an explicit end; without one, an episode is open until the gap has passed
    merged_into: int | None = None  # the number of the episode that absorbed it
    logged: bool = True  # whether its times are those of a log (see `MemoryRow`)
    of_facts: bool = False  # whether the session has only facts
    summarised: bool = False  # whether it has a current summary

    @classmethod
    def decode(cls, data: bytes) -> "EpisodeRow":
        return cls._make(orjson.loads(data))

    @classmethod
    def read_merged_into(cls, data: bytes) -> int | None:
        """Return the number of the episode that absorbed an encoded one, or None. Most are not decoded for this."""
        return None if data.endswith(_UNMERGED) else cls.decode(data).merged_into

    def logged_fields(self) -> dict[str, Any]:
        """Return the fields that any replay of the log gives again."""
        fields = self._asdict()
        if not self.logged:
            del fields["start_ms"], fields["last_ms"], fields["ended_ms"]
        return fields


# Suffixes of an encoded episode that is not merged.
_UNMERGED = tuple(b",null,%b,%b,%b]" % flags for flags in product((b"true", b"false"), repeat=3))


class MemoryHead(NamedTuple):
    """The state of a memory id: `seq`, latest version, digest of its creating event, text bytes of all versions."""

    seq: int
    version: int
    digest: str
    forgotten: bool  # whether the memory was deleted
    text_bytes: int

    @classmethod
    def decode(cls, data: bytes) -> "MemoryHead":
        return cls._make(orjson.loads(data))


class EpisodeLogEntry(NamedTuple):
    """A change of episodes that no index entry shows: an explicit end at `ended_ms`, or a deleted member."""

    change: int
    ingested_ms: int
    session_id: str | None
    ended_ms: int | None
    opened: EpisodeRow | None  # the episode that the deleted member would have opened
    project_id: str | None = None  # the project of the deleted member

    @classmethod
    def of_member(cls, member: Entry, opened: EpisodeRow) -> "EpisodeLogEntry":
        return cls(member.change, member.ingested_ms, member.session_id, None, opened, member.project_id)

    @classmethod
    def decode(cls, data: bytes) -> "EpisodeLogEntry":
        change, ingested_ms, session_id, ended_ms, opened, project_id = orjson.loads(data)
        return cls(change, ingested_ms, session_id, ended_ms, EpisodeRow(*opened) if opened else None, project_id)


class CategorySummaryRow(NamedTuple):
    """A summary of a category. The latest is current; earlier ones are kept for historical queries."""

    change: int
    ingested_ms: int
    category: str
    summary: str
    sources: list[int] = []  # `seq` of its source memories, if known

    @classmethod
    def decode(cls, data: bytes) -> "CategorySummaryRow":
        return cls._make(orjson.loads(data))


class EpisodeSummaryRow(NamedTuple):
    change: int
    ingested_ms: int
    number: int
    summary: str

    @classmethod
    def decode(cls, data: bytes) -> "EpisodeSummaryRow":
        return cls._make(orjson.loads(data))


class Derivatives(NamedTuple):
    """The memories and summaries that were derived from a memory."""

    memories: list[int]  # by `seq`
    summaries: list[tuple[str, int]]  # by category and change
    ended: list[int]  # `seq` of memories that were derived from earlier texts, and have ended

    @classmethod
    def decode(cls, data: bytes) -> "Derivatives":
        memories, summaries, ended = orjson.loads(data)
        return cls(memories, [(category, change) for category, change in summaries], ended)

    def without(self, seq: int) -> "Derivatives":
        """Return the derivatives without one derived memory."""
        memories, ended = ([one for one in found if one != seq] for found in (self.memories, self.ended))
        return self._replace(memories=memories, ended=ended)


class OwnerCounts(NamedTuple):
    """An owner's counts for quotas: current memories, text bytes of all their versions, edges of the graph."""

    memories: int = 0
    text_bytes: int = 0
    edges: int = 0


class OwnerHead(NamedTuple):
    """The state of an owner."""

    owner: Owner
    next_seq: int
    next_change: int
    clock_ms: int | None = None  # the latest ingestion time from a log; None before the first
    language: int = 0  # of the last text whose language was recognised with certainty
    counts: OwnerCounts = OwnerCounts()

    def encode(self) -> bytes:
        numbers = self.next_seq, self.next_change, self.clock_ms, self.language
        return orjson.dumps([*self.owner, *numbers, *self.counts])

    @classmethod
    def decode(cls, data: bytes) -> "OwnerHead":
        tenant_id, environment, user_id, next_seq, next_change, clock_ms, language, *counts = orjson.loads(data)
        owner = Owner(tenant_id, environment, user_id)
        return cls(owner, next_seq, next_change, clock_ms, language, OwnerCounts(*counts))


class Vectors(NamedTuple):
    """The vectors of one memory, and their model.

    Attributes:
        matrix: (passages, dimension) float32, L2-normalised; one row for a single passage or a vector from the event.
        tokens: (tokens, token dimension), unit vectors in bytes (`state/tokens.py`), passage by passage; no rows if the
            model has no token vectors.
        sizes: the number of tokens of each row of `matrix`; empty if there is one row, or no tokens."""

    model: str
    matrix: Matrix
    tokens: Bytes = NO_TOKENS
    sizes: tuple[int, ...] = ()

    @property
    def whole(self) -> Matrix:
        """Return the memory's vector, (dimension,) L2-normalised: the mean of its passages."""
        return self.matrix[0] if len(self.matrix) == 1 else mean(self.matrix)

    def encode(self) -> bytes:
        encoded = _encode_head(self.model, *self.matrix.shape) + self.matrix.astype(_FLOAT, copy=False).tobytes()
        if not len(self.tokens):
            return encoded
        sizes = struct.pack(f"<{len(self.sizes)}I", *self.sizes)
        return encoded + _TOKENS.pack(self.tokens.shape[1]) + sizes + self.tokens.tobytes()

    @classmethod
    def read_whole(cls, data: bytes, model: str, dimension: int) -> Matrix | None:
        """Return `whole` of encoded vectors, or None for another model. A single row is not decoded."""
        head = _encode_head(model, 1, dimension)
        if data.startswith(head):
            return np.frombuffer(data, _FLOAT, dimension, len(head))
        found = cls.decode(data)
        return found.whole if found.model == model else None

    @classmethod
    def decode(cls, data: bytes) -> "Vectors":
        length, rows, dimension = _VECTORS.unpack_from(data)
        start = _VECTORS.size + length
        matrix = np.ndarray((rows, dimension), _FLOAT, data, start)
        end = start + matrix.nbytes
        tokens, sizes = NO_TOKENS, ()
        if len(data) > end:
            (size,) = _TOKENS.unpack_from(data, end)
            end += _TOKENS.size
            if rows > 1:
                sizes = struct.unpack_from(f"<{rows}I", data, end)
                end += struct.calcsize(f"<{rows}I")
            tokens = np.frombuffer(data, np.int8, -1, end).reshape(-1, size)
        return cls(data[_VECTORS.size : start].decode(), matrix, tokens, sizes)


@lru_cache(16)
def _encode_head(model: str, rows: int, dimension: int) -> bytes:
    name = model.encode()
    return _VECTORS.pack(len(name), rows, dimension) + name


_VECTORS = struct.Struct("<HHI")  # length of the model's name, rows, dimension; the name and the floats follow
_FLOAT = np.dtype("<f4")
# Bytes per token. The sizes (if there are several rows) and the tokens follow. All are absent if there are no tokens.
_TOKENS = struct.Struct("<H")
