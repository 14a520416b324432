"""Kills at named points and at random: nothing is lost or done twice, and the state is that of a run without kills."""

from benchmarks.broker import Cluster
from benchmarks.crash.kills import POINTS
from benchmarks.crash.report import Report
from benchmarks.crash.trial import run, trial


def assert_clean(report: Report) -> None:
    assert (report.lost, report.duplicate, report.unexpected, report.wrong) == ([], [], [], [])
    assert report.state_equal


def test_a_static_member_survives_kills_at_every_point(broker: Cluster) -> None:
    report = run(broker, events=600, kills=2, seed=2, static=True)
    assert_clean(report)
    assert report.kills == {"random": 2} | dict.fromkeys(POINTS, 1)
    assert report.compared >= 70
    assert report.waited > 0


def test_a_dynamic_member_survives_kills(broker: Cluster) -> None:
    """Its group has to find out that it is gone."""
    with trial(broker, 300, seed=1, static=False) as made:
        made.kill_at("produced", 1, 0.4)
        made.kill_at_random(0.3)
        assert_clean(made.finish())


def test_a_crash_without_deduplication_is_noticed(broker: Cluster) -> None:
    with trial(broker, 100, seed=4, stub="dedupe", receipts=1.0) as made:
        made.kill_at("produced", 1, 0.9)
        assert made.finish().duplicate
