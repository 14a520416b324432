"""State partitions that move from one directory to another. Nobody uses either: raises StateInUse.

Each partition goes by itself:

1. Its files are cleaned of what was erased. A copy, with its secret, is made ready in the target, and synced.
2. The folder in the source is marked: from now on nobody opens it, as it is about to be there twice.
3. The copy gets its name.
4. The folder in the source goes.

Killed before 2, it did not move, and what was made ready is removed when the target is opened next. Killed behind that,
the same command goes on where it was; until then the source refuses to open the folder, and says why.
"""

import contextlib
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from recallflow.errors import DiskFull, StateError, UsageError
from recallflow.state.at_rest import AtRest, StoredSecret
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.directory import DESCRIPTION, StateDirectory, describe, hold
from recallflow.state.fingerprint import check_same
from recallflow.state.folders import (
    arriving_folder,
    copy_partition,
    held_numbers,
    mark_moving,
    moves_to,
    names,
    partition_folder,
    read_secret,
    unmark_moving,
)
from recallflow.state.sources import needs_store, note_move


class Move(NamedTuple):
    """A state partition that goes from one directory to another."""

    number: int
    source: Path
    target: Path


def move(source: Path, target: Path, numbers: Collection[int], at_rest: AtRest, *, create: bool = False) -> list[Move]:
    """Moves partitions, all or none where anything is wrong. What an earlier call moved before it was killed stays
    where it is. `create`: the target need not be there yet."""
    if not create:
        describe(target)
    return split(source, {target: numbers}, at_rest)


def split(source: Path, targets: Mapping[Path, Collection[int]], at_rest: AtRest) -> list[Move]:
    """Moves partitions to several directories, which need not be there yet."""
    wanted = Counter(number for numbers in targets.values() for number in numbers)
    if twice := [number for number, count in wanted.items() if count > 1]:
        raise UsageError(f"{names(twice)} cannot go to two directories: name each partition once")
    with _held([source, *targets]):
        return _carry_out([one for target in targets for one in _plan(source, target, targets[target])], at_rest)


def merge(sources: Sequence[Path], target: Path, at_rest: AtRest) -> list[Move]:
    """Moves all partitions of directories into one, which need not be there yet."""
    with _held([*sources, target]):
        holders: dict[int, Path] = {}
        for path in sources:
            for number in held_numbers(path):
                if (other := holders.setdefault(number, path)) != path:
                    raise _twice([number], other, path)
        return _carry_out([one for path in sources for one in _plan(path, target, held_numbers(path))], at_rest)


@contextlib.contextmanager
def _held(paths: Iterable[Path]) -> Iterator[None]:
    """Holds those that are there."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            if (path / DESCRIPTION).exists():
                stack.enter_context(hold(path))
        yield


# ── what may move ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _plan(source: Path, target: Path, numbers: Collection[int]) -> list[Move]:
    """What is still to be moved. Raises StateError where something cannot be."""
    fingerprint = describe(source).fingerprint
    if source.resolve() == target.resolve():
        raise UsageError(f"{source} and {target} are one directory: give another one to move to")
    if (target / DESCRIPTION).exists():
        check_same(source, fingerprint, target, describe(target).fingerprint)
    if strange := [number for number in numbers if number >= fingerprint.partitions]:
        raise UsageError(f"{source} has {fingerprint.partitions} state partitions, from p000 on: no {names(strange)}")
    here, there = ({*held_numbers(path)} for path in (source, target))
    if missing := {*numbers} - here - there:
        raise StateError(f"{source} does not hold {names(missing)}: look which directory does (recallflow state info)")
    left = sorted(here.intersection(numbers))
    for number in left:
        elsewhere = moves_to(partition_folder(source, number))
        if number in there and (elsewhere is None or _secret(source, number) != _secret(target, number)):
            raise _twice([number], source, target)
        if elsewhere is not None and elsewhere != target.resolve():
            raise StateError(f"{names([number])} of {source} is on its way to {elsewhere}: move it there first")
    return [Move(number, source, target) for number in left]


def _secret(path: Path, number: int) -> StoredSecret:
    """The secret of a partition: a copy of it has the same, and no other directory."""
    return read_secret(partition_folder(path, number)) or describe(path).secret


def _twice(numbers: Collection[int], one: Path, other: Path) -> StateError:
    return StateError(
        f"{one} and {other} both hold {names(numbers)}. Of members of one deployment, one is a leftover: look "
        f"which has applied more (recallflow state hash {one} {other}), and remove the other folder. Directories that "
        "were filled apart are two states, and removing either loses memories: export one (recallflow export "
        "--memories) and replay it into the other"
    )


def _check_room(plan: Iterable[Move]) -> None:
    """Raises DiskFull. On one disk the copies share their table files with what they are made of."""
    wanted, targets = Counter[int](), dict[int, Path]()
    for number, source, target in plan:
        disk = target.stat().st_dev
        if source.stat().st_dev != disk:
            targets[disk] = target
            wanted[disk] += sum(file.stat().st_size for file in partition_folder(source, number).iterdir())
    for disk, target in targets.items():
        if wanted[disk] > (free := shutil.disk_usage(target).free):
            raise DiskFull(
                f"{target} has {free:,} bytes free, and what is to be moved there takes {wanted[disk]:,}: free some, "
                "or move fewer partitions. Nothing was moved"
            )


def _check_place(number: int, source: StateDirectory) -> None:
    if moves_to(partition_folder(source.path, number)) is None and needs_store(source.partition(number)):
        raise StateError(
            f"{names([number])} of {source.path} cannot move: how far its log is read stands in one recovery store for "
            "all partitions. Read the log into the other directory too, or start recallflow run on this one"
        )


# ── moving ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _carry_out(plan: list[Move], at_rest: AtRest) -> list[Move]:
    with contextlib.ExitStack() as stack:
        directories = dict[Path, StateDirectory]()
        for _, source, target in plan:
            fingerprint = describe(source).fingerprint
            for path in (source, target):
                if path not in directories:
                    opened = StateDirectory.open(path, fingerprint, CACHE_BYTES, at_rest=at_rest)
                    directories[path] = stack.enter_context(opened)
        _check_room(plan)
        for number, source, _ in plan:
            _check_place(number, directories[source])
        for source, target in {(one.source, one.target) for one in plan}:
            note_move(source, target)
        for number, source, target in plan:
            _move(number, directories[source], directories[target])
    return plan


def _move(number: int, source: StateDirectory, target: StateDirectory) -> None:
    if number not in held_numbers(target.path):
        folder = partition_folder(source.path, number)
        unmark_moving(folder)  # of a move that was killed before the copy got its name
        partition = source.partition(number)
        partition.clean()
        arriving = arriving_folder(target.path, number)
        copy_partition(partition, arriving)
        source.close_partition(number)
        mark_moving(folder, target.path)
        target.replace_folder(number, arriving)
    source.forget_folder(number)
