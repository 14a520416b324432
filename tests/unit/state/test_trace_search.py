"""Searching files for data of a person: search terms, and findings in every place."""

import base64
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import DBCompressionType, Options, Rdict

from recallflow.state import trace_search
from recallflow.state.trace_search import (
    LEAST_BYTES,
    PIECE_BYTES,
    Findings,
    Pieces,
    RecordFilter,
    Traces,
    log_records,
    pieces_of,
    search_folder,
    table_records,
)

SECRET = 'the "secret" garden of Zo\u00eb'
PIECE = SECRET.encode()


NOTHING = RecordFilter()


def searched(folder: Path, *pieces: bytes, known: RecordFilter = NOTHING) -> dict[str, int]:
    """Which files have how many of the pieces."""
    findings = Findings()
    search_folder(folder, Pieces(pieces), known, findings)
    assert not findings.unread
    return {str(path.relative_to(folder)): count for path, count in findings.conclusive().items()}


def database(path: Path) -> Any:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.zstd())
    options.set_disable_auto_compactions(True)
    return Rdict(str(path), options)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_is_searched_by_pieces_that_occur_in_it(text: str) -> None:
    pieces = [*pieces_of(text)]
    assert all(piece in text.encode() and len(piece) >= LEAST_BYTES for piece in pieces)
    if LEAST_BYTES <= len(text.strip().encode()) < 2 * PIECE_BYTES or len(text.split()) == 1 < len(text) // PIECE_BYTES:
        assert pieces


def test_words_of_the_person_are_searched_not_the_engines() -> None:
    traces = Traces()
    traces.add(
        {
            "type": "memory", "id": "memory-id-1", "position": "memory.events:0:15", "tenant_id": "tenant of all",
            "content": "I keep bees on the roof, and honey in the cellar", "created_at": "2024-03-01T10:00:00Z",
            "kind": "preference", "metadata": {"field of mine": "value of mine"},
            "entities": [{"name": "Honeycomb Ltd", "type": "company"}], "tags": ["short", "apiculture"],
            "vectors": {"model": "model of all"},
        }
    )  # fmt: skip
    assert traces.pieces() == sorted(
        (b"memory-id-1", b"I keep bees on the", b"roof, and honey in", b"ey in the cellar",
         b"field of mine", b"value of mine", b"Honeycomb Ltd", b"apiculture")
    )  # fmt: skip


def test_large_word_sets_are_sampled_reproducibly() -> None:
    def sample(texts: Iterator[str]) -> Traces:
        traces = Traces(most=10)
        for text in texts:
            traces.add({"id": text})
        return traces

    forth, back = (
        sample(f"memory number {n}" for n in range(100)),
        sample(f"memory number {99 - n}" for n in range(100)),
    )
    assert len(forth.pieces()) == 10
    assert forth.pieces() == back.pieces()
    assert forth.left_out == 90


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=9), st.binary(), st.binary())
def test_a_piece_is_found_in_every_form(text: str, before: bytes, behind: bytes) -> None:
    pieces = Pieces([text.encode()])
    forms = [
        text.encode(), json.dumps(text).encode()[1:-1], json.dumps(text, ensure_ascii=False).encode()[1:-1],
        text.encode("utf-16-le"), text.encode("utf-16-be"),
    ]  # fmt: skip
    assert all(pieces.within(before + form + behind) for form in forms)
    assert pieces.within(base64.b64encode(before + text.encode() + behind))


@given(st.integers(1, 40), st.integers(0, 100))
def test_a_piece_is_found_wherever_parts_end(size: int, before: int) -> None:
    data = b"x" * before + PIECE + b"y" * 50
    parts = (data[at : at + size] for at in range(0, len(data), size))
    assert Pieces([PIECE]).along(parts) == {0}
    assert not Pieces([PIECE]).along([data.replace(b"garden", b"gardan")])


