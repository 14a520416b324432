"""The combined contents of several closed state directories, each with some partitions. Raise StateInUse for an open
one."""

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recallflow.errors import StateError
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import AtRest
from recallflow.state.fingerprint import check_same
from recallflow.state.folders import names
from recallflow.state.logical import hash_of
from recallflow.state.partition import Partition


@dataclass(frozen=True, slots=True)
class Combined:
    """`hash`: equal to that of one directory with all partitions. `several`: of each partition that is in more than one
    directory which they are, the one first that counts."""

    hash: str
    several: dict[int, list[Path]]


def combined_hash(paths: Sequence[Path], at_rest: AtRest) -> Combined:
    """Return the hash of all partitions. Of several copies of a partition, the one with the most applied records
    counts. Raise StateError for a missing partition."""
    with contextlib.ExitStack() as stack:
        holders: dict[int, list[tuple[Path, Partition]]] = defaultdict(list)
        directories = [
            stack.enter_context(StateDirectory.existing(path, CACHE_BYTES, at_rest))
            for path in {path.resolve(): path for path in paths}.values()
        ]
        for one in directories:
            check_same(directories[0].path, directories[0].fingerprint, one.path, one.fingerprint)
            for partition in one.existing_partitions():
                holders[partition.number].append((one.path, partition))
        if missing := {*range(directories[0].fingerprint.partitions)} - holders.keys():
            where = ", ".join(str(one.path) for one in directories)
            raise StateError(f"no {names(missing)} in {where}: name every directory of the deployment")
        for found in holders.values():
            found.sort(key=lambda held: _reach(held[1]), reverse=True)
        several = {number: [path for path, _ in found] for number, found in holders.items() if len(found) > 1}
        return Combined(hash_of(found[0][1] for found in holders.values()), several)


def _reach(partition: Partition) -> tuple[int, int]:
    """Return the number of applied records of the partition's own log, and of all logs."""
    own = [offset for source, offset in partition.applied.items() if source.endswith(f":{partition.number}")]
    return sum(own) + len(own), sum(partition.applied.values()) + len(partition.applied)
