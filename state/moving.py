"""Moves of state partitions between closed directories. Raise StateInUse for an open one.

Each partition moves separately:

1. Clean its files of erased data. Prepare a copy with its secret in the target, and sync the copy.
2. Mark the source folder: it must not be opened, because the partition is about to exist twice.
3. Rename the copy to the target's folder of the partition.
4. Remove the source folder.

After a crash before step 2, the partition has not moved, and the next opening of the target removes the copy. After a
later crash, repeat the command to continue. Until then, opening the source folder raises StateError."""

import contextlib
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from recallflow.errors import DiskFull, StateError, UsageError
from recallflow.state import folders
from recallflow.state.description import DESCRIPTION, check_same, describe, hold, read_topic_ids, record_move
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import AtRest, StoredSecret
from recallflow.state.partition import Partition


class Move(NamedTuple):
    """The move of a state partition from one directory to another."""

    number: int
    source: Path
    target: Path


class OlderCopy(NamedTuple):
    """A folder of a partition in the directory `path`; the directory `newest` has a newer copy."""

    number: int
    path: Path
    newest: Path


class Merge(NamedTuple):
    """The result of `merge`: the completed moves, and the copies that stayed."""

    moves: list[Move]
    older: list[OlderCopy]


# Generation, next memory offset and first open query of a partition's reader.
ReaderProgress = tuple[int, int, int]
# Returns the deployment and the progress of a stored progress record.
DecodeProgress = Callable[[bytes], tuple[str, ReaderProgress]]
_NO_PROGRESS: ReaderProgress = (0, 0, 0)


class _Copy(NamedTuple):
    """One of several folders of a partition."""

    path: Path
    partition: Partition
    topic_ids: dict[str, str]  # by name, of the topics that its directory reads
    applied_offsets: dict[str, int]  # by source: a topic's partition of this number, or not a topic
    deployment: str
    progress: ReaderProgress

    @property
    def next_offset(self) -> int:
        """The offset after all applied records of its own topic partition."""
        applied = self.applied_offsets.items()
        return 1 + max((offset for source, offset in applied if _topic(source) in self.topic_ids), default=-1)

    def is_older_than(self, newest: "_Copy") -> bool:
        """Return whether `newest` certainly contains this copy.

        It may not if this copy's reader has a later generation and a lower offset than `newest`: the log may have lost
        records after `newest` applied them, and this copy applied other ones at these offsets."""
        deployments = {self.deployment, newest.deployment} - {""}
        if not self.topic_ids or self.topic_ids != newest.topic_ids or len(deployments) > 1:
            return False
        applied = self.applied_offsets.items()
        contains = all(newest.applied_offsets.get(source, -1) >= offset for source, offset in applied)
        generation, next_offset, _ = self.progress
        return contains and not (generation > newest.progress[0] and newest.next_offset > next_offset)


def move(source: Path, target: Path, numbers: Collection[int], at_rest: AtRest, *, create: bool = False) -> list[Move]:
    """Move partitions. Move none if a check fails; partitions moved by an earlier, interrupted call stay in the target.
    `create`: create the target if it does not exist."""
    if not create:
        describe(target)
    return split(source, {target: numbers}, at_rest)


def split(source: Path, targets: Mapping[Path, Collection[int]], at_rest: AtRest) -> list[Move]:
    """Move partitions to several directories, which are created if they do not exist."""
    counts = Counter(number for numbers in targets.values() for number in numbers)
    if repeated := [number for number, count in counts.items() if count > 1]:
        names = folders.format_partitions(repeated)
        raise UsageError(f"{names} cannot go to two directories: name each partition once")
    with _locked_directories([source, *targets]):
        return _carry_out([one for target in targets for one in _plan(source, target, targets[target])], at_rest)


