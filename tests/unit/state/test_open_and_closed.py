"""A state partition is given up and taken again while the directory stays open, and its folder comes and goes."""

import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recallflow.connectors.master_keys import LocalMasterKey
from recallflow.errors import MasterKeyError, StateError
from recallflow.operators.recall import shared
from recallflow.operators.recall.shared import CandidatesCache
from recallflow.owner import Owner, state_partition
from recallflow.records import Position
from recallflow.state import description, folders, keys
from recallflow.state.database import shared_options
from recallflow.state.description import describe, rewrap
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import AtRest
from recallflow.state.files import write_checked
from recallflow.state.partition import Partition
from recallflow.state.segments import SMALL
from recallflow.state.verify import verify
from tests.unit.state.member import EVERY, KEY, OTHER, PARTITIONS, SEALED, USERS, Member, told

pytestmark = pytest.mark.slow


def of(number: int) -> list[str]:
    return [user for user in USERS if state_partition("acme", user, PARTITIONS) == number]


def test_reopened_directory_is_unchanged(tmp_path: Path, at_rest: AtRest) -> None:
    with Member.on(tmp_path / "whole", at_rest) as whole, Member.on(tmp_path / "moving", at_rest) as moving:
        for member in (whole, moving):
            member.take(*EVERY)
            member.run(told(0, 3))
        assert moving.ask() == whole.ask()
        moving.give(1, 2)
        moving.take(1)
        moving.take(2)
        for member in (whole, moving):
            member.run(told(3, 2))
        assert moving.ask() == whole.ask()
        assert moving.hash() == whole.hash()


