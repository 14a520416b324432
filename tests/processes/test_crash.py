"""A kill at any step of a change loses nothing: the next process finds a state that it can go on with."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import orjson

from tests.processes.crash import MOVED
from tests.unit.state.member import PARTITIONS, Member, told

Start = Callable[..., subprocess.Popen[bytes]]
DRIVER = "import sys; from tests.processes.crash import main; main(*sys.argv[1:])"


def outcomes(start: Start, scenario: str, path: Path, *words: str) -> tuple[list[str], list[int], list[str]]:
    """Run a scenario of kills. Return its lines of output, the counts behind them, and its lines of errors."""
    process = start(scenario, path, *words, script=DRIVER)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()
    *lines, last = [line for line in out.decode().splitlines() if not line.startswith("created: ")]
    return lines, [*map(int, last.split())], err.decode().splitlines()


def test_kill_at_any_step_of_an_erasure_is_finished_later(start: Start, tmp_path: Path) -> None:
    broken, (kills, uncleaned), _ = outcomes(start, "erasing", tmp_path / "s")
    assert broken == []
    assert kills > uncleaned > 5


def test_interrupted_first_start_leaves_a_directory_that_starts(start: Start, tmp_path: Path) -> None:
    broken, (moments, full_disks), errors = outcomes(
        start, "first_start", tmp_path / "s", "remember", "tea", "--partitions", "1"
    )
    assert broken == []
    assert moments > 5
    assert full_disks >= 4
    assert len(errors) == full_disks  # one line for each
    assert all(re.fullmatch(r"recallflow: .+", line) for line in errors)


def test_interrupted_move_of_partitions_is_completed_by_repeating_it(start: Start, tmp_path: Path) -> None:
    every = [*range(PARTITIONS)]
    with Member.on(tmp_path / "from") as member:
        member.take(*every)
        member.run(told(0, 3))
        before = member.hash()
    with Member.on(tmp_path / "to"):
        pass
    lines, (kills,), _ = outcomes(start, "moving", tmp_path)
    found = [orjson.loads(line) for line in lines]
    assert len(found) == kills > 20
    blocked = 0
    for one in found:
        source, target = one["killed"]["held"]
        assert {*source, *target} == {*every}, one
        assert len({*source} & {*target}) <= 1
        of_source, of_target = one["killed"]["problems"]
        assert of_target == [], one  # a whole partition or none
        assert all("was interrupted" in problem for problem in of_source)  # of a partition that may be in both
        blocked += bool(of_source)
        stays = [number for number in every if number not in MOVED]
        assert one["done"] == {"held": [stays, [*MOVED]], "problems": [[], []], "left": []}, one
        assert one["hash"] == before
    assert 0 < blocked < kills
    assert {one["again"] for one in found} >= {1, 2}
