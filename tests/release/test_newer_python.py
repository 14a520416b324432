"""On a Python for which Bytewax has no wheel, all commands work."""

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


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Environment:
    python = interpreter("3.13")
    assert python is not None
    made = Environment(tmp_path_factory.mktemp("newer"), python, str(wheels["recallflow"]))
    assert "bytewax" not in made.has
    return made


def test_memory_and_the_commands_of_every_day_work(newer: Environment) -> None:
    assert "allergic to walnuts" in newer.shown("python", "-c", FIVE_LINES)
    assert "allergic to walnuts" in newer.shown(
        "recallflow", "ask", "Who is allergic?", "--state-dir", "memories", "--user", "ann"
    )
    assert newer.run("recallflow", "demo").returncode == 0


@pytest.mark.parametrize("flow", ["run", "enrich"])
def test_flow_starts_as_far_as_its_broker(newer: Environment, flow: str) -> None:
    ended = newer.run("recallflow", flow, "--bootstrap-servers", "127.0.0.1:1", "--state-dir", flow, "--create")
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    assert "127.0.0.1:1" in ended.stderr
