"""However often state partitions are spread over directories and brought together again, they hold what they held."""

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.state.at_rest import UNENCRYPTED
from recallflow.state.combined import combined_hash
from recallflow.state.folders import numbers_in
from recallflow.state.moving import merge, move, split
from recallflow.state.verify import verify
from tests.groups import share
from tests.unit.state.member import PARTITIONS, Member, told

NAMES = ("whole", "a", "b")
Held = dict[int, tuple[bytes | None, dict[str, int]]]

SPREADS = st.lists(
    st.tuples(st.booleans(), st.lists(st.sampled_from(NAMES), min_size=PARTITIONS, max_size=PARTITIONS)), max_size=2
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory with all partitions, and the hash of it."""
    path = tmp_path_factory.mktemp("filled") / "whole"
    with Member.on(path) as member:
        member.take(*range(PARTITIONS))
        member.run(told(0, 2))
        return path, member.hash()


def held(path: Path) -> Held:
    with Member.on(path) as member:
        return {one.number: (one.place, dict(one.applied)) for one in member.directory.existing_partitions()}


@settings(max_examples=share(0.2))
@given(spreads=SPREADS)
def test_what_is_spread_and_brought_together_is_what_it_was(
    filled: tuple[Path, str], spreads: list[tuple[bool, list[str]]]
) -> None:
    path, hashed = filled
    with tempfile.TemporaryDirectory(prefix="recallflow-spread-") as folder:
        there = {name: Path(folder) / name for name in NAMES}
        shutil.copytree(path, there["whole"])
        where = dict.fromkeys(range(PARTITIONS), "whole")
        for at_once, targets in spreads:
            for source, goes in changes(where, targets).items():
                if at_once:
                    split(there[source], {there[target]: numbers for target, numbers in goes.items()}, UNENCRYPTED)
                else:
                    for target, numbers in goes.items():
                        move(there[source], there[target], numbers, UNENCRYPTED, create=True)
            where = dict(enumerate(targets))
            spread = [one for one in there.values() if one.exists()]
            assert {number: one.name for one in spread for number in numbers_in(one)} == where
        spread = [one for one in there.values() if one.exists()]
        assert combined_hash(spread, UNENCRYPTED).hash == hashed
        merge(spread, Path(folder) / "again", UNENCRYPTED, lambda _: ("", (0, 0, 0)), now_ms=0)
        assert held(Path(folder) / "again") == held(path)
        assert combined_hash([Path(folder) / "again"], UNENCRYPTED).hash == hashed
        assert verify(Path(folder) / "again", UNENCRYPTED).problems == []
        assert [number for one in spread for number in numbers_in(one)] == []


def changes(where: dict[int, str], targets: list[str]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, target in enumerate(targets):
        if where[number] != target:
            found[where[number]][target].append(number)
    return found
