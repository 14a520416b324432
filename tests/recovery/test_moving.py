"""`state move` that is killed at any file operation has moved a partition or has not, and ends right when it is done
again."""

import subprocess
import sys
from pathlib import Path

import orjson

from tests.recovery import mover
from tests.unit.state.member import PARTITIONS, Member, told

EVERY = [*range(PARTITIONS)]
STAYS = [number for number in EVERY if number not in mover.MOVED]


def test_a_move_that_is_killed_anywhere_is_done_again(tmp_path: Path) -> None:
    with Member.on(tmp_path / "from") as member:
        member.take(*EVERY)
        member.run(told(0, 3))
        before = member.hash()
    with Member.on(tmp_path / "to"):
        pass
    ended = subprocess.run([sys.executable, mover.__file__, tmp_path], stdout=subprocess.PIPE, check=True)
    found = [orjson.loads(line) for line in ended.stdout.splitlines()]
    assert len(found) > 20
    blocked = 0
    for one in found:
        source, target = one["killed"]["held"]
        assert {*source, *target} == {*EVERY}, one
        of_source, of_target = one["killed"]["problems"]
        assert of_target == [], one  # all of a partition, or nothing
        for problem in of_source:  # of one that may be in both
            assert "was on its way to" in problem
        blocked += bool(of_source)
        assert len({*source} & {*target}) <= 1
        assert one["done"] == {"held": [STAYS, [*mover.MOVED]], "problems": [[], []], "left": []}, one
        assert one["hash"] == before
    assert 0 < blocked < len(found) - 1
    assert [one["through"] for one in found] == [False] * (len(found) - 1) + [True]
    assert {one["again"] for one in found} == {0, 1, 2}