def test_a_closed_partition_is_another_processes(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member:
        member.take(*EVERY)
        member.run(told())
        member.ask()
        one = member.directory.partition(1)
        member.give(1)
        with closing(Partition(one.path, 1, one.keyring, shared_options())) as partition:
            assert partition.counts.owners == len(of(1))
            member.run(told(5, 2))
            member.directory.sync()
            assert set(member.ask()) == {user for user in USERS if user not in of(1)}
        member.close()
    assert verify(tmp_path / "s").problems == []


def test_partition_used_by_another_is_not_reported(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Member.on(path) as member:
        member.take(*EVERY)
        member.run(told())
    folders.mark_released(folders.partition_folder(path, 1), 1_000)
    with StateDirectory.existing(path) as found:
        assert found.existing_numbers() == [0, 2, 3]
        with pytest.raises(StateError, match="p001"):
            found.partition(1)
    assert (verify(path).problems, verify(path).partitions) == ([], 3)
    with Member.on(path) as member:  # as `run`: it may be its own again
        member.take(*EVERY)
        assert set(member.ask()) == set(USERS)
    folders.unmark_released(folders.partition_folder(path, 1))
    with StateDirectory.existing(path) as found:
        assert found.existing_numbers() == [*EVERY]


def test_folder_is_deleted_unless_it_is_open(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member:
        member.take(0, 1)
        member.run(told())
        member.give(1)
        assert [member.directory.forget_closed(number) for number in (0, 1)] == [False, True]
        assert folders.numbers_in(tmp_path / "s") == [0]
        assert set(member.ask()) == set(of(0))


def test_counts_follow_opened_partitions(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member:
        member.take(*EVERY)
        member.run(told())
        member.run([{"type": "memory.feedback", "tenant_id": "acme", "user_id": of(1)[0], "id": "f", "memory_id": "no",
                     "useful": True}])  # fmt: skip
        member.ask()
        directory = member.directory
        before, unfit = directory.hot_bytes, directory.unfit.copy()
        member.give(1)
        assert directory.counts.owners == len(USERS) - len(of(1))
        assert 0 < directory.hot_bytes < before
        assert directory.unfit == unfit  # a counter never goes down
        member.give(0, 2, 3)
        assert (directory.counts, directory.hot_bytes, directory.uncleaned_owners) == ((0, 0), 0, 0)


def test_newest_memories_are_packed_before_owners_leave(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member:
        member.take(1)
        member.run(told(0, SMALL // 2 + 5))
        member.ask()
        member.give(1)
        partition = member.directory.partition(1)
        for user in of(1):
            owner = partition.keyring.owner(Owner("acme", "prod", user))
            assert len([*partition.scan(keys.table(owner, keys.SEGMENT))]) == 1


def test_cached_question_data_is_evicted_with_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CandidatesCache()
    monkeypatch.setattr(shared, "CandidatesCache", lambda: cache)
    with Member.on(tmp_path / "s") as member:
        member.take(*EVERY)
        member.run(told())
        member.ask()
        held = cache.total_bytes
        member.give(1)
        assert 0 < cache.total_bytes < held
        member.give(0, 2, 3)
        assert cache.total_bytes == 0


def test_a_sync_of_all_waits_for_one_that_closes(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member, ThreadPoolExecutor(1) as other:
        member.take(*EVERY)
        stop = threading.Event()

        def sync() -> None:
            while not stop.is_set():
                member.directory.sync()

        syncing = other.submit(sync)
        for number in range(20):
            member.run(told(number, 1))
            member.give(1)
            member.take(1)
        stop.set()
        syncing.result()


def test_position_is_committed_with_earlier_staged_writes(tmp_path: Path, at_rest: AtRest) -> None:
    with Member.on(tmp_path / "s", at_rest) as member:
        partition = member.directory.partition(1)
        assert partition.progress is None
        partition.stage({}, Position("log", 1, 7))
        partition.stage_progress(b'{"memory": 8}')
        assert partition.is_staging
        partition.commit()
        member.directory.close_partition(1)
        again = member.directory.partition(1)
        assert (again.progress, again.applied) == (b'{"memory": 8}', {"log:1": 7})
        again.stage_progress(b"lost")
    assert verify(tmp_path / "s", at_rest).problems == []
    with Member.on(tmp_path / "s", at_rest) as member:
        assert member.directory.partition(1).progress == b'{"memory": 8}'


def test_a_place_is_no_part_of_the_hash(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member:
        member.take(*EVERY)
        member.run(told())
        before = member.hash()
        member.directory.partition(1).stage_progress(b"somewhere else")
        assert member.hash() == before


def test_a_folder_that_arrives_is_opened_with_its_own_secret(tmp_path: Path, at_rest: AtRest) -> None:
    with Member.on(tmp_path / "whole", at_rest) as whole, Member.on(tmp_path / "a", at_rest) as a:
        whole.take(*EVERY)
        a.take(0, 1)
        with Member.on(tmp_path / "b", at_rest) as b:
            b.take(2, 3)
            for member in (whole, a, b):
                member.run(told(0, 3))
            for number in (2, 3):
                arriving = folders.arriving_folder(a.directory.path, number)
                folders.copy_partition(b.directory.partition(number), arriving)
                a.directory.replace_folder(number, arriving)
        a.take(2, 3)
        for member in (whole, a):
            member.run(told(3, 2))
        assert a.ask() == whole.ask()
        assert a.hash() == whole.hash()
    assert verify(tmp_path / "a", at_rest).problems == []


def test_copy_contains_the_committed_state(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member:
        member.take(1)
        member.run(told(0, 2))
        before = member.hash()
        folders.copy_partition(member.directory.partition(1), tmp_path / "copy")
        member.run(told(2, 2))
        assert member.hash() != before
        arriving = folders.arriving_folder(tmp_path / "s", 1)
        shutil.copytree(tmp_path / "copy", arriving)
        member.directory.replace_folder(1, arriving)  # which closes the one there is
        assert member.hash() == before


def test_a_forgotten_folder_begins_anew(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member:
        member.take(*EVERY)
        member.run(told())
        member.directory.forget_folder(1)
        assert (folders.numbers_in(tmp_path / "s"), member.directory.partition(1).counts) == ([0, 2, 3], (0, 0))
        member.directory.forget_folder(3)
        member.directory.forget_folder(3)
        assert folders.numbers_in(tmp_path / "s") == [0, 1, 2]


def test_remains_of_a_killed_move_go_at_the_next_open(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member:
        member.take(1)
        folders.copy_partition(member.directory.partition(1), folders.arriving_folder(tmp_path / "s", 2))
        (tmp_path / "s" / "p003.gone").mkdir()
    with Member.on(tmp_path / "s"):
        assert {path.name for path in (tmp_path / "s").glob("p*")} == {"p001"}


def test_wrong_secret_opens_nothing(tmp_path: Path) -> None:
    with Member.on(tmp_path / "s") as member:
        member.take(1)
        member.run(told())
        folders.copy_partition(member.directory.partition(1), arriving := folders.arriving_folder(tmp_path / "s", 1))
        member.directory.replace_folder(1, arriving)
    file = folders.partition_folder(tmp_path / "s", 1) / "secret.json"
    file.write_bytes(file.read_bytes().replace(b'"secret": "', b'"secret": "00'))
    (problem,) = verify(tmp_path / "s").problems
    assert "secret.json" in problem


@pytest.fixture
def brought(tmp_path: Path) -> Path:
    """An encrypted directory with two folders that came from another one."""
    with Member.on(tmp_path / "a", SEALED) as a, Member.on(tmp_path / "b", SEALED) as b:
        a.take(0, 1)
        b.take(2, 3)
        for member in (a, b):
            member.run(told())
        for number in (2, 3):
            folders.copy_partition(
                b.directory.partition(number), arriving := folders.arriving_folder(tmp_path / "a", number)
            )
            a.directory.replace_folder(number, arriving)
    return tmp_path / "a"


def test_another_master_key_is_that_of_all_folders(brought: Path) -> None:
    rewrap(brought, SEALED, OTHER)
    assert verify(brought, AtRest(OTHER)).problems == []
    with pytest.raises(MasterKeyError):
        StateDirectory.existing(brought, SEALED)
    secrets = [folders.read_secret(folders.partition_folder(brought, number)) for number in EVERY]
    assert [secret and secret.master_key for secret in secrets] == [None, None, OTHER.name, OTHER.name]
    assert secrets[2] == secrets[3]  # one call of a key service for both


@pytest.mark.parametrize("killed_at", range(3))
def test_key_change_after_a_kill_is_done_again(brought: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written = iter(range(9))

    def write(path: Path, fields: Mapping[str, Any]) -> None:
        if next(written) == killed_at:
            raise KeyboardInterrupt
        write_checked(path, fields)

    with monkeypatch.context() as patched:
        for module in (description, folders):
            patched.setattr(module, "write_checked", write)
        with pytest.raises(KeyboardInterrupt):
            rewrap(brought, SEALED, OTHER)
    assert describe(brought).secret.master_key == KEY.name
    rewrap(brought, SEALED, OTHER)
    assert verify(brought, AtRest(OTHER)).problems == []


def test_a_key_that_opens_one_folder_only_changes_none(brought: Path) -> None:
    with Member.on(brought.parent / "c", AtRest(OTHER)) as c:
        folders.copy_partition(c.directory.partition(3), folder := brought / "aside")
    shutil.rmtree(folders.partition_folder(brought, 3))
    folder.rename(folders.partition_folder(brought, 3))
    before = {file: file.read_bytes() for file in brought.rglob("*.json")}
    with pytest.raises(MasterKeyError, match="p003"):
        rewrap(brought, SEALED, LocalMasterKey(bytes([3] * 32)))
    assert {file: file.read_bytes() for file in brought.rglob("*.json")} == before
    (problem,) = verify(brought, SEALED).problems
    assert problem.startswith("p003: ")
