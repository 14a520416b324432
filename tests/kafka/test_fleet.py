"""Several processes of one deployment under kills, pauses and lost disks, with misrouted records."""

from contextlib import closing
from pathlib import Path

from benchmarks.broker import Cluster
from tests.fleet.members import KILL, LOSE, PAUSE, Fault
from tests.fleet.trial import Plan, Trial

FAULTS = [Fault(KILL, (0,), 1.0, 1.0), Fault(PAUSE, (1,), 7.0, 1.0), Fault(LOSE, (2,), 7.0, 1.0)]


def test_a_fleet_under_faults_answers_all_once_with_equal_state(broker: Cluster, tmp_path: Path) -> None:
    plan = Plan(members=3, partitions=6, seed=18, misrouted=0.1, per_second=20.0)
    with closing(Trial(broker, tmp_path, plan)) as run:
        report = run.run(FAULTS)
    assert report.findings.clean(), report.findings
    assert not report.broken, report.broken
    assert report.state_equal
    assert report.faults == {KILL: 1, PAUSE: 1, LOSE: 1}
    assert report.findings.outputs >= report.records > 0
    assert report.astray
