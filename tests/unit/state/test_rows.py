"""Every record round-trips."""

from dataclasses import fields
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.fields import EPOCH_MS_MAX, EPOCH_MS_MIN
from recallflow.owner import Owner
from recallflow.state.rows import (
    CategorySummaryRow,
    Current,
    Entry,
    EpisodeMark,
    EpisodeRow,
    EpisodeSummaryRow,
    Held,
    Made,
    MemoryRow,
    OwnerHead,
    Vectors,
)

# All of Unicode but lone surrogates, which no JSON text holds; NUL and line ends among them.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIME = st.integers(EPOCH_MS_MIN, EPOCH_MS_MAX)  # the years 1 to 9999: before 1970 is negative
SEQ = st.integers(0, 2**63 - 1)
VERSION = st.integers(0, 2**31 - 1)
SHARE = st.floats(0, 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)

ROW_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "id": TEXT, "seq": SEQ, "version": VERSION, "change": SEQ, "content": TEXT, "created_ms": TIME,
    "ingested_ms": TIME, "created_logged": st.booleans(), "ingested_logged": st.booleans(), "kind": TEXT,
    "layer": TEXT, "role": st.none() | TEXT, "name": st.none() | TEXT, "session_id": st.none() | TEXT,
    "project_id": st.none() | TEXT, "summary": st.none() | TEXT, "category": st.none() | TEXT,
    "tags": st.lists(TEXT, max_size=3), "topics": st.lists(TEXT, max_size=3),
    "entities": st.lists(OBJECT, max_size=2), "relations": st.lists(OBJECT, max_size=2), "importance": SHARE,
    "confidence": SHARE, "valid_from_ms": st.none() | TIME, "valid_to_ms": st.none() | TIME,
    "expires_ms": st.none() | TIME, "metadata": st.none() | OBJECT, "edited_ms": st.none() | TIME,
    "edited_logged": st.booleans(),
}  # fmt: skip
ENTRY_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    name: ROW_FIELDS[name] for name in Entry._fields if name in ROW_FIELDS
} | {
    "episode": st.integers(-1, 2**63 - 1), "flags": st.integers(0, 255), "author": st.none() | TEXT,
    "author_stems": TEXT, "stems": TEXT, "metadata": st.lists(TEXT, max_size=3),
}  # fmt: skip
EPISODE_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "number": SEQ, "id": TEXT, "session_id": st.none() | TEXT, "start_ms": TIME, "last_ms": TIME,
    "ended_ms": st.none() | TIME, "merged_into": st.none() | SEQ, "logged": st.booleans(), "of_facts": st.booleans(),
    "summarised": st.booleans(),
}  # fmt: skip
ROW_FIELDS |= {"derived_from": st.none() | OBJECT, "filled": st.lists(TEXT, max_size=3)}
ROWS = st.builds(MemoryRow, **ROW_FIELDS)
EPISODES = st.builds(EpisodeRow, **EPISODE_FIELDS)


def test_the_properties_below_vary_every_field() -> None:
    assert ROW_FIELDS.keys() == {f.name for f in fields(MemoryRow)}
    assert ENTRY_FIELDS.keys() == set(Entry._fields)
    assert EPISODE_FIELDS.keys() == set(EpisodeRow._fields)


SEQS = st.lists(SEQ, max_size=3)
RECORDS: list[st.SearchStrategy[Any]] = [
    ROWS,
    st.builds(Entry, **ENTRY_FIELDS),
    EPISODES,
    st.builds(EpisodeMark, SEQ, TIME, st.none() | TEXT, st.none() | TIME, st.none() | EPISODES),
    st.builds(EpisodeSummaryRow, SEQ, TIME, SEQ, TEXT),
    st.builds(Made, SEQS, st.lists(st.tuples(TEXT, SEQ), max_size=3), SEQS),
    st.builds(CategorySummaryRow, SEQ, TIME, TEXT, TEXT, SEQS),
    st.builds(Current, SEQ, VERSION, TEXT, st.booleans(), SEQ),
]


@pytest.mark.parametrize(
    "records",
    RECORDS,
    ids=["row", "entry", "episode", "mark", "episode_summary", "made", "category_summary", "current"],
)
@given(data=st.data())
def test_encoded_record_decodes_to_itself(records: st.SearchStrategy[Any], data: st.DataObject) -> None:
    record = data.draw(records)
    assert type(record).decode(record.encode()) == record


@given(
    head=st.builds(
        OwnerHead, st.builds(Owner, TEXT, TEXT, TEXT), SEQ, SEQ, st.none() | TIME, st.integers(0, 7),
        st.builds(Held, SEQ, SEQ, SEQ),
    )
)  # fmt: skip
def test_an_owner_head_round_trips(head: OwnerHead) -> None:
    decoded = OwnerHead.decode(head.encode())
    assert decoded == head
    assert isinstance(decoded.owner, Owner)


@given(model=TEXT, rows=st.integers(0, 4), dimension=st.integers(1, 8), data=st.data())
def test_vectors_round_trip_bit_by_bit(model: str, rows: int, dimension: int, data: st.DataObject) -> None:
    size = rows * dimension
    floats = data.draw(st.lists(st.floats(width=32, allow_nan=False), min_size=size, max_size=size))
    matrix = np.array(floats, np.float32).reshape(rows, dimension)
    decoded = Vectors.decode(Vectors(model, matrix).encode())
    assert decoded.model == model
    assert decoded.matrix.shape == matrix.shape
    assert decoded.matrix.dtype == matrix.dtype
    assert decoded.matrix.tobytes() == matrix.tobytes()


