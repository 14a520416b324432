"""Every block of the README is run by a test."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
