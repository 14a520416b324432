"""Partitions move between directories as wholes; a checkpoint equals the directory at its time."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from recallflow.cli import main
from recallflow.connectors.kafka.partition import LogProgress, PartitionProgress, progress_of
from recallflow.errors import DiskFull, MasterKeyError, RecallflowError, SettingsMismatch, StateError, UsageError
from recallflow.flows.settings import Settings
from recallflow.records import Position
from recallflow.state.checkpoint import checkpoint, restore
from recallflow.state.description import TOPICS, describe
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest
from recallflow.state.files import read_checked, write_checked
from recallflow.state.folders import mark_moving, mark_released, numbers_in, partition_folder, unreleased_numbers
from recallflow.state.lock import LOCK
from recallflow.state.moving import merge, move, split
from recallflow.state.state_hash import combined_hash
from recallflow.state.verify import verify
from tests.event_log import hash_of
from tests.unit.operators.harness import HASHING, make_event, run_flow
from tests.unit.state.member import EVERY, OTHER, PARTITIONS, SEALED, USERS, Member, told

pytestmark = pytest.mark.slow


def stop_member(
    path: Path, *numbers: int, generation: int = 1, known: int = 0, topic_id: str = "1", name: str = "d"
) -> None:
    """Give partitions of a directory the topics and progress that `run` leaves."""
    write_checked(path / TOPICS, {"read": {"--memory-topic": "log"}, "ids": {"log": topic_id}})
    with StateDirectory.existing(path) as directory:
        for number in numbers:
            partition = directory.partition(number)
            progress = PartitionProgress(
                LogProgress(known), LogProgress(0), PARTITIONS, deployment=name, generation=generation
            )
            partition.stage_progress(progress.encode())
            partition.commit()


def fill(path: Path, *numbers: int, at_rest: AtRest = UNENCRYPTED, events: int = 3) -> str:
    with Member.on(path, at_rest) as member:
        member.take(*numbers)
        member.run(told(0, events))
        return member.hash()


@pytest.fixture
def whole(tmp_path: Path) -> str:
    return fill(tmp_path / "whole", *EVERY)


def test_spread_directories_have_the_hash_of_one(tmp_path: Path, whole: str) -> None:
    fill(tmp_path / "a", 0, 3)
    fill(tmp_path / "b", 1, 2)
    found = combined_hash([tmp_path / "a", tmp_path / "b"], UNENCRYPTED)
    assert (found.hash, found.copies) == (whole, {})
    assert combined_hash([tmp_path / "whole"], UNENCRYPTED).hash == whole


def test_duplicate_partition_counts_where_more_log_is_applied(tmp_path: Path, whole: str) -> None:
    fill(tmp_path / "a", 0, 1, 2, 3, events=1)
    fill(tmp_path / "b", 1, 2)
    with Member.on(tmp_path / "a") as a:  # of another partition's log it has more, which says nothing
        a.directory.partition(1).stage({}, Position("log", 0, 99))
        a.directory.partition(1).commit()
        a.take(0, 3)
        a.run(told(1, 2))
    found = combined_hash([tmp_path / name for name in "ab"], UNENCRYPTED)
    assert found.hash == whole
    assert found.copies == {1: [tmp_path / "b", tmp_path / "a"], 2: [tmp_path / "b", tmp_path / "a"]}


def test_the_command_says_which_one_counts(tmp_path: Path, whole: str, capfd: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "old", 2, events=1)
    names = [str(tmp_path / name) for name in ("old", "whole", "whole")]
    assert main(["state", "hash", *names]) == 0
    out, err = capfd.readouterr()
    assert out == f"{whole}\n"
    assert f"p002 is in {names[1]} and {names[0]}: the first has applied at least as much, and is used" in err
    assert main(["state", "hash", *names, "--json"]) == 0
    assert orjson.loads(capfd.readouterr()[0]) == {
        "state_dirs": names, "hash": whole, "several": {"p002": [names[1], names[0]]}
    }  # fmt: skip
    assert main(["state", "hash", names[0], "--state-dir", names[1]]) == 2


def test_moved_partition_is_unchanged_and_continues(tmp_path: Path, at_rest: AtRest) -> None:
    fill(tmp_path / "a", *EVERY, at_rest=at_rest)
    with Member.on(tmp_path / "whole", at_rest) as one:
        one.take(*EVERY)
        one.run(told(0, 5))
        answers, hashed = one.ask(), one.hash()
    fill(tmp_path / "b", at_rest=at_rest)
    assert [found.number for found in move(tmp_path / "a", tmp_path / "b", [1, 2], at_rest)] == [1, 2]
    assert (numbers_in(tmp_path / "a"), numbers_in(tmp_path / "b")) == ([0, 3], [1, 2])
    found: dict[str, list[str]] = {}
    for name, numbers in (("a", (0, 3)), ("b", (1, 2))):
        with Member.on(tmp_path / name, at_rest) as member:
            member.take(*numbers)
            member.run(told(3, 2))
            found |= member.ask()
        assert verify(tmp_path / name, at_rest).problems == []
    assert (found, combined_hash([tmp_path / "a", tmp_path / "b"], at_rest).hash) == (answers, hashed)


def test_moved_partition_contains_no_erased_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = USERS[0]
    with Member.on(tmp_path / "a") as member:
        member.take(*EVERY)
        member.run(told(0, 3))
    with Member.on(tmp_path / "a") as member:  # in table files now
        monkeypatch.setattr(member.directory, "clean", lambda _: None)  # nobody came to it
        member.take(*EVERY)
        member.run([{"type": "user.erase", "tenant_id": "acme", "user_id": user, "id": "e", "timestamp": 9_000}])
        assert member.directory.uncleaned_owners == 1
    split(tmp_path / "a", {tmp_path / "b": EVERY}, UNENCRYPTED)
    with Member.on(tmp_path / "b") as member:
        member.directory.existing_partitions()
        assert member.directory.uncleaned_owners == 0


@pytest.mark.usefixtures("whole")
def test_nothing_moves_where_anything_is_wrong(tmp_path: Path) -> None:
    a, b = tmp_path / "whole", tmp_path / "b"
    fill(b, 2)
    StateDirectory.open(tmp_path / "other", Settings(partitions=2).fingerprint(HASHING)).close()
    fill(tmp_path / "part", 0)
    wrong: list[tuple[Path, Path, list[int], type[RecallflowError], str]] = [
        (a, b, [1, 2], StateError, "both hold p002"),
        (a, tmp_path / "other", [1], SettingsMismatch, "different settings: partitions is 4 and 2"),
        (a, tmp_path / "none", [1], UsageError, "there is no state directory"),
        (tmp_path, b, [1], StateError, f"directories of members: give one of {re.escape(str(b))}"),
        (a, a, [1], UsageError, "are one directory"),
        (a, b, [1, 4], UsageError, "p000 to p003, so p004 does not exist"),
        (tmp_path / "part", b, [0, 1], StateError, "does not hold p001"),
    ]
    for source, target, numbers, error, said in wrong:
        with pytest.raises(error, match=said):
            move(source, target, numbers, UNENCRYPTED)
    with pytest.raises(UsageError, match="p001 cannot go to two directories"):
        split(a, {b: [1], tmp_path / "c": [1]}, UNENCRYPTED)
    with pytest.raises(StateError, match="both hold p002"):
        merge([a, b], tmp_path / "c", UNENCRYPTED, progress_of, now_ms=0)
    assert not (tmp_path / "c").exists()
    assert (numbers_in(a), numbers_in(b), numbers_in(tmp_path / "part")) == ([*EVERY], [2], [0])


def test_outdated_partition_is_not_moved(tmp_path: Path, whole: str) -> None:
    a, b = tmp_path / "whole", tmp_path / "b"
    split(a, {b: [1, 2]}, UNENCRYPTED)
    for holder, other, number in ((a, b, 3), (b, a, 1)):
        shutil.copytree(partition_folder(holder, number), partition_folder(other, number))
        mark_released(partition_folder(other, number), 1_000)
    with pytest.raises(StateError, match="whole does not hold p001"):
        move(a, tmp_path / "c", [1], UNENCRYPTED, create=True)
    move(b, a, [1], UNENCRYPTED)  # where an old one lies
    merge([a, b], tmp_path / "one", UNENCRYPTED, progress_of, now_ms=0)
    assert combined_hash([tmp_path / "one"], UNENCRYPTED).hash == whole


@pytest.mark.parametrize("target", ["older", "newer", "new"])
def test_merge_takes_the_newest_of_several_copies(tmp_path: Path, whole: str, target: str) -> None:
    fill(tmp_path / "older", *EVERY, events=2)
    fill(tmp_path / "newer", *EVERY)
    stop_member(tmp_path / "older", *EVERY)
    stop_member(tmp_path / "newer", *EVERY, generation=2)
    sources = [tmp_path / name for name in ("older", "newer") if name != target]
    merged = merge(sources, tmp_path / target, UNENCRYPTED, progress_of, now_ms=0)
    newest = tmp_path / "newer"
    assert merged.older == [(number, tmp_path / "older", newest) for number in EVERY]
    assert [one.number for one in merged.moves] == ([] if target == "newer" else [*EVERY])
    assert combined_hash([tmp_path / target], UNENCRYPTED).hash == whole
    assert verify(tmp_path / target, UNENCRYPTED).problems == []
    assert [number for path in sources for number in unreleased_numbers(path)] == []
    assert merge(sources, tmp_path / target, UNENCRYPTED, progress_of, now_ms=0) == ([], [])


def test_newest_copy_gets_the_latest_progress(tmp_path: Path, whole: str) -> None:
    fill(tmp_path / "first", *EVERY)
    fill(tmp_path / "later", 1, events=1)
    with StateDirectory.existing(tmp_path / "first") as directory:
        handed_over = 1 + directory.partition(1).applied["log:1"]
    stop_member(tmp_path / "first", *EVERY, known=handed_over)
    stop_member(tmp_path / "later", 1, generation=2, known=handed_over)
    merge([tmp_path / "first", tmp_path / "later"], tmp_path / "one", UNENCRYPTED, progress_of, now_ms=0)
    assert combined_hash([tmp_path / "one"], UNENCRYPTED).hash == whole
    with StateDirectory.existing(tmp_path / "one") as directory:
        progress = directory.partition(1).progress
        assert progress is not None
        assert progress_of(progress)[1][0] == 2


def callers(a: Path) -> None:
    with StateDirectory.existing(a) as directory:
        directory.partition(1).stage({}, Position("local", 0, 3))
        directory.partition(1).commit()


@pytest.mark.parametrize(
    "differ",
    [
        lambda a: stop_member(a, *EVERY, topic_id="2"),
        lambda a: stop_member(a, *EVERY, name="other"),
        lambda a: (a / TOPICS).unlink(),
        callers,
        lambda a: stop_member(a, 1, generation=3, known=1),  # knew less of the log than the other copy applied
    ],
    ids=["other topic", "other deployment", "no topic", "callers", "shorter log"],
)
def test_copies_that_cannot_be_compared_are_refused(tmp_path: Path, differ: Callable[[Path], None]) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    fill(a, *EVERY, events=1)
    fill(b, *EVERY, events=2)
    for path in (a, b):
        stop_member(path, *EVERY)
    differ(a)
    with pytest.raises(StateError, match=r"both hold p00[01]") as raised:
        merge([a, b], tmp_path / "c", UNENCRYPTED, progress_of, now_ms=0)
    assert all(str(path) in str(raised.value) for path in (a, b))
    assert (unreleased_numbers(a), unreleased_numbers(b)) == ([*EVERY], [*EVERY])
    assert not (tmp_path / "c").exists()


def test_one_master_key_is_for_both(tmp_path: Path) -> None:
    fill(tmp_path / "a", *EVERY, at_rest=SEALED)
    fill(tmp_path / "b", at_rest=AtRest(OTHER))
    fill(tmp_path / "bare")
    for other in ("b", "bare"):
        with pytest.raises(MasterKeyError, match=f"{other} "):
            move(tmp_path / "a", tmp_path / other, [1], SEALED)
    assert numbers_in(tmp_path / "a") == [*EVERY]


def test_partition_larger_than_the_disk_is_not_moved(
    tmp_path: Path, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = next((one for one in (Path("/dev/shm"), Path("/tmp")) if one.stat().st_dev != tmp_path.stat().st_dev), None)
    if there is None:
        pytest.skip("left out: needs a second file system")
    target = there / f"recallflow-{tmp_path.parent.name}-{tmp_path.name}"
    try:
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000))
            with pytest.raises(DiskFull):
                move(tmp_path / "whole", target, [1, 2], UNENCRYPTED, create=True)
        assert numbers_in(tmp_path / "whole") == [*EVERY]
        move(tmp_path / "whole", target, [1, 2], UNENCRYPTED)  # to another file system: bytes, no links
        assert combined_hash([tmp_path / "whole", target], UNENCRYPTED).hash == whole
    finally:
        shutil.rmtree(target, ignore_errors=True)


def test_every_command_takes_a_directory_with_some_partitions(
    tmp_path: Path, whole: str, capfd: pytest.CaptureFixture[str]
) -> None:
    split(tmp_path / "whole", {tmp_path / "a": [1, 2]}, UNENCRYPTED)
    here = ["--state-dir", str(tmp_path / "a")]
    assert (main(["state", "info", *here, "--json"]), orjson.loads(capfd.readouterr()[0])["held"]) == (0, "1-2")
    assert main(["state", "verify", *here]) == 0
    assert main(["state", "checkpoint", str(tmp_path / "copy"), *here]) == 0
    assert main(["state", "restore", str(tmp_path / "copy"), "--state-dir", str(tmp_path / "new")]) == 0
    assert numbers_in(tmp_path / "a") == numbers_in(tmp_path / "new") == [1, 2]
    assert combined_hash([tmp_path / "whole", tmp_path / "new"], UNENCRYPTED).hash == whole
    capfd.readouterr()
    assert main(["state", "hash", *here]) == 1
    assert "no p000, p003 in" in capfd.readouterr()[1]


def test_the_commands_move(tmp_path: Path, whole: str, capfd: pytest.CaptureFixture[str]) -> None:
    a, b, c = (str(tmp_path / name) for name in ("whole", "b", "c"))
    assert main(["state", "move", "--partitions", "1-2", a, b]) == 2
    assert main(["state", "move", "--partitions", "1-2", a, b, "--create"]) == 0
    out, err = capfd.readouterr()
    assert (out, main(["state", "move", "--partitions", "1-2", a, b])) == (f"p001: {a} → {b}\np002: {a} → {b}\n", 0)
    assert capfd.readouterr()[0] == "no state partitions to move\n"
    assert main(["state", "merge", a, b, "--into", c]) == 0
    out, err = capfd.readouterr()
    assert (out.count(" → "), err.count("has no state partitions left, and may be removed")) == (PARTITIONS, 2)
    assert main(["state", "split", c, "--into", f"{a}:0,3", f"{b}:1-2"]) == 0
    assert combined_hash([Path(a), Path(b)], UNENCRYPTED).hash == whole


@pytest.mark.parametrize(
    "words",
    [
        ["move", "--partitions", "2-1", "a", "b"], ["move", "--partitions", "x", "a", "b"], ["move", "a", "b"],
        ["split", "a", "--into", "b"], ["split", "a", "--into", ":1"], ["split", "a", "--into", "b:one"],
    ],
)  # fmt: skip
def test_meaningless_arguments_are_refused(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["state", *words]) == 2
    assert len(capfd.readouterr()[1].splitlines()) <= 2


def test_interrupted_move_cannot_be_opened(tmp_path: Path, whole: str) -> None:
    mark_moving(partition_folder(tmp_path / "whole", 1), tmp_path / "b")
    with StateDirectory.existing(tmp_path / "whole") as directory, pytest.raises(StateError, match="p001"):
        directory.partition(1)
    (problem,) = verify(tmp_path / "whole").problems
    assert "recallflow state move" in problem
    fill(tmp_path / "c")
    with pytest.raises(StateError, match="is incomplete"):
        move(tmp_path / "whole", tmp_path / "c", [1], UNENCRYPTED)
    fill(tmp_path / "b", 1)  # which has nothing to do with that
    with pytest.raises(StateError, match="both hold p001"):
        move(tmp_path / "whole", tmp_path / "b", [1], UNENCRYPTED)
    shutil.rmtree(tmp_path / "b")
    move(tmp_path / "whole", tmp_path / "b", [1], UNENCRYPTED, create=True)
    assert combined_hash([tmp_path / "whole", tmp_path / "b"], UNENCRYPTED).hash == whole


@pytest.mark.usefixtures("whole")
def test_log_partitions_are_recognised_at_their_target(tmp_path: Path) -> None:
    write_checked(tmp_path / "whole" / TOPICS, {"read": {"--memory-topic": "log"}})
    move(tmp_path / "whole", tmp_path / "other", [1], UNENCRYPTED, create=True)
    assert read_checked(tmp_path / "other" / TOPICS)["read"] == {"--memory-topic": "log"}
    write_checked(tmp_path / "other" / TOPICS, {"read": {"--memory-topic": "its own"}})
    move(tmp_path / "whole", tmp_path / "other", [2], UNENCRYPTED)
    assert read_checked(tmp_path / "other" / TOPICS)["read"] == {"--memory-topic": "its own"}


def test_restored_directory_equals_the_copy(state_dir: Path, tmp_path: Path) -> None:
    before = hash_of(state_dir)
    write_checked(state_dir / TOPICS, {"read": {}})
    checkpoint(state_dir, tmp_path / "copy")
    run_flow([make_event("message", id="later", content="added afterwards")], state_dir, partitions=2)
    restore(tmp_path / "copy", tmp_path / "new")
    assert hash_of(tmp_path / "new") == before != hash_of(state_dir)
    assert (read_checked(tmp_path / "new" / TOPICS), verify(tmp_path / "new").problems) == ({"read": {}}, [])
    # A checkpoint can be restored more than once, and the directory goes on where it was.
    run_flow([make_event("message", id="later", content="added afterwards")], tmp_path / "new", partitions=2)
    restore(tmp_path / "copy", tmp_path / "again")
    assert hash_of(tmp_path / "again") == before
    assert hash_of(tmp_path / "new") == hash_of(state_dir)


def test_a_folder_with_something_in_it_is_refused(state_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    with pytest.raises(StateError, match="not empty"):
        checkpoint(state_dir, tmp_path / "full")
    checkpoint(state_dir, tmp_path / "copy")
    with pytest.raises(StateError, match="not empty"):
        restore(tmp_path / "copy", tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["precious"]
    with pytest.raises(StateError, match="inside"):
        checkpoint(state_dir, state_dir / "copy")


@pytest.mark.parametrize("damage", ["folder", "table", "swapped"])
def test_incomplete_checkpoint_is_refused_and_leaves_nothing(state_dir: Path, tmp_path: Path, damage: str) -> None:
    checkpoint(state_dir, tmp_path / "copy")
    first, second = (partition_folder(tmp_path / "copy", number) for number in (0, 1))
    if damage == "folder":
        second.rename(tmp_path / "elsewhere")
    elif damage == "table":
        next(second.glob("*.sst")).unlink()
    else:
        first.rename(tmp_path / "aside")
        second.rename(first)
        (tmp_path / "aside").rename(second)
    with pytest.raises(StateError):
        restore(tmp_path / "copy", tmp_path / "new")
    assert not (tmp_path / "new").exists() or [path.name for path in (tmp_path / "new").iterdir()] == [LOCK]


@pytest.mark.parametrize(("target", "source"), [("copy/inner", "copy"), ("", "copy")])
def test_a_directory_and_its_checkpoint_never_lie_within_each_other(
    state_dir: Path, tmp_path: Path, target: str, source: str
) -> None:
    checkpoint(state_dir, tmp_path / "copy")
    before = hash_of(tmp_path / "copy")
    with pytest.raises(StateError, match="inside the other"):
        restore(tmp_path / source, tmp_path / target)
    assert hash_of(tmp_path / "copy") == before


def test_a_directory_of_run_has_its_partitions_alone(
    state_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with StateDirectory.open(state_dir, describe(state_dir)[0]) as directory:
        for partition in directory.existing_partitions():
            partition.stage({}, Position("memory.events", partition.number, 7))
            partition.commit()
        directory.forget_folder(0)
    assert main(["state", "verify", "--state-dir", str(state_dir)]) == 1  # as far as anybody knows, of lines
    assert "has lost p000" in capfd.readouterr().out
    write_checked(state_dir / TOPICS, {})
    for copied, restored in ((state_dir, "first"), (tmp_path / "first", "second")):
        assert main(["state", "verify", "--state-dir", str(copied)]) == 0
        assert main(["state", "checkpoint", str(tmp_path / f"{restored}-copy"), "--state-dir", str(copied)]) == 0
        restore(tmp_path / f"{restored}-copy", tmp_path / restored)
        with StateDirectory.existing(tmp_path / restored) as directory:
            assert (directory.existing_numbers(), directory.partition(1).applied["memory.events:1"]) == ([1], 7)
