"""Deployments under seeded schedules of events and faults: nothing lost, nothing twice, one owner a partition."""

from collections.abc import Iterator

import pytest

from tests.groups import share
from tests.simulation import kafka, schedule, world
from tests.simulation.coordinator import SCENARIOS, Group, Scenario
from tests.simulation.schedule import Action, Schedule

BLOCKS = 5
LEFT_WITH_A_LEASE = Schedule(
    100547,
    (
        Action(0.0, "join"), Action(0.0, "join", 1), Action(2.0769047849637103, "crash", 0, 1.3484059875589143),
        Action(6.4833464356274195, "memory", 1, 2), Action(7.907272845034036, "memory", 0, 3),
        Action(8.404272845034036, "waiting", 2, 1), Action(9.215097089839814, "memory", 1, 4),
        Action(10.328696607263476, "memory", 0, 1), Action(10.525351004282818, "kill", 1, 0.24040140443641458),
        Action(11.639059390265084, "query", 2, 3), Action(15.96, "query", 2, 3), Action(15.988, "query", 0, 1),
        Action(16.0, "outage", 1, 5.479926188579312), Action(16.410845595845135, "memory", 2, 2),
        Action(21.063795521663234, "query", 2, 3),
    ),
)  # fmt: skip
CLAIMED_BEHIND_A_MARK = Schedule(
    300104,
    (
        Action(0.0, "join"), Action(0.0, "join", 1), Action(0.3941945475204607, "memory", 2, 4),
        Action(4.693439700403542, "misrouted", 1, 2), Action(5.093439700403542, "query", 2, 2),
        Action(5.193439700403542, "cut", 2, 6.787029525237782), Action(7.472173727676889, "memory", 2, 1),
        Action(7.565072853688875, "memory", 2, 3), Action(7.972173727676889, "stop", 0, 2.6633302996445063),
        Action(8.01209300166397, "memory", 2, 4), Action(8.918572090994639, "memory", 1, 2),
        Action(11.5, "memory", 0, 4), Action(11.994, "erase", 2, 1), Action(12.0, "kill", 2, 0.34640449227301007),
    ),
    static=(False, True, False),
)  # fmt: skip
# Shrunk schedules that found defects of the product.
REGRESSIONS = {
    "a member that leaves renews its lease": LEFT_WITH_A_LEASE,
    "an output is claimed before the mark in front of it is committed": CLAIMED_BEHIND_A_MARK,
    "a member stops while it reads what was sent before": schedule.schedule_of(100_762),
}


@pytest.fixture(autouse=True)
def simulating() -> Iterator[None]:
    with schedule.simulating():
        yield


def explore(seeds: Iterator[int] | range) -> None:
    """Run schedules. The first one that fails is shrunk, and named with its seed."""
    for seed in seeds:
        drawn = schedule.schedule_of(seed)
        if (broken := schedule.run(drawn).broken) is not None:
            pytest.fail(f"{broken}\n{schedule.shrink(drawn)}")


@pytest.mark.parametrize("block", range(BLOCKS))
def test_schedule_of_faults_keeps_invariants(block: int) -> None:
    count = share(5) // BLOCKS
    explore(range(1 + block * count, 1 + (block + 1) * count))


@pytest.mark.parametrize("failed", REGRESSIONS.values(), ids=REGRESSIONS)
def test_schedule_that_failed_keeps_invariants(failed: Schedule) -> None:
    assert schedule.run(failed).broken is None


def test_equal_seeds_give_equal_schedules() -> None:
    outcomes = [schedule.run(schedule.schedule_of(3)) for _ in range(2)]
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_coordinator_gives_the_results_of_the_scenario(scenario: Scenario) -> None:
    results: list[object] = []
    with world.running(1) as here, kafka.connected(kafka.Broker(here, {"memory.events": schedule.PARTITIONS})):

        def run() -> None:
            group = Group(kafka.Consumer, {}, "group", "memory.events")
            results.extend(scenario(group))

        here.process("test").spawn(run, "main")
        here.run(lambda: bool(results), limit_s=60.0)
    assert (results, here.failures) == (SCENARIOS[scenario], [])
