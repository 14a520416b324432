"""The model of large deployments keeps to what it models: nothing is lost or done twice in it, and it moves no more
than it must."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale.assignment import assign, moved, standbys
from benchmarks.scale.cluster import Outcome, asked, run
from benchmarks.scale.costs import Costs
from benchmarks.scale.recovery import Course, machine_lost, machines_join
from benchmarks.scale.shape import Load, Shape
from benchmarks.scale.worker import Change, Query, Worker
from benchmarks.scale_model import small

COSTS = Costs(
    message_s=0.0003,
    query_quantiles_s=np.array([0.002, 0.004]),
    cold_query_s=0.005,
    idle_cores=0.0,
    hot_owner_bytes=1e6,
    disk_bytes_a_message=1_400,
    message_bytes=300,
    open_s=0.01,
    copy_s_a_byte=1e-9,
)
SHAPE = small(small(replace(Shape(), machines=500, partitions=10_000, owners=200_000)))  # 5 machines, 100 partitions
SESSION_S = 6.0
LOST_AT_S, SECONDS = 5.0, 30.0


def modelled(shape: Shape, course: Course, seconds: float = SECONDS) -> Outcome:
    rng = np.random.default_rng(1)
    load = Load.drawn(shape, rng)
    return run(shape, COSTS, load, course, asked(shape, COSTS, load, seconds, rng), seconds, rng)


def served(queries: Sequence[Query], load: float = 0.0, changes: Sequence[Change] = ()) -> dict[int, float]:
    worker = Worker(load, COSTS.message_s, half(), changes)
    return {one.number: one.at_s for one in worker.serve(queries)}


def half() -> Iterator[float]:
    return repeat(0.5)


# ── who owns what ─────────────────────────────────────────────────────────────────────────────────────────────────

members = st.sets(st.integers(0, 12), min_size=1).map(sorted)


@given(st.integers(0, 60), members, members)
def test_a_partition_has_one_owner_and_members_have_as_many(
    partitions: int, before: list[int], after: list[int]
) -> None:
    owners = assign(partitions, after, assign(partitions, before, {}))
    assert [*sorted(owners)] == [*range(partitions)]
    counts = Counter(owners.values())
    assert set(counts) <= set(after)
    assert max(counts.values(), default=0) - min(counts[member] for member in after) <= 1


@given(st.integers(0, 60), members, members)
def test_no_more_moves_than_has_to(partitions: int, before: list[int], after: list[int]) -> None:
    owners = assign(partitions, before, {})
    held = sorted((sum(owner == member for owner in owners.values()) for member in after), reverse=True)
    least, odd = divmod(partitions, len(after))
    may_stay = sum(min(count, least + (place < odd)) for place, count in enumerate(held))
    assert len(moved(owners, assign(partitions, after, owners))) == partitions - may_stay


def test_who_stands_by_is_on_another_machine_and_takes_over() -> None:
    shape = replace(SHAPE, standby=True)
    machine_of = shape.machine_of()
    owners = assign(shape.partitions, range(shape.members), {})
    chosen = standbys(owners, machine_of)
    assert all(machine_of[chosen[partition]] != machine_of[owner] for partition, owner in owners.items())
    counts = Counter(chosen.values())
    assert max(counts.values()) - min(counts.values()) <= 1
    left = [member for member in machine_of if machine_of[member] != 0]
    after = assign(shape.partitions, left, owners, chosen)
    assert [after[partition] for partition in moved(owners, after)] == [chosen[one] for one in moved(owners, after)]


# ── one member ────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.0001, 0.01), st.integers(0, 3)), max_size=80),
    st.floats(0, 1.5),
    st.floats(0, 0.5),
)
def test_each_query_is_answered_once_and_not_before_its_work_is_done(
    drawn: list[tuple[float, float, int]], load: float, backlog_s: float
) -> None:
    queries = [Query(*one, number) for number, one in enumerate(sorted(drawn))]
    found = [*Worker(load, COSTS.message_s, half(), [Change(0.3, load, backlog_s)]).serve(queries)]
    assert sorted(one.number for one in found) == [*range(len(queries))]
    through_s = {one.number: one.at_s for one in found}
    assert all(through_s[one.number] >= one.at_s + one.cost_s - 1e-9 for one in queries)
    ends = [one.at_s for one in found]
    spent = [queries[one.number].cost_s for one in found]
    assert all(later - earlier >= cost - 1e-9 for earlier, later, cost in zip(ends, ends[1:], spent[1:], strict=False))


def test_a_query_alone_takes_what_it_costs() -> None:
    queries = [Query(number * 1.0, 0.003, 1, number) for number in range(100)]
    took_s = [at_s - queries[number].at_s for number, at_s in served(queries).items()]
    assert took_s == pytest.approx([0.003] * 100)


# ── all of them ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("standby", [False, True])
def test_a_lost_machine_loses_no_query(standby: bool) -> None:
    shape = replace(SHAPE, standby=standby, session_timeout_s=SESSION_S)
    course = machine_lost(shape, COSTS, LOST_AT_S, np.random.default_rng(1))
    assert len(course.moves) == shape.partitions // shape.machines
    outcome = modelled(shape, course)
    assert not np.isnan(outcome.took_s).any()
    assert (outcome.took_s >= outcome.asked.cost_s - 1e-9).all()
    lost = np.isin(outcome.asked.partition, [move.partition for move in course.moves])
    silent_s = max(outcome.silent_s.values())
    assert silent_s >= SESSION_S
    during = lost & (outcome.asked.at_s >= LOST_AT_S) & (outcome.asked.at_s < LOST_AT_S + SESSION_S)
    assert (outcome.took_s[during] > LOST_AT_S + SESSION_S - outcome.asked.at_s[during]).all()
    assert all(outcome.behind_s[partition] >= silent for partition, silent in outcome.silent_s.items())


def test_machines_that_join_take_their_share_and_no_more() -> None:
    course = machines_join(SHAPE, COSTS, LOST_AT_S, 1, np.random.default_rng(1))
    new = {move.after for move in course.moves}
    assert new == {*range(SHAPE.members, SHAPE.members + SHAPE.cores)}
    assert len(course.moves) == len(new) * (SHAPE.partitions // (SHAPE.members + SHAPE.cores))
    assert not np.isnan(modelled(SHAPE, course).took_s).any()
