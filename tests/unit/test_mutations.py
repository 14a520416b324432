"""What nobody should send: a share of what `python -m benchmarks.mutations` sends, of which nothing must come."""

from pathlib import Path

import pytest

from benchmarks.mutations.trial import Trial

COUNT = 1_500


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_comes_of_mutated_records_that_must_not(tmp_path: Path, seed: int) -> None:
    report = Trial(tmp_path, seed, COUNT).run()
    assert (report.found, report.examples) == ({}, [])
    assert report.records == COUNT
    # It looks at something: records of each kind count, each way to be refused is taken, and many are answered.
    assert len(report.accepted) > 15
    assert report.refused.keys() >= {"unauthenticated", "forbidden", "invalid_event", "invalid_json", "unknown_type"}
    assert report.outputs["Answer"] > COUNT / 10
