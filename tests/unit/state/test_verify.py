"""Verifying, cleaning and spreading state directories."""

import contextlib
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.owner import Owner, state_partition
from recallflow.state import keys
from recallflow.state.description import describe
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED
from recallflow.state.folders import numbers_in, partition_folder
from recallflow.state.moving import merge, move, split
from recallflow.state.partition import Partition
from recallflow.state.rows import Current, Entry, Vectors
from recallflow.state.state_hash import combined_hash
from recallflow.state.verify import verify
from tests.groups import share
from tests.unit.state.member import PARTITIONS, Member, told

CACHE_BYTES = 1024 * 1024
ANN = Owner("acme", "prod", "ann")


def test_a_sound_directory_has_no_problems(state_dir: Path) -> None:
    report = verify(state_dir)
    assert report.problems == []
    assert report.partitions == 2
    expected = {"owners": 4, "ids": 25, "rows": 25, "entries": 24, "vectors": 24, "event ids": 1}
    assert {name: report.records[name] for name in expected} == expected


@contextlib.contextmanager
def damaging(state_dir: Path) -> Iterator[tuple[Partition, dict[bytes, bytes | None]]]:
    """The open state partition of Ann, and the records to write to it."""
    damages: dict[bytes, bytes | None] = {}
    with StateDirectory.open(state_dir, describe(state_dir)[0], CACHE_BYTES) as directory:
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
        current = Current.decode(partition.get(keys.current(ann, name["fact"])) or b"")
        whole_row, whole_vectors = partition.get(row) or b"", partition.get(vectors) or b""
        stored = Vectors.decode(whole_vectors)
        damages |= {
            keys.row(ann, name["ann2"], 0): None,
            keys.entry(ann, 5): None,
            row: whole_row[:-5],
            vectors: whole_vectors[:-1],
            keys.vectors(ann, 1): stored._replace(matrix=stored.matrix[:, :10]).encode(),
            keys.entry(ann, 4): entry._replace(episode=99).encode(),
            keys.current(ann, name["fact"]): current._replace(version=1).encode(),
            keys.OWNERS + ann + b"Yfoo": b"",
            b"\x07foreign": b"",
            keys.head(partition.keyring.owner(Owner("x", "y", "z"))): orjson.dumps(["x", "y", "other", 0, 0, None, 0]),
        }
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
        "names an owner of another key",
        "vectors 5: of no entry",
    ):
        assert expected in said
    assert "walnut" not in said


def test_head_that_would_reuse_a_number_is_found(state_dir: Path) -> None:
    with damaging(state_dir) as (partition, damages):
        damages[keys.head(partition.keyring.owner(ANN))] = orjson.dumps([*ANN, 3, 9, None, 0])
    assert any("next sequence number is 3, and 6 is taken" in problem for problem in verify(state_dir).problems)


def test_a_table_file_with_a_flipped_bit_is_found(state_dir: Path) -> None:
    with StateDirectory.open(state_dir, describe(state_dir)[0], CACHE_BYTES) as directory:
        directory.partitions()  # what was in the write-ahead log is in a table file now
    file = max(state_dir.glob("p*/*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    file.write_bytes(data)
    assert any("cannot be read" in problem for problem in verify(state_dir).problems)


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
    assert any("says it holds Counts(owners=7, memories=7)" in problem for problem in verify(state_dir).problems)


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
        return {one.number: (one.place, dict(one.applied)) for one in member.directory.existing_partitions()}


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
