"""Verification, the cleaning of erased data, and traces in files."""

import base64
import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import DBCompressionType, Options, Rdict

from recallflow.owner import Owner, state_partition
from recallflow.records import Position
from recallflow.state import database, keys, trace_search
from recallflow.state.description import describe
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED
from recallflow.state.folders import numbers_in, partition_folder
from recallflow.state.graph_codec import encode_row
from recallflow.state.moving import merge, move, split
from recallflow.state.partition import Counts, Partition
from recallflow.state.rows import Entry, MemoryHead, Vectors
from recallflow.state.state_hash import combined_hash
from recallflow.state.trace_search import (
    MIN_PIECE_BYTES,
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
from recallflow.state.verify import verify
from tests.groups import share
from tests.unit.state.member import KEYRING, PARTITIONS, Member, told

ANN = Owner("acme", "prod", "ann")


def test_a_sound_directory_has_no_problems(state_dir: Path) -> None:
    report = verify(state_dir)
    assert (report.problems, report.partitions) == ([], 2)
    expected = {"owners": 4, "ids": 25, "rows": 25, "entries": 24, "vectors": 24, "event ids": 1}
    assert {name: report.records[name] for name in expected} == expected


@contextlib.contextmanager
def damaging(state_dir: Path) -> Iterator[tuple[Partition, dict[bytes, bytes | None]]]:
    """The open state partition of Ann, and the records to write to it."""
    damages: dict[bytes, bytes | None] = {}
    with StateDirectory.open(state_dir, describe(state_dir)[0]) as directory:
        partition = directory.partition(state_partition(ANN.tenant_id, ANN.user_id, 2))
        yield partition, damages
        partition.stage(damages)
        partition.commit()


def test_every_planted_damage_is_found(state_dir: Path) -> None:
    with damaging(state_dir) as (partition, damages):
        ann = partition.keyring.owner(ANN)
        name = {memory_id: partition.keyring.name(ann, memory_id) for memory_id in ("ann1", "ann2", "fact")}
        row, vectors = keys.row(ann, name["ann1"], 0), keys.vectors(ann, 0)
        entry = Entry.decode(partition.get(keys.entry(ann, 4)) or b"")
        current = MemoryHead.decode(partition.get(keys.current(ann, name["fact"])) or b"")
        whole_row, whole_vectors = partition.get(row) or b"", partition.get(vectors) or b""
        stored = Vectors.decode(whole_vectors)
        damages |= {
            keys.row(ann, name["ann2"], 0): None, keys.entry(ann, 5): None, row: whole_row[:-5],
            vectors: whole_vectors[:-1], keys.vectors(ann, 1): stored._replace(matrix=stored.matrix[:, :10]).encode(),
            keys.entry(ann, 4): encode_row(entry._replace(episode=99)),
            keys.current(ann, name["fact"]): encode_row(current._replace(version=1)), keys.OWNERS + ann + b"Yfoo": b"",
            b"\x07foreign": b"",
            keys.head(partition.keyring.owner(Owner("x", "y", "z"))): orjson.dumps(["x", "y", "other", 0, 0, None, 0]),
        }  # fmt: skip
    said = "\n".join(verify(state_dir).problems)
    for expected in (
        f"id {name['ann2'].hex()}: row of version 0 missing",
        "entry 5 missing",
        f"rows {row[18:].hex()}: cannot be decoded",
        f"vectors {vectors[18:].hex()}: cannot be decoded",
        "of dimension 10, not of 384",
        "entry 4: episode 99 missing",
        f"id {name['fact'].hex()}: row of version 1 missing",
        "is of version 0, not 1",
        f"{(keys.OWNERS + ann + b'Yfoo').hex()}: a key of no table",
        "07666f726569676e: a key of no table",
        "contains the name of an owner with another key",
        "vectors 5: the entry is missing",
    ):
        assert expected in said
    assert "walnut" not in said


def test_head_that_would_reuse_a_number_is_found(state_dir: Path) -> None:
    with damaging(state_dir) as (partition, damages):
        damages[keys.head(partition.keyring.owner(ANN))] = orjson.dumps([*ANN, 3, 9, None, 0])
    assert any("next sequence number is 3, and 6 is taken" in problem for problem in verify(state_dir).problems)


def test_unopenable_partition_is_one_problem_among_others(state_dir: Path) -> None:
    with damaging(state_dir) as (partition, damages):
        damages[b"\x07foreign"] = b""
    (partition_folder(state_dir, 1 - partition.number) / "CURRENT").write_bytes(b"nonsense")
    problems = verify(state_dir).problems
    assert len(problems) == 2
    assert any("a key of no table" in problem for problem in problems)


def test_wrong_counts_are_found(state_dir: Path) -> None:
    with damaging(state_dir) as (_, damages):
        damages[keys.COUNTS] = b"[7,7]"
    assert any("the stored count is Counts(owners=7, memories=7)" in problem for problem in verify(state_dir).problems)


NAMES = ("whole", "a", "b")
Held = dict[int, tuple[bytes | None, dict[str, int]]]

SPREADS = st.lists(
    st.tuples(st.booleans(), st.lists(st.sampled_from(NAMES), min_size=PARTITIONS, max_size=PARTITIONS)), max_size=2
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("filled") / "whole"
    with Member.on(path) as member:
        member.take(*range(PARTITIONS))
        member.run(told(0, 2))
        return path, member.hash()


def held(path: Path) -> Held:
    with Member.on(path) as member:
        return {one.number: (one.progress, dict(one.applied)) for one in member.directory.existing_partitions()}


@settings(max_examples=share(0.2))
@given(spreads=SPREADS)
def test_spreading_and_joining_keeps_the_state(filled: tuple[Path, str], spreads: list[tuple[bool, list[str]]]) -> None:
    path, hashed = filled
    with tempfile.TemporaryDirectory(prefix="recallflow-spread-") as folder:
        there = {name: Path(folder) / name for name in NAMES}
        shutil.copytree(path, there["whole"])
        where = dict.fromkeys(range(PARTITIONS), "whole")
        for at_once, targets in spreads:
            for source, goes in changes(where, targets).items():
                if at_once:
                    split(there[source], {there[target]: numbers for target, numbers in goes.items()}, UNENCRYPTED)
                else:
                    for target, numbers in goes.items():
                        move(there[source], there[target], numbers, UNENCRYPTED, create=True)
            where = dict(enumerate(targets))
            spread = [one for one in there.values() if one.exists()]
            assert {number: one.name for one in spread for number in numbers_in(one)} == where
        spread = [one for one in there.values() if one.exists()]
        assert combined_hash(spread, UNENCRYPTED).hash == hashed
        merge(spread, Path(folder) / "again", UNENCRYPTED, lambda _: ("", (0, 0, 0)), now_ms=0)
        assert held(Path(folder) / "again") == held(path)
        assert combined_hash([Path(folder) / "again"], UNENCRYPTED).hash == hashed
        assert verify(Path(folder) / "again", UNENCRYPTED).problems == []
        assert [number for one in spread for number in numbers_in(one)] == []


def changes(where: dict[int, str], targets: list[str]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, target in enumerate(targets):
        if where[number] != target:
            found[where[number]][target].append(number)
    return found


BO, CY = Owner("acme", "prod", "bo"), Owner("acme", "prod", "cy")
SECRET = b"walnut-secret"
Opened = Callable[..., Partition]


def fill(partition: Partition, owner: Owner, text: bytes, first: int, count: int) -> None:
    key = KEYRING.owner(owner)
    partition.begin_owner(owner, KEYRING.owner(owner))
    values = {keys.entry(key, seq): text + b" %d " % seq + os.urandom(500) for seq in range(first, first + count)}
    partition.stage({**values})
    partition.commit()
    partition.write_derived({keys.segment(key, first, first + count): text + os.urandom(5_000)})


def erase(partition: Partition, owner: Owner, offset: int = 0) -> None:
    user = KEYRING.user(owner.tenant_id, owner.user_id)
    partition.erase([KEYRING.owner(owner)], user, {}, Position("log", 0, offset), Counts(0, 0))


def files_with(folder: Path, text: bytes = SECRET) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and text in path.read_bytes())


def test_erased_data_is_in_no_file(opened: Opened, tmp_path: Path) -> None:
    partition, wrapped = opened(), os.urandom(32)
    partition.stage({keys.owner_key(KEYRING.owner(ANN)): wrapped})
    for first in range(0, 4_000, 1_000):
        for owner, text in ((BO, b"violin"), (ANN, SECRET), (CY, b"violin")):
            fill(partition, owner, text, first, 1_000)
        if first == 1_000:
            partition._db.flush()
            partition._db.compact_range(None, None)
        elif first == 2_000:
            partition = opened()
    assert len(files_with(tmp_path)) >= 3
    erase(partition, ANN)
    assert files_with(tmp_path)
    assert len(partition.cleaning) == 1
    partition.clean()
    assert files_with(tmp_path) == files_with(tmp_path, wrapped) == []
    assert len(partition.cleaning) == 0
    left = {keys.split(key)[0] for key, _ in partition.scan(keys.OWNERS)}
    assert left == {KEYRING.owner(BO), KEYRING.owner(CY)}
    assert len([*partition.scan(keys.table(KEYRING.owner(BO), keys.ENTRY))]) == 4_000
    assert [key for key, _ in opened().scan(keys.UNCLEANED)] == []


def test_other_deletions_are_purged_from_files(opened: Opened, tmp_path: Path) -> None:
    partition, sent = opened(), keys.outbox(bytes(16), 5)
    partition.stage({sent: SECRET})
    partition.commit()
    partition._db.flush()
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    partition.erase([KEYRING.owner(ANN)], bytes(16), {sent: None}, Position("log", 0, 0), Counts(0, 0))
    partition.clean()
    assert files_with(tmp_path) == []


def test_all_deletions_of_an_erasure_are_in_rewritten_files() -> None:
    ann, user = KEYRING.owner(ANN), KEYRING.user("acme", "ann")
    deleted = [keys.head(ann), keys.usage(ann, 2**63), keys.work(ann), keys.owner_key(ann), keys.user_owner(user, ann)]
    stretches = [*database._erased_ranges([keys.uncleaned(ann, user)])]
    for key in [*deleted, keys.outbox(bytes(16), 0), keys.outbox(b"\xff" * 16, 2**63)]:
        assert any(first <= key < end for first, end in stretches), key


def test_files_that_are_still_read_count_as_not_cleaned(opened: Opened, tmp_path: Path) -> None:
    partition = opened()
    fill(partition, ANN, SECRET, 0, 2_000)
    partition._db.flush()
    reader = partition.scan(keys.OWNERS)
    next(reader)
    erase(partition, ANN)
    partition.cleaning.interrupt()  # waits for no reader
    assert not partition.cleaning.run()
    assert files_with(tmp_path)
    assert len(partition.cleaning) == 1
    reader.close()  # type: ignore[attr-defined]
    partition = opened()
    assert len(partition.cleaning) == 1
    assert partition.cleaning.run()
    assert files_with(tmp_path) == []


def test_user_erased_again_is_cleaned_again(opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = opened()
    fill(partition, ANN, SECRET, 0, 100)
    erase(partition, ANN)
    clean, rounds = type(partition.cleaning)._clean, 0

    def clean_and_erase(*given: object) -> bool:
        nonlocal rounds
        rounds += 1
        done = clean(*given)  # type: ignore[arg-type]
        if rounds == 1:
            fill(partition, ANN, SECRET, 0, 100)
            partition._db.flush()
            erase(partition, ANN, 1)
            assert files_with(tmp_path)
        return done

    monkeypatch.setattr(type(partition.cleaning), "_clean", clean_and_erase)
    partition.clean()
    assert (rounds, files_with(tmp_path), len(opened().cleaning)) == (2, [], 0)


PHRASE = 'the "secret" garden of Zo\u00eb'
PIECE = PHRASE.encode()


NOTHING = RecordFilter()


def searched(folder: Path, *pieces: bytes, known: RecordFilter = NOTHING) -> dict[str, int]:
    """Which files have how many of the pieces."""
    findings = Findings()
    search_folder(folder, Pieces(pieces), known, findings)
    assert not findings.unread
    return {str(path.relative_to(folder)): count for path, count in findings.conclusive().items()}


def made_database(path: Path) -> Any:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.zstd())
    options.set_disable_auto_compactions(True)
    return Rdict(str(path), options)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_is_searched_by_pieces_that_occur_in_it(text: str) -> None:
    pieces = [*pieces_of(text)]
    assert all(piece in text.encode() and len(piece) >= MIN_PIECE_BYTES for piece in pieces)
    if (
        MIN_PIECE_BYTES <= len(text.strip().encode()) < 2 * PIECE_BYTES
        or len(text.split()) == 1 < len(text) // PIECE_BYTES
    ):
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
        traces = Traces(limit=10)
        for text in texts:
            traces.add({"id": text})
        return traces

    forth, back = (
        sample(f"memory number {n}" for n in range(100)), sample(f"memory number {99 - n}" for n in range(100)),
    )  # fmt: skip
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
    assert all(pieces.find_in(before + form + behind) for form in forms)
    assert pieces.find_in(base64.b64encode(before + text.encode() + behind))


@given(st.integers(1, 40), st.integers(0, 100))
def test_a_piece_is_found_wherever_parts_end(size: int, before: int) -> None:
    data = b"x" * before + PIECE + b"y" * 50
    parts = (data[at : at + size] for at in range(0, len(data), size))
    assert Pieces([PIECE]).find_in_stream(parts) == {0}
    assert not Pieces([PIECE]).find_in_stream([data.replace(b"garden", b"gardan")])


def test_a_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_search, "CHUNK_BYTES", 7)
    (tmp_path / "a").write_bytes(b"." * 5 + PIECE)
    (tmp_path / "b").write_bytes(PIECE[:-1])
    assert searched(tmp_path, PIECE) == {"a": 1}


def test_compressed_table_content_is_found_after_deletion(tmp_path: Path) -> None:
    with closing(made_database(tmp_path / "p")) as db:
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
    with closing(made_database(tmp_path / "p")) as db:
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
    with closing(made_database(tmp_path / "p")) as db:
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
    assert ([*findings.conclusive()], findings.unread) == ([tmp_path / "000001.sst"], {tmp_path / "000001.sst"})


def test_vanished_file_is_skipped_and_its_successor_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(PIECE)
    (tmp_path / "b").write_bytes(b"")
    find_in_stream = Pieces.find_in_stream

    def merging(self: Pieces, parts: Iterator[bytes]) -> set[int]:
        found = find_in_stream(self, parts)
        (tmp_path / "a").unlink(missing_ok=True)  # right after it was read
        (tmp_path / "c").write_bytes(PIECE)
        return found

    monkeypatch.setattr(Pieces, "find_in_stream", merging)
    assert searched(tmp_path, PIECE) == {"c": 1}
