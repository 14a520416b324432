"""The tables that say where a statement holds name files and tests that are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ("graph.md", "llm.md", "recall.md", "security.md", "services.md")
TESTS = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
NAMED_TEST = re.compile(r"`(?:([\w/]*test_\w+\.py))?(?:::(test_\w+))?`")
NAMED_FILE = re.compile(r"`((?:recallflow|flows|operators|connectors|state|benchmarks|tests)/[\w/]+\.py)`")


def named_tests(text: str) -> Iterator[tuple[str, str]]:
    """File and function, either may be empty; a function without a file is of the one named before it in its line."""
    for line in text.splitlines():
        before = ""
        for file, function in NAMED_TEST.findall(line):
            if file or function:
                before = file or before
                yield before, function


def is_there(file: str, function: str) -> bool:
    found = [path for path in TESTS if f"/{path.as_posix()}".endswith(f"/{file}")]
    if not function:
        return bool(found)
    return any(re.search(rf"^(?:async )?def {function}\b", (ROOT / path).read_text(), re.M) for path in found)


@pytest.mark.parametrize("page", DOCS)
def test_every_test_that_is_named_is_there(page: str) -> None:
    named = [*named_tests((ROOT / "docs" / page).read_text())]
    assert len(named) > 20
    assert [one for one in named if not is_there(*one)] == []


@pytest.mark.parametrize("page", DOCS)
def test_every_file_that_is_named_is_there(page: str) -> None:
    named = NAMED_FILE.findall((ROOT / "docs" / page).read_text())
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_each_threat_has_a_test() -> None:
    _, _, after = (ROOT / "docs" / "security.md").read_text().partition("\n## Threats\n")
    rows = [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    assert [row for row in rows if not [*named_tests(row.rsplit("|", 2)[1])]] == []
