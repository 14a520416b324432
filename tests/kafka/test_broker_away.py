"""A broker that goes away and comes back costs nothing, and the flow goes on by itself."""

from benchmarks.broker_away import outage


def test_nothing_is_lost_or_done_twice_while_the_broker_is_away() -> None:
    outcome = outage(away_s=0.0, events=500, seed=5)  # killed, and started again at once: that takes some seconds
    report = outcome.report
    assert (report.lost, report.duplicate, report.unexpected, report.wrong) == ([], [], [], [])
    assert report.state_equal
    assert report.compared > 50
    assert report.waited > 0