def test_a_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_search, "CHUNK_BYTES", 7)
    (tmp_path / "a").write_bytes(b"." * 5 + PIECE)
    (tmp_path / "b").write_bytes(PIECE[:-1])
    assert searched(tmp_path, PIECE) == {"a": 1}


def test_compressed_table_content_is_found_after_deletion(tmp_path: Path) -> None:
    with closing(database(tmp_path / "p")) as db:
        for number in range(500):
            db.put(b"k%03d" % number, b"the garden the garden the garden %d: " % number + PIECE)
        db.flush()
        db.delete_range(b"k000", b"k999")
        db.flush()
        assert not [*db.keys()]
        (table,) = [path for path in (tmp_path / "p").glob("*.sst") if [*table_records(path)]]
        before = table.read_bytes()
        assert searched(tmp_path, b"garden 417: " + PIECE) == {f"p/{table.name}": 1}
        assert b"garden 417: " + PIECE not in before  # compressed
        assert table.read_bytes() == before
        db.compact_range(None, None)
    assert searched(tmp_path, b"garden 417: " + PIECE) == {}


def test_log_content_is_found_across_blocks(tmp_path: Path) -> None:
    pieces = [b"piece number %06d of all" % number for number in range(10_000)]
    with closing(database(tmp_path / "p")) as db:
        written = [(b"k%d" % at, b"".join(pieces[at : at + 500])) for at in range(0, len(pieces), 500)]
        for key, value in written:
            db.put(key, value)
        db.delete(b"k500")
        (log,) = (tmp_path / "p").glob("*.log")
        records = [*log_records(log)]
        assert [(key, value.removeprefix(key)) for key, value in records[:-1]] == written
        assert records[-1][0] == b"k500"
        data = log.read_bytes()
        parted = [piece for piece in pieces if piece not in data]  # by the head of a fragment
        assert parted
        assert searched(tmp_path, *parted) == {f"p/{log.name}": len(parted)}


def test_rows_deleted_by_sqlite_are_found(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "store.sqlite3")) as store:
        store.execute("PRAGMA secure_delete = OFF")
        store.execute("CREATE TABLE snaps (value BLOB)")
        store.executemany("INSERT INTO snaps VALUES (?)", [(b"%d" % n + PIECE,) for n in range(100)])
        store.commit()
        store.execute("DELETE FROM snaps")
        store.commit()
    assert searched(tmp_path, PIECE) == {"store.sqlite3": 1}


def test_text_of_other_users_is_no_finding(tmp_path: Path) -> None:
    with closing(database(tmp_path / "p")) as db:
        db.put(b"others", b"a common saying")
        db.put(b"theirs", b"a common saying, and " + PIECE)
        db.flush()
    found = searched(tmp_path, b"a common saying", PIECE, known=RecordFilter(lambda key, _: key == b"others"))
    assert [*found.values()] == [1]
    assert [*searched(tmp_path, b"a common saying", known=RecordFilter(lambda key, _: key == b"others")).values()] == []


def test_unreadable_table_is_searched_bytewise_and_reported(tmp_path: Path) -> None:
    (tmp_path / "000001.sst").write_bytes(b"no table at all, but " + PIECE)
    findings = Findings()
    search_folder(tmp_path, Pieces([PIECE]), RecordFilter(), findings)
    assert [*findings.conclusive()] == [tmp_path / "000001.sst"]
    assert findings.unread == {tmp_path / "000001.sst"}


def test_vanished_file_is_skipped_and_its_successor_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(PIECE)
    (tmp_path / "b").write_bytes(b"")
    along = Pieces.along

    def merging(self: Pieces, parts: Iterator[bytes]) -> set[int]:
        found = along(self, parts)
        (tmp_path / "a").unlink(missing_ok=True)  # right after it was read
        (tmp_path / "c").write_bytes(PIECE)
        return found

    monkeypatch.setattr(Pieces, "along", merging)
    assert searched(tmp_path, PIECE) == {"c": 1}
