"""The README, the samples, and libraries of the integrations."""

import importlib
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from benchmarks.kinds import KINDS, load
from recallflow.events import Event, MemoryEvent
from recallflow.queries import Recall
from recallflow.samples import sample_path, sample_questions
from tests.pages import README, ROOT, readme, run

SETUP = "bash setup"  # makes the environment that this test runs in: CI pastes it


def test_every_block_is_run_by_a_test() -> None:
    kinds = {fence for fence in re.findall(r"^```(.*)$", README.read_text(), re.M) if fence}
    assert SETUP in kinds
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [kind for kind in kinds if kind != SETUP and f'readme("{kind}")' not in tests] == []


@pytest.mark.examples
def test_commands_work_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "recallflow").symlink_to(ROOT / "recallflow")
    printed = run("bash", "".join(readme("bash")), tmp_path)
    for answer in ANSWERS:
        assert re.search(answer, printed, re.MULTILINE)


# Expected output of each block of commands.
ANSWERS = ("I moved from Leeds to Porto in March", r"The launch is on 24 February(.|\n)*^[0-9a-f]{64}$")


@pytest.mark.parametrize("block", range(len(ANSWERS)))
def test_commands_work_in_this_process(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Any]
) -> None:
    (tmp_path / "recallflow").symlink_to(ROOT / "recallflow")
    monkeypatch.chdir(tmp_path)
    shown = readme("bash")[block]
    printed = ""
    for line, here in re.findall(r"^recallflow (.*?)(?: <<'EOF'\n(.*?)^EOF)?$", shown, re.M | re.S):
        done = cli(*shlex.split(line), stdin=here.encode())
        assert done.returncode == 0, (line, done.stderr)
        printed += done.stdout
    assert re.search(ANSWERS[block], printed, re.MULTILINE)


def test_python_example_prints_its_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,), (printed,) = readme("python"), readme("text")
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    assert capsys.readouterr().out == printed


def test_the_setup_commands_stand_at_the_top() -> None:
    first, second = readme(SETUP)
    assert README.read_text().index(first) < README.read_text().index(second) < 1_000
    assert first.strip().endswith(".venv/bin/recallflow demo")
    assert second.strip().endswith(".venv/bin/python -m pytest")
    extras = re.search(r"'\.\[(.+)\]'", second)
    assert extras is not None
    in_ci = (ROOT / ".ci" / "run").read_text()
    assert "".join(f" --extra {name}" for name in extras[1].split(",")) in in_ci
    assert ".venv/bin/python -m pytest" in in_ci


@pytest.fixture(scope="module")
def events() -> list[Event]:
    adapter: TypeAdapter[Event] = TypeAdapter(MemoryEvent)
    return [adapter.validate_json(line) for line in sample_path("conversations.jsonl").read_bytes().splitlines()]


@pytest.fixture(scope="module")
def questions() -> list[Recall]:
    adapter = TypeAdapter(Recall)
    return [adapter.validate_python(question.query) for question in sample_questions()]


def test_no_field_is_misspelt(events: list[Event], questions: list[Recall]) -> None:
    assert [event.id for event in [*events, *questions] if event.model_extra] == []


@pytest.mark.models
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_loads_with_evidence_among_its_turns(kind: str) -> None:
    conversations = load(kind)
    asked_of = [(one, question) for one in conversations for question in one.questions]
    expected = {"locomo": 505, "assistant": 100, "assistant_long": 120, "group": 538, "chinese": 320, "mixed": 1043}
    assert len(asked_of) == expected.get(kind, len(asked_of)) > 0
    assert all(question.evidence & {turn.id for turn in one.turns} for one, question in asked_of)


EXTRAS = {
    "flink-agents": "flink_agents", "langchain": "langchain_core", "langgraph": "langgraph",
    "llama-index": "llama_index", "openai-agents": "agents", "pydantic-ai": "pydantic_ai",
}  # fmt: skip


@pytest.mark.parametrize("extra", EXTRAS)
def test_missing_library_names_the_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"recallflow.integrations.{extra.replace('-', '_')}"
    for name in [*sys.modules]:
        if name == module or name.partition(".")[0] == EXTRAS[extra]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, EXTRAS[extra], None)
    with pytest.raises(ImportError, match=rf"recallflow(-client)?\[{extra}\]"):
        importlib.import_module(module)
