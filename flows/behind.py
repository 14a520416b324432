"""State partitions that lack what the recovery store says they had applied, or that are not there."""

from dataclasses import dataclass
from pathlib import Path

from recallflow.errors import StateBehind, StateError
from recallflow.flows.recovery import LINES_FLOW_ID, committed, has_store
from recallflow.operators.snapshot import Snapshot
from recallflow.state.at_rest import UNENCRYPTED, AtRest
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.directory import RECOVERY, StateDirectory
from recallflow.state.folders import partition_folder

STATE_STEP = f"{LINES_FLOW_ID}.state"


@dataclass(frozen=True, slots=True)
class Behind:
    """A state partition that lacks events. `first`: per source, the offset of the first it may lack."""

    partition: int
    missing: bool
    first: dict[str, int]


def check(state_dir: Path, at_rest: AtRest = UNENCRYPTED) -> None:
    """Raises StateBehind where a directory lacks what it once had applied, and StateError where nobody knows any more
    how far lines were read. What `run` lacks it reads again by itself."""
    with StateDirectory.existing(state_dir, CACHE_BYTES, at_rest) as directory:
        if directory.has_read_a_log() and not has_store(state_dir):
            raise StateError(
                f"{state_dir} has lost its recovery store ({RECOVERY}/): nobody knows any more how far lines were "
                "read. Restore a checkpoint, or replay them into a new directory"
            )
        if not has_store(state_dir):
            check_whole(directory)
        check_not_behind(directory)


def check_not_behind(directory: StateDirectory) -> None:
    """Raises StateBehind where state partitions lack what they had applied. Makes no folder for one that is lost."""
    if found := _behind(directory):
        raise StateBehind(
            f"{'; '.join(map(_lack, found))}: {directory.path} had applied more. Restore a checkpoint, or replay all "
            "of it into a new directory"
        )


def check_whole(directory: StateDirectory) -> None:
    """Raises StateBehind where a state partition is lost: they are all made before the first event is applied. Others
    may have some where `run` filled the directory, or partitions were moved."""
    folders = {number: partition_folder(directory.path, number) for number in range(directory.fingerprint.partitions)}
    lost = [folder.name for folder in folders.values() if not folder.is_dir()]
    if lost and not directory.is_shared_out() and any(one.applied for one in directory.existing_partitions()):
        raise StateBehind(f"{directory.path} has lost {', '.join(lost)}: put the folders back, or restore a checkpoint")


def open_all(directory: StateDirectory) -> None:
    """Opens all partitions that a directory of one process has; of one that is shared out, those that are there. Raises
    StateBehind."""
    check_whole(directory)
    directory.begins = not directory.is_shared_out()
    directory.partitions() if directory.begins else directory.existing_partitions()


def _lack(one: Behind) -> str:
    """What a state partition lacks, in words."""
    what = "is missing" if one.missing else "is behind"
    places = ", ".join(f"{source} from {offset} on" for source, offset in sorted(one.first.items()))
    return f"p{one.partition:03d} {what}: {places}"


def _behind(directory: StateDirectory) -> list[Behind]:
    """What partitions lack of what lines had them apply."""
    last = {found.partition: found for found in committed(directory.path, STATE_STEP).values()}
    there = {*directory.existing_numbers()}
    elsewhere = last.keys() - there if directory.is_shared_out() else set()
    compared = [_compare(directory, last[number]) for number in sorted(last.keys() - elsewhere)]
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
