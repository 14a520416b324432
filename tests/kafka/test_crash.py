"""Killed at any moment, the flow loses nothing, does nothing twice, and ends with the state of a run without kills."""

import pytest

from benchmarks.broker import Cluster
from benchmarks.crash.kills import POINTS
from benchmarks.crash.report import Report
from benchmarks.crash.trial import run, trial


def assert_clean(report: Report) -> None:
    assert (report.lost, report.duplicate, report.unexpected, report.wrong) == ([], [], [], [])
    assert report.state_equal


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_nothing_is_lost_or_done_twice(broker: Cluster, static: bool) -> None:
    """Of a static member the group keeps the partitions for it; of another one it is found out that it is gone."""
    report = run(broker, events=1_600, kills=4, seed=1 + static, static=static)
    assert_clean(report)
    assert report.kills == {"random": 4} | dict.fromkeys(POINTS, 1)
    assert report.compared >= 200
    assert report.waited > 0
    assert report.stale > 0


def test_a_broker_that_goes_away_costs_nothing(broker: Cluster) -> None:
    with trial(broker, 600, seed=3) as made:
        made.produce(0.3)
        with made.running():
            broker.stop()
            broker.start()
            made.produce(0.3)
        assert_clean(made.finish())


@pytest.mark.parametrize(("stub", "point"), [("dedupe", "produced"), ("positions", "applied"), ("outbox", "applied")])
def test_the_guard_bites(broker: Cluster, stub: str, point: str) -> None:
    """The same crash without one of the safeguards does harm, and the comparison sees it."""
    with trial(broker, 200, seed=4, stub=stub, receipts=1.0) as made:
        made.kill_at(point, 1, 0.9)
        report = made.finish()
    match stub:
        case "dedupe":
            assert report.duplicate
        case "positions":
            assert report.wrong  # what was created is told to be a duplicate
        case "outbox":
            assert report.lost