def merge(sources: Sequence[Path], target: Path, at_rest: AtRest, decode: DecodeProgress, *, now_ms: int) -> Merge:
    """Move all partitions of directories into one, which is created if it does not exist.

    Several members' directories may have copies of a reassigned partition. The newest is moved, with the latest
    committed progress of all. The others are marked as released. Raise StateError if copies cannot be compared."""
    with _locked_directories([*sources, target]):
        older = _mark_older([*sources, target], at_rest, decode, now_ms)
        source_of: dict[int, Path] = {}
        for path in sources:
            for number in folders.unreleased_numbers(path):
                if (other := source_of.setdefault(number, path)) != path:
                    raise _conflicting_copies(number, other, path)
        plan = [one for path in sources for one in _plan(path, target, folders.unreleased_numbers(path))]
        return Merge(_carry_out(plan, at_rest), older)


@contextlib.contextmanager
def _locked_directories(paths: Iterable[Path]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for path in paths:
            if (path / DESCRIPTION).exists():
                stack.enter_context(hold(path))
        yield


def _mark_older(paths: Sequence[Path], at_rest: AtRest, decode: DecodeProgress, now_ms: int) -> list[OlderCopy]:
    """Mark all copies of each partition except the newest, which gets the latest committed progress of all. Change
    nothing if any copies cannot be compared. A folder that is being moved is not a copy."""
    directories_of = defaultdict[int, list[Path]](list)
    for path in {path.resolve(): path for path in paths}.values():
        for number in folders.unreleased_numbers(path):
            if folders.move_target(folders.partition_folder(path, number)) is None:
                directories_of[number].append(path)
    several = {number: found for number, found in directories_of.items() if len(found) > 1}
    older = list[OlderCopy]()
    with contextlib.ExitStack() as stack:
        directories = dict[Path, StateDirectory]()
        for path in {path: None for found in several.values() for path in found}:
            first = next(iter(directories.values()), None)
            if first is not None:
                check_same(first.path, first.fingerprint, path, describe(path).fingerprint)
            directories[path] = stack.enter_context(StateDirectory.existing(path, at_rest))
        for number, found in several.items():
            newest, *others = _newest_first([_copy(directories[path], number, decode) for path in found])
            older += [OlderCopy(number, one.path, newest.path) for one in others]
            latest = max((newest, *others), key=lambda one: one.progress)
            if latest.partition.progress is not None and latest.progress > newest.progress:
                newest.partition.stage_progress(latest.partition.progress)
                newest.partition.commit()
                newest.partition.sync()
    for one in older:
        folders.mark_released(folders.partition_folder(one.path, one.number), now_ms)
    return older


def _copy(directory: StateDirectory, number: int, decode: DecodeProgress) -> _Copy:
    partition, topic_ids = directory.partition(number), read_topic_ids(directory.path)
    # Offsets of other partitions of a topic come from forwarded records: they do not tell how far the log was read.
    applied_offsets = {
        source: offset
        for source, offset in partition.applied.items()
        if _topic(source) not in topic_ids or source.endswith(f":{number}")
    }
    deployment, progress = ("", _NO_PROGRESS) if partition.progress is None else decode(partition.progress)
    return _Copy(directory.path, partition, topic_ids, applied_offsets, deployment, progress)


def _newest_first(copies: list[_Copy]) -> list[_Copy]:
    """Sort copies of one partition by their applied records and progress. Raise StateError."""
    newest, *older = sorted(copies, key=lambda one: (sum(at + 1 for at in one.applied_offsets.values()), one.progress),
                            reverse=True)  # fmt: skip
    for one in older:
        if not one.is_older_than(newest):
            raise _conflicting_copies(one.partition.number, newest.path, one.path)
    return [newest, *older]


def _topic(source: str) -> str:
    return source.rpartition(":")[0]


def _plan(source: Path, target: Path, numbers: Collection[int]) -> list[Move]:
    """Return the moves of partitions that are still in the source. Raise StateError if one is impossible."""
    fingerprint = describe(source).fingerprint
    if source.resolve() == target.resolve():
        raise UsageError(f"{source} and {target} are one directory: name another target")
    if (target / DESCRIPTION).exists():
        check_same(source, fingerprint, target, describe(target).fingerprint)
    if absent := [number for number in numbers if number >= fingerprint.partitions]:
        last, names = folders.format_partitions([fingerprint.partitions - 1]), folders.format_partitions(absent)
        raise UsageError(f"{source} has state partitions p000 to {last}, so {names} does not exist")
    in_source, in_target = ({*folders.unreleased_numbers(path)} for path in (source, target))
    if missing := {*numbers} - in_source - in_target:
        missing_names = folders.format_partitions(missing)
        raise StateError(f"{source} does not hold {missing_names}: find its directory with `recallflow state info`")
    remaining = sorted(in_source.intersection(numbers))
    for number in remaining:
        pending_target = folders.move_target(folders.partition_folder(source, number))
        if number in in_target and (pending_target is None or _secret(source, number) != _secret(target, number)):
            raise _conflicting_copies(number, source, target)
        if pending_target is not None and pending_target != target.resolve():
            name = folders.format_partitions([number])
            raise StateError(f"the move of {name} from {source} to {pending_target} is incomplete: repeat it first")
    return [Move(number, source, target) for number in remaining]


def _secret(path: Path, number: int) -> StoredSecret:
    """Return the secret of a partition. Only copies of this partition in other directories have the same one."""
    return folders.read_secret(folders.partition_folder(path, number)) or describe(path).secret


def _conflicting_copies(number: int, one: Path, other: Path) -> StateError:
    return StateError(
        f"{one} and {other} both hold {folders.format_partitions([number])}, and neither is known to be an older copy. "
        "If they are of one deployment, find the one that has applied more (`recallflow state hash "
        f"{one} {other}`) and remove the other folder. If they are separate states, removing either loses memories: "
        "export one (`recallflow export --memories`) and replay it into the other"
    )


def _check_space(plan: Iterable[Move]) -> None:
    """Raise DiskFull if a target lacks space. A copy on the same disk needs none: it shares the files of its source."""
    needed_bytes, targets = Counter[int](), dict[int, Path]()
    for number, source, target in plan:
        disk = target.stat().st_dev
        if source.stat().st_dev != disk:
            targets[disk] = target
            files = folders.partition_folder(source, number).iterdir()
            needed_bytes[disk] += sum(file.stat().st_size for file in files)
    for disk, target in targets.items():
        if needed_bytes[disk] > (free := shutil.disk_usage(target).free):
            raise DiskFull(
                f"{target} has {free:,} bytes free, and the partitions to move need {needed_bytes[disk]:,} bytes: free "
                "space, or move fewer partitions. Nothing was moved"
            )


def _carry_out(plan: list[Move], at_rest: AtRest) -> list[Move]:
    with contextlib.ExitStack() as stack:
        directories = dict[Path, StateDirectory]()
        for _, source, target in plan:
            fingerprint = describe(source).fingerprint
            for path in (source, target):
                if path not in directories:
                    opened = StateDirectory.open(path, fingerprint, at_rest=at_rest)
                    directories[path] = stack.enter_context(opened)
        _check_space(plan)
        for source, target in {(one.source, one.target) for one in plan}:
            record_move(source, target)
        for number, source, target in plan:
            _move(number, directories[source], directories[target])
    return plan


def _move(number: int, source: StateDirectory, target: StateDirectory) -> None:
    if number not in folders.unreleased_numbers(target.path):
        folder = folders.partition_folder(source.path, number)
        (folder / folders.MOVING).unlink(missing_ok=True)  # of a move that was interrupted before the copy was renamed
        partition = source.partition(number)
        partition.clean()
        arriving = folders.arriving_folder(target.path, number)
        folders.copy_partition(partition, arriving)
        source.close_partition(number)
        folders.mark_moving(folder, target.path)
        target.replace_folder(number, arriving)
    source.forget_folder(number)
