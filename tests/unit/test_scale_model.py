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
from benchmarks.scale.cluster import Asked, Outcome, asked, run
from benchmarks.scale.costs import Costs
from benchmarks.scale.limits import first_to_break
from benchmarks.scale.recovery import Course, machine_lost, machines_join, nothing_happens, transfer_s
from benchmarks.scale.shape import Load, Shape, in_memory
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


def test_a_query_waits_for_the_rest_of_a_batch_alone() -> None:
    behind = [Change(0.0, 0.5, 100.0)]
    assert served([Query(1.0, 0.003, 1, 0)], 0.5, behind) == pytest.approx({0: 1.0 + 0.0025 + 0.003})


def test_tenants_take_turns() -> None:
    loud = [Query(0.0, 0.01, 0, number) for number in range(100)]
    found = served([*loud, Query(0.001, 0.01, 1, 100)])
    assert found[100] == pytest.approx(0.02 + 0.01, abs=0.011)
    assert found[99] == pytest.approx(1.01)


def test_messages_are_applied_though_queries_never_stop() -> None:
    queries = [Query(0.0, 0.004, 1, number) for number in range(1_000)]
    worker = Worker(0.0, COSTS.message_s, half(), [Change(0.0, 0.0, 0.5)])
    assert len([*worker.serve(queries)]) == 1_000
    assert worker.backlog_s == pytest.approx(0)


def test_what_was_missed_is_caught_up_in_the_time_that_is_left() -> None:
    worker = Worker(0.5, COSTS.message_s, half(), [Change(1.0, 0.75, 2.0)])
    worker.rest_until(100.0)
    assert worker.caught_up_s == pytest.approx(1.0 + 2.0 / 0.25)


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


def test_what_a_machine_was_at_when_it_was_lost_is_answered_by_another() -> None:
    shape = replace(SHAPE, messages_per_s=0.0, session_timeout_s=SESSION_S)
    course = machine_lost(shape, COSTS, LOST_AT_S, np.random.default_rng(1))
    move = course.moves[0]
    queries = Asked(np.array([LOST_AT_S - 0.001]), np.array([move.partition]), np.array([1]), np.array([0.004]))
    rng = np.random.default_rng(1)
    outcome = run(shape, COSTS, Load.drawn(shape, rng), course, queries, SECONDS, rng)
    assert outcome.took_s == pytest.approx(0.001 + move.ready_s - LOST_AT_S + 0.004 + COSTS.transport_s)


def test_standbys_are_there_sooner() -> None:
    usual = replace(SHAPE, session_timeout_s=SESSION_S)
    shapes = {"cold": usual, "warm": replace(usual, standby=True)}
    found = {
        name: modelled(shape, machine_lost(shape, COSTS, LOST_AT_S, np.random.default_rng(1)))
        for name, shape in shapes.items()
    }
    for kind in ("silent_s", "behind_s"):
        cold, warm = (max(getattr(found[name], kind).values()) for name in ("cold", "warm"))
        assert warm < cold


def test_machines_that_join_take_their_share_and_no_more() -> None:
    course = machines_join(SHAPE, COSTS, LOST_AT_S, 1, np.random.default_rng(1))
    new = {move.after for move in course.moves}
    assert new == {*range(SHAPE.members, SHAPE.members + SHAPE.cores)}
    assert len(course.moves) == len(new) * (SHAPE.partitions // (SHAPE.members + SHAPE.cores))
    assert not np.isnan(modelled(SHAPE, course).took_s).any()


def test_at_no_load_a_query_takes_its_own_time() -> None:
    idle = replace(SHAPE, messages_per_s=0.0, queries_per_s=10.0, cache_bytes=1e12)
    outcome = modelled(idle, nothing_happens(idle), 300.0)
    p95_s = np.percentile(outcome.asked.cost_s, 95) + COSTS.transport_s
    assert outcome.percentiles_ms(outcome.asked.at_s >= 0)[1] == pytest.approx(p95_s * 1e3, rel=0.01)


def test_the_same_seed_gives_the_same_figures() -> None:
    first, second = (modelled(SHAPE, nothing_happens(SHAPE), 5.0) for _ in range(2))
    assert (first.took_s == second.took_s).all()


# ── what there is of everything ───────────────────────────────────────────────────────────────────────────────────


def test_all_that_comes_in_comes_in_somewhere() -> None:
    for shape in (SHAPE, replace(SHAPE, hot_share=0.3), replace(SHAPE, hot_owner_share=0.1)):
        load = Load.drawn(shape, np.random.default_rng(1))
        assert load.shares.sum() == pytest.approx(1)
        assert load.hot.sum() == pytest.approx(shape.hot_share + shape.hot_owner_share)


def test_owners_are_in_memory_as_far_as_there_is_room() -> None:
    even = np.full(1_000, 0.001)
    rooms = (1_000, 500, 100)
    one = replace(SHAPE, machines=1, cores=1)
    found = [in_memory(replace(one, cache_bytes=room * COSTS.hot_owner_bytes), COSTS, even) for room in rooms]
    assert found == pytest.approx([1.0, 0.5, 0.1], rel=0.001)


def test_transfers_share_a_network() -> None:
    assert transfer_s([100.0], 10.0, 100.0) == pytest.approx([10.0])
    assert transfer_s([100.0] * 20, 10.0, 100.0) == pytest.approx([20.0] * 20)
    assert transfer_s([50.0, 100.0], 10.0, 10.0) == pytest.approx([10.0, 15.0])


def test_skew_breaks_an_owners_core_first_and_no_more_machines_help() -> None:
    limits = first_to_break(SHAPE, COSTS, 1)
    by_skew = [limits[skew]["a core for the busiest owner"] for skew in limits]
    assert by_skew == sorted(by_skew, reverse=True)
    larger = first_to_break(replace(SHAPE, machines=2 * SHAPE.machines), COSTS, 1)
    for skew in limits:
        assert larger[skew]["all cores"] == pytest.approx(2 * limits[skew]["all cores"])
        assert larger[skew]["a core for the busiest owner"] == limits[skew]["a core for the busiest owner"]