@given(tokens=st.integers(1, 3), dimension=st.integers(1, 4), data=st.data())
def test_token_vectors_round_trip(tokens: int, dimension: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(-127, 127), min_size=tokens * dimension, max_size=tokens * dimension))
    rows = np.array(numbers, np.int8).reshape(tokens, dimension)
    matrix = np.array([[1, 0.5]], np.float32)
    decoded = Vectors.decode(Vectors("m", matrix, rows).encode())
    assert decoded.tokens.tolist() == rows.tolist()
    assert decoded.matrix.tolist() == matrix.tolist()
    assert Vectors.decode(Vectors("m", matrix, rows[:0]).encode()).tokens.shape == (0, 0)


def test_the_tokens_of_several_passages_round_trip_with_their_sizes() -> None:
    several = Vectors("m", np.eye(3, dtype=np.float32), np.arange(8, dtype=np.int8).reshape(4, 2), (3, 0, 1))
    decoded = Vectors.decode(several.encode())
    assert (decoded.sizes, decoded.tokens.tolist()) == ((3, 0, 1), several.tokens.tolist())
    assert decoded.encode() == several.encode()
    np.testing.assert_allclose(decoded.whole, [3**-0.5] * 3, rtol=1e-6)
    assert Vectors("m", np.array([[3, 4]], np.float32)).whole.tolist() == [3, 4]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("tokens", [0, 5])
def test_whole_vector_is_read_alone_if_of_the_model(rows: int, tokens: int) -> None:
    matrix = np.eye(8, dtype=np.float32)[:rows]
    sizes = (tokens - 2, 1, 1) if rows > 1 and tokens else ()
    stored = Vectors("m", matrix, np.ones((tokens, 4), np.int8), sizes)
    found = Vectors.read_whole(stored.encode(), "m", 8)
    assert found is not None
    assert found.tolist() == stored.whole.tolist()
    assert Vectors.read_whole(stored.encode(), "n", 8) is None
    assert Vectors.read_whole(stored.encode(), "m1", 8) is None


def test_vectors_are_stored_as_little_endian_floats_row_by_row() -> None:
    # The bytes are hashed into the state hash: another layout is another format version.
    matrix = np.array([[1.0, -2.0], [0.5, 0.0]], np.float32)
    header = bytes([2, 0, 2, 0, 2, 0, 0, 0])
    floats = bytes.fromhex("0000803f 000000c0 0000003f 00000000")
    assert Vectors("mö", matrix[:0]).encode() == bytes([3, 0, 0, 0, 2, 0, 0, 0]) + "mö".encode()
    assert Vectors("ab", matrix).encode() == header + b"ab" + floats


@pytest.mark.parametrize("order", ["C", "F"])
def test_matrix_is_stored_by_rows_in_any_memory_layout(order: Any) -> None:
    matrix = np.array([[1, 2, 3], [4, 5, 6]], np.float32, order=order)
    assert Vectors.decode(Vectors("m", matrix).encode()).matrix.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert Vectors.decode(Vectors("m", matrix[:, ::2]).encode()).matrix.tolist() == [[1, 3], [4, 6]]


def test_numbers_beyond_64_bits_are_refused_and_not_rounded() -> None:
    row = MemoryRow("m", 0, 0, 0, "", 0, 0, metadata={"n": 2**64})
    with pytest.raises(orjson.JSONEncodeError):
        row.encode()


def test_the_author_is_the_name_or_else_the_role() -> None:
    def author(**told: Any) -> str | None:
        return MemoryRow("m", 0, 0, 0, "", 0, 0, **told).author

    assert author(name="Ann", role="user") == "Ann"
    assert author(role="user") == "user"
    assert author() is None


@given(row=ROWS, created=TIME, ingested=TIME, edited=TIME)
def test_unlogged_times_stay_out_of_the_hash(row: MemoryRow, created: int, ingested: int, edited: int) -> None:
    logical = row.logical()
    assert ("created_ms" in logical) == row.created_logged
    assert ("ingested_ms" in logical) == row.ingested_logged
    assert ("edited_ms" in logical) == row.edited_logged
    assert logical.keys() >= ROW_FIELDS.keys() - {"created_ms", "ingested_ms", "edited_ms"}
    stamped = MemoryRow(
        **{f.name: getattr(row, f.name) for f in fields(row)}
        | {
            "created_ms": row.created_ms if row.created_logged else created,
            "ingested_ms": row.ingested_ms if row.ingested_logged else ingested,
            "edited_ms": row.edited_ms if row.edited_logged else edited,
        }
    )
    assert stamped.logical() == logical


@given(episode=EPISODES, at_ms=TIME)
def test_episode_with_an_unlogged_time_is_hashed_without_span(episode: EpisodeRow, at_ms: int) -> None:
    moved = episode._replace(start_ms=at_ms, last_ms=at_ms, ended_ms=at_ms)
    span = {"start_ms", "last_ms", "ended_ms"}
    assert episode.logical().keys() & span == (span if episode.logged else set())
    if not episode.logged:
        assert moved.logical() == episode.logical()


@pytest.mark.parametrize("stored", [b"{}", b"[]", b'["m",0,0,0,"",0,0]', b'"m"'])
def test_invalid_memory_row_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="memory row"):
        MemoryRow.decode(stored)
