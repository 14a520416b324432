"""All members of a deployment for some minutes: each query from when it is asked until it is answered."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.scale.costs import Costs, Floats
from benchmarks.scale.recovery import Course, Move, tail_work_s
from benchmarks.scale.shape import Ints, Load, Shape, in_memory
from benchmarks.scale.worker import Change, Query, Worker

RESIDUES = 4_096  # drawn at a time

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Asked:
    """All queries, by when they are asked."""

    at_s: Floats
    partition: Ints
    tenant: Ints
    cost_s: Floats


@dataclass(frozen=True)
class Outcome:
    """What came of it. `took_s`: of each query, with the way over Kafka; `busy`: the share of each member's core;
    `silent_s` and `behind_s`: by partition that moved, until it answered, and until it knew all of its log."""

    asked: Asked
    took_s: Floats
    busy: dict[int, float]
    silent_s: dict[int, float]
    behind_s: dict[int, float]

    def percentiles_ms(self, mask: Mask, shares: tuple[float, ...] = (50, 95)) -> list[float]:
        """Of those queries, in milliseconds; nothing where there are none."""
        return [float("nan")] * len(shares) if not mask.any() else [*np.percentile(self.took_s[mask] * 1e3, shares)]


def asked(shape: Shape, costs: Costs, load: Load, seconds: float, rng: np.random.Generator) -> Asked:
    """Queries come by chance, to owners as they have messages. Tenant 0 is the hot one."""
    count = int(rng.poisson(shape.queries_per_s * seconds))
    at_s = np.sort(rng.uniform(0, seconds, count))
    partition = rng.choice(shape.partitions, count, p=load.shares / load.shares.sum())
    is_hot = rng.random(count) * load.shares[partition] < load.hot[partition]
    tenant = np.where(is_hot, 0, rng.integers(1, shape.tenants + 1, count))
    cost_s = costs.queries_s(rng.random(count))
    cost_s += costs.cold_query_s * (rng.random(count) >= in_memory(shape, costs, load.owners))
    return Asked(at_s, partition, tenant, cost_s)


def run(
    shape: Shape, costs: Costs, load: Load, course: Course, queries: Asked, seconds: float, rng: np.random.Generator
) -> Outcome:
    """1. Members that are lost answer until they are. What they were asked and did not answer is in the log.
    2. A partition's queries go to who owns it then; those asked while it is with nobody, to who has it next.
    """
    moves = {move.partition: move for move in course.moves}
    took_s = np.full(len(queries.at_s), np.nan)
    to = np.array([course.before[partition] for partition in range(shape.partitions)])[queries.partition]
    there_s = queries.at_s.copy()
    for move in moves.values():
        late = (queries.partition == move.partition) & (queries.at_s >= move.from_s)
        to[late], there_s[late] = move.after, np.maximum(queries.at_s[late], move.ready_s)
    changes, loads = _changes(shape, costs, load, course)
    workers: dict[int, Worker] = {}
    members = sorted({*course.before.values(), *course.after.values()}, key=lambda member: member not in course.lost)
    for member in members:
        worker = workers[member] = Worker(loads[member], costs.message_s, _residues(rng), changes[member])
        numbers = np.flatnonzero(to == member)
        numbers = numbers[np.argsort(there_s[numbers], kind="stable")]
        given = [
            Query(*one)
            for one in zip(
                there_s[numbers].tolist(),
                queries.cost_s[numbers].tolist(),
                queries.tenant[numbers].tolist(),
                numbers.tolist(),
                strict=True,
            )
        ]
        for number, through_s in worker.serve(given):
            if member in course.lost and through_s > course.at_s:
                move = moves[int(queries.partition[number])]
                to[number], there_s[number] = move.after, move.ready_s
            else:
                took_s[number] = through_s - queries.at_s[number] + costs.transport_s
        worker.rest_until(seconds)
    busy = {
        member: worker.busy_s / (course.at_s if member in course.lost else seconds) + worker.load
        for member, worker in workers.items()
        if member not in course.lost
    }
    silent_s = {move.partition: move.ready_s - move.from_s for move in course.moves}
    behind_s = {move.partition: _caught_up(workers[move.after], move, busy, seconds) for move in course.moves}
    return Outcome(queries, took_s, busy, silent_s, behind_s)


def _changes(
    shape: Shape, costs: Costs, load: Load, course: Course
) -> tuple[dict[int, list[Change]], dict[int, float]]:
    """What changes for each member, and the messages' work a second that it begins with. Who stands by for a partition
    applies its messages, too; a new standby in place of one that took over is left out."""
    work = load.shares * shape.messages_per_s * costs.message_s
    begin: dict[int, float] = defaultdict(lambda: costs.idle_cores)
    for partition, member in (*course.before.items(), *course.standbys.items()):
        begin[member] += float(work[partition])
    changes: dict[int, list[Change]] = defaultdict(list)
    now = dict(begin)
    for move in sorted(course.moves, key=lambda move: move.ready_s):
        more = 0.0 if move.warm else float(work[move.partition])
        now[move.after] = now.get(move.after, costs.idle_cores) + more
        changes[move.after].append(Change(move.ready_s, now[move.after], tail_work_s(shape, costs, load, move)))
    for move in course.moves:
        if move.before not in course.lost:
            now[move.before] -= float(work[move.partition])
            changes[move.before].append(Change(move.from_s, now[move.before]))
    return changes, begin


def _residues(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(RESIDUES).tolist()


def _caught_up(worker: Worker, move: Move, busy: Mapping[int, float], seconds: float) -> float:
    """Seconds from the loss until a partition knows all of its log. What is left at the end is gone on with at the
    pace that the member then has."""
    if worker.caught_up_s is not None:
        return max(worker.caught_up_s, move.ready_s) - move.from_s
    left = 1 - min(0.999, busy[move.after])
    return seconds + worker.backlog_s / left - move.from_s
