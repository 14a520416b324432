"""State partitions that lack what the recovery store says they had applied."""

from dataclasses import dataclass, replace
from pathlib import Path

from recallflow.errors import DiskFull, StateBehind, StateError, StorageError
from recallflow.flows.recovery import FLOW_ID, GIVE_UP, LINES_FLOW_ID, committed, has_store
from recallflow.operators.snapshot import Snapshot
from recallflow.state.at_rest import UNENCRYPTED, AtRest
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.directory import RECOVERY, StateDirectory, partition_folder

STATE_STEP = f"{FLOW_ID}.state"


@dataclass(frozen=True, slots=True)
class Behind:
    """A state partition that lacks events. `first`: per source, the offset of the first it may lack."""

    partition: int
    missing: bool
    first: dict[str, int]


def behind(state_dir: Path, at_rest: AtRest = UNENCRYPTED) -> list[Behind]:
    """The state partitions that hold less than they had applied according to the recovery store."""
    with StateDirectory.existing(state_dir, CACHE_BYTES, at_rest) as directory:
        _open(directory)
        if directory.has_read_a_log():
            check_store(state_dir)
        if not has_store(state_dir):
            check_whole(directory)
        return _behind(directory)


def check_not_behind(directory: StateDirectory) -> None:
    """Raises StateBehind where state partitions lack what they had applied. Makes no folder for one that is lost."""
    if found := _behind(directory):
        raise StateBehind(
            f"{'; '.join(map(lack, found))}: {directory.path} had applied more. Read it again: recallflow state "
            "rebuild, or restore a checkpoint"
        )


def check_whole(directory: StateDirectory) -> None:
    """Raises StateBehind where a state partition is lost: they are all made before the first event is applied."""
    folders = {number: partition_folder(directory.path, number) for number in range(directory.fingerprint.partitions)}
    lost = [folder.name for folder in folders.values() if not folder.is_dir()]
    if lost and any(partition.applied for partition in directory.existing_partitions()):
        raise StateBehind(f"{directory.path} has lost {', '.join(lost)}: put the folders back, or restore a checkpoint")


def lack(one: Behind) -> str:
    """What a state partition lacks, in words."""
    what = "is missing" if one.missing else "is behind"
    places = ", ".join(f"{source} from {offset} on" for source, offset in sorted(one.first.items()))
    return f"p{one.partition:03d} {what}: {places}"


def check_store(state_dir: Path) -> None:
    """Raises StateError where the recovery store is lost."""
    if not has_store(state_dir):
        raise StateError(
            f"{state_dir} has lost its recovery store ({RECOVERY}/): nobody knows any more which queries were "
            f"answered. Restore a checkpoint, or give up on them: recallflow state rebuild {GIVE_UP}"
        )


def _open(directory: StateDirectory) -> None:
    """Opens what there is. A folder that is missing stays so: an empty one would look like one that was
    there."""
    for number in range(directory.fingerprint.partitions):
        folder = partition_folder(directory.path, number)
        if folder.is_dir():
            try:
                directory.partition(number)
            except DiskFull:
                raise
            except StorageError as error:
                raise StorageError(f"{error}. Move {folder} away, and run recallflow state rebuild again") from error


def _behind(directory: StateDirectory) -> list[Behind]:
    """What partitions lack of what either flow had applied."""
    last: dict[int, Snapshot] = {}
    for flow_id in (FLOW_ID, LINES_FLOW_ID):
        for found in committed(directory.path, f"{flow_id}.state").values():
            known = last.setdefault(found.partition, found)
            last[found.partition] = replace(known, applied=known.applied | found.applied)
    compared = [_compare(directory, last[number]) for number in sorted(last)]
    return [one for one in compared if one.first]


def _compare(directory: StateDirectory, snapshot: Snapshot) -> Behind:
    missing = not partition_folder(directory.path, snapshot.partition).is_dir()
    stored = {} if missing else directory.partition(snapshot.partition).applied
    first = {
        source: stored.get(source, -1) + 1
        for source, offset in snapshot.applied.items()
        if stored.get(source, -1) < offset
    }
    return Behind(snapshot.partition, missing, first)
