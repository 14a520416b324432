"""The examples that need no broker do what their pages say."""

import subprocess
from pathlib import Path

import pytest

from tests.chat_model import Answer, Messages, chat_model
from tests.conftest import GIVE_UP_S
from tests.example_pages import EXAMPLES, commands_of, environment

pytestmark = pytest.mark.examples


def run(command: str, folder: Path, **more: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(**more), capture_output=True, text=True,
        timeout=GIVE_UP_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of the examples, where its commands leave nothing in ours."""
    for file in (EXAMPLES / request.param).iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize("copied", ["year_of_logs"], indirect=True)
def test_a_year_is_replayed_and_asked_about_as_of_days(copied: Path) -> None:
    *before, ask = commands_of("year_of_logs")
    for command in before:
        run(command, copied)
    page = (EXAMPLES / "year_of_logs" / "README.md").read_text()
    assert run(ask, copied) == page.partition("```text\n")[2].partition("```")[0]


def model(messages: Messages) -> Answer:
    question = messages[1]["content"]
    if messages[-1]["role"] == "tool":
        return f"I know: {messages[-1]['content']}"
    told, please, _ = question.partition(" Please remember that.")
    return ("remember", {"text": told}) if please else ("search", {"query": question})


@pytest.mark.parametrize("copied", ["agent_loop"], indirect=True)
def test_agent_remembers_across_runs(copied: Path) -> None:
    tell, ask = commands_of("agent_loop")
    with chat_model(model) as found:
        assert run(tell, copied, **found).startswith("I know: remembered as ")
        assert "I moved to Porto." in run(ask, copied, **found)


@pytest.mark.parametrize("copied", ["agent_loop"], indirect=True)
def test_agent_with_an_endless_model_is_stopped(copied: Path) -> None:
    with chat_model(lambda _: ("nothing", {"query": "again"})) as found:
        assert "could not come to an answer" in run("python agent.py ann 'Where do I live?'", copied, **found)
