"""Mutated records have no effect that they must not have: a share of what `python -m benchmarks.mutations` sends."""

from pathlib import Path

from benchmarks.mutations.trial import Trial
from tests.groups import share

COUNT = share(12)


def test_mutated_records_have_no_forbidden_effect(tmp_path: Path) -> None:
    report = Trial(tmp_path, 1, COUNT).run()
    assert (report.found, report.examples) == ({}, [])
    assert report.records == COUNT
    # The trial sees something: records of each kind count, each refusal occurs, and many are answered.
    assert len(report.accepted) > 15
    assert report.refused.keys() >= {"unauthenticated", "forbidden", "invalid_event", "invalid_json", "unknown_type"}
    assert report.outputs["Answer"] > COUNT / 10
