"""Partitions that go from one member to another: until when they are silent, and what they then have to catch up."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.scale.assignment import Assignment, assign, moved, standbys
from benchmarks.scale.costs import Costs
from benchmarks.scale.shape import Load, Shape, partition_bytes


class Move(NamedTuple):
    """A partition is with nobody from `from_s` to `ready_s`, and then answers. `tail_s`: seconds of its log to be
    applied again or for the first time. `warm`: it goes to who stood by, and applied all of its log anyway."""

    partition: int
    before: int
    after: int
    from_s: float
    ready_s: float
    tail_s: float
    warm: bool = False


@dataclass(frozen=True)
class Course:
    """Who owns what, who stands by, and what happens. `lost`: members that are gone from `at_s` on."""

    before: Assignment
    after: Assignment
    at_s: float
    moves: tuple[Move, ...] = ()
    lost: frozenset[int] = frozenset()
    standbys: Assignment = field(default_factory=dict)


def nothing_happens(shape: Shape) -> Course:
    owners = assign(shape.partitions, range(shape.members), {})
    return Course(owners, owners, 0.0, standbys=_standbys(shape, owners))


def _standbys(shape: Shape, owners: Assignment) -> Assignment:
    return standbys(owners, shape.machine_of()) if shape.standby else {}


def machine_lost(shape: Shape, costs: Costs, at_s: float, rng: np.random.Generator) -> Course:
    """The first machine is gone at once, with its disk. The group notices when the session has timed out. Who stands by
    has the state already; another member fetches the newest checkpoint."""
    machine_of = shape.machine_of()
    before = assign(shape.partitions, range(shape.members), {})
    lost = frozenset(member for member, machine in machine_of.items() if machine == 0)
    left = [member for member in machine_of if member not in lost]
    warm = _standbys(shape, before)
    after = assign(shape.partitions, left, before, warm)
    noticed_s = at_s + shape.session_timeout_s + costs.rebalance_s
    arriving = moved(before, after)
    cold = [partition for partition in arriving if warm.get(partition) != after[partition]]
    fetched_s = _fetched(shape, costs, cold, after, machine_of)
    moves = []
    for partition in arriving:
        if partition in fetched_s:
            ready_s = noticed_s + fetched_s[partition] + costs.open_s + costs.takeover_s
            behind_s = ready_s - at_s + float(rng.uniform(0, shape.checkpoint_s))  # as old as the checkpoint is
        else:
            ready_s, behind_s = noticed_s + costs.takeover_s, costs.takeover_s
        moves.append(
            Move(partition, before[partition], after[partition], at_s, ready_s, behind_s, partition not in fetched_s)
        )
    return Course(before, after, at_s, tuple(moves), lost, warm)


def machines_join(shape: Shape, costs: Costs, at_s: float, joining: int, rng: np.random.Generator) -> Course:
    """So many machines come to those there are. What moves is handed over by who has it; the new one has no state of
    it, and fetches a checkpoint while nobody answers."""
    members = shape.members + joining * shape.cores
    machine_of = shape.machine_of(members)
    before = assign(shape.partitions, range(shape.members), {})
    after = assign(shape.partitions, range(members), before)
    arriving = moved(before, after)
    fetched_s = _fetched(shape, costs, arriving, after, machine_of)
    handed_s = at_s + costs.handover_s + costs.rebalance_s
    moves = []
    for partition in arriving:
        ready_s = handed_s + fetched_s[partition] + costs.open_s + costs.takeover_s
        age_s = float(rng.uniform(0, shape.checkpoint_s))
        moves.append(Move(partition, before[partition], after[partition], at_s, ready_s, ready_s - at_s + age_s))
    return Course(before, after, at_s, tuple(moves), standbys=_standbys(shape, before))


def _fetched(
    shape: Shape, costs: Costs, partitions: Sequence[int], owners: Mapping[int, int], machine_of: Mapping[int, int]
) -> dict[int, float]:
    """Seconds until each of these has its checkpoint: those of a machine share its network."""
    by_machine: dict[int, list[int]] = defaultdict(list)
    for partition in partitions:
        by_machine[machine_of[owners[partition]]].append(partition)
    size = partition_bytes(shape, costs)
    return {
        partition: taken_s
        for found in by_machine.values()
        for partition, taken_s in zip(
            found, transfer_s([size] * len(found), costs.stream_bytes_a_s, shape.network_bytes_a_s), strict=True
        )
    }


def transfer_s(sizes: Sequence[float], stream_bytes_a_s: float, network_bytes_a_s: float) -> list[float]:
    """When each of several transfers that begin together is through: each as fast as one stream is, and all of them no
    faster than the network."""
    left, through, now_s = dict(enumerate(sizes)), [0.0] * len(sizes), 0.0
    while left:
        rate = min(stream_bytes_a_s, network_bytes_a_s / len(left))
        step_s = min(left.values()) / rate
        now_s += step_s
        for number in [number for number, size in left.items() if size / rate <= step_s]:
            through[number] = now_s
            del left[number]
        left = {number: size - rate * step_s for number, size in left.items()}
    return through


def tail_work_s(shape: Shape, costs: Costs, load: Load, move: Move) -> float:
    """The processor's seconds for what a partition has to catch up."""
    return float(load.shares[move.partition]) * shape.messages_per_s * move.tail_s * costs.message_s
