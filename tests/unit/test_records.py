"""What is written for people keeps to what is there."""

import ast
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import orjson
import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings

ROOT = Path(__file__).parents[2]
FOLDERS = ("flows", "operators", "state", "connectors")
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


# ── CONTRIBUTING ──────────────────────────────────────────────────────────────────────────────────────────────────

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
OWNER = {"tenant_id": "acme", "user_id": "ann"}
MESSAGES = [
    OWNER | {"type": "message", "session_id": "s", "role": "user", "content": f"Bo moved to Porto {n}", "timestamp": n}
    for n in range(10)
]
QUESTION = OWNER | {"type": "recall", "query": "Where did Bo move?", "timestamp": 100}


def section(title: str) -> str:
    return CONTRIBUTING.partition(f"## {title}\n")[2].partition("\n## ")[0]


def files_run(run: Callable[[], object]) -> set[str]:
    """The product's files of which something runs, on any thread."""
    found: set[str] = set()

    def note(frame: FrameType, what: str, _: object) -> None:
        if what == "call":
            found.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    ours = (Path(name).resolve() for name in found if name.startswith(str(ROOT)))
    relative = (path.relative_to(ROOT) for path in ours)
    return {str(path) for path in relative if path.parts[0] not in (".venv", "tests", "benchmarks")}


def test_every_file_that_is_named_is_there() -> None:
    named = re.findall(
        r"`((?:recallflow|flows|operators|connectors|state|benchmarks|docs)/[\w/.-]+\.\w+)`", CONTRIBUTING
    )
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_way_of_one_event_names_every_file_on_it() -> None:
    way = section("The way of one event").partition("On Kafka,")[0]
    lines = [orjson.dumps(event) for event in (*MESSAGES, QUESTION)]
    settings = Settings(partitions=1)
    process(lines, settings)  # what is made once in a process is no part of the way
    assert len(process(lines, settings).responses[0]["memories"]) > 3
    assert files_run(lambda: process(lines, settings)) == set(re.findall(r"`(\w+/[\w/]+\.py)`", way))


def test_the_glossary_says_each_word_once() -> None:
    words = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", section("Words"), re.MULTILINE)[1:]
    assert len(set(words)) == len(words) <= 36


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────

RIDDLE = re.compile(r"_?(follow|hear|settle|told|meant)|_leave|_age")  # verbs that say nothing to a stranger


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Every name that a file defines, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.arg():
                yield node.lineno, node.arg


def test_no_name_is_a_riddle() -> None:
    files = [path for folder in ("recallflow", *FOLDERS) for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 150
    names = ((path, line, name) for path in files for line, name in names_in(path))
    assert [f"{path.relative_to(ROOT)}:{line} {name}" for path, line, name in names if RIDDLE.fullmatch(name)] == []
