"""What is written for people keeps to what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
STATUS = re.compile(r"\*\*Status\.\*\* (In force|Superseded by)\b.*?\.\n\n", re.DOTALL)


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_says_whether_it_is_in_force(path: Path) -> None:
    title, _, rest = path.read_text().partition("\n\n")
    assert re.fullmatch(rf"# {int(path.stem[:4])}\. .+", title)
    status = STATUS.match(rest)
    assert status is not None
    later = re.findall(r"\[decision (\d+)\]\((\d{4}-[a-z0-9-]+\.md)\)", status[0])
    assert bool(later) == ("amended" in status[0] or "Superseded" in status[0])
    for number, name in later:
        assert int(number) == int(name[:4]) > int(path.stem[:4])
        assert (path.parent / name).exists()


def test_decisions_are_numbered_once() -> None:
    numbers = [path.stem[:4] for path in DECISIONS]
    assert len(set(numbers)) == len(numbers)
