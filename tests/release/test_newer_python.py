"""On a Python for which Bytewax has no wheel: what does without it works, and what needs it names both ways out."""

from pathlib import Path

import pytest

from tests.interpreters import interpreter
from tests.release.conftest import Environment

pytestmark = [pytest.mark.index, pytest.mark.python("3.13")]

FIVE_LINES = """
from recallflow import Memory
with Memory("memories") as memory:
    memory.add("My sister Ana is allergic to walnuts", user="ann")
    print(memory.search("What is Ana allergic to?", user="ann", k=5))
"""
EVENT = '{"type": "message", "tenant_id": "acme", "user_id": "kim", "role": "user", "content": "I moved to Porto."}\n'


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Environment:
    python = interpreter("3.13")
    assert python is not None
    return Environment(tmp_path_factory.mktemp("newer"), python, str(wheels["recallflow"]))


def test_memory_and_the_commands_of_every_day_work(newer: Environment) -> None:
    assert "bytewax" not in newer.has
    assert "allergic to walnuts" in newer.shown("python", "-c", FIVE_LINES)
    assert "allergic to walnuts" in newer.shown(
        "recallflow", "ask", "Who is allergic?", "--state-dir", "memories", "--user", "ann"
    )
    assert newer.run("recallflow", "demo").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--state-dir", "engine", "--create"),
        ("enrich", "--state-dir", "enriched", "--create"),
        ("pipe",),
        ("replay", "events.jsonl", "--embedded", "--state-dir", "replayed", "--create"),
    ],
    ids=lambda words: words[0],
)
def test_what_needs_bytewax_names_both_ways_out(newer: Environment, words: tuple[str, ...]) -> None:
    (newer.folder / "events.jsonl").write_text(EVENT)
    refused = newer.run("recallflow", *words)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "uv tool install --python 3.12 recallflow" in line
    assert "docker build -t recallflow ." in line
