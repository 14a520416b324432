"""Every block of the README works as it stands: each is one that a test runs."""

import re
from pathlib import Path

from tests.pages import README, ROOT, readme, run

# What stands behind the fence → the tests that run the blocks.
RUN_BY = {
    "bash setup": "unit",  # these two make the environment this test runs in: CI pastes them
    "bash": "unit",
    "python": "unit",
    "sh kafka": "kafka",
    "sh members": "kafka",
    "python kafka": "kafka",
    "sh gateway": "gateway",
    "sh uv": "release",
    "sh docker": "release",
}


def test_every_block_is_one_that_a_test_runs() -> None:
    assert re.findall(r"^```(.+)$", README.read_text(), re.M)
    assert {fence for fence in re.findall(r"^```(.*)$", README.read_text(), re.M) if fence} == RUN_BY.keys()
    for kind, folder in RUN_BY.items():
        assert f'readme("{kind}")' in (ROOT / "tests" / folder / "test_readme.py").read_text()


def test_the_commands_work_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "recallflow").symlink_to(ROOT / "recallflow")
    printed = run("bash", "".join(readme("bash")), tmp_path)
    assert "I moved from Leeds to Porto in March" in printed
    assert '"query_id"' in printed
    assert "The launch is on 24 February" in printed
    assert re.search(r"^[0-9a-f]{64}$", printed, re.MULTILINE)


def test_five_lines_of_python_remember_and_answer(tmp_path: Path) -> None:
    (block,) = readme("python")
    assert len([line for line in block.splitlines() if line]) <= 5
    assert "I moved from Leeds to Porto in March" in run("python", block, tmp_path)


def test_the_setup_commands_stand_at_the_top() -> None:
    first, second = readme("bash setup")
    assert README.read_text().index(first) < README.read_text().index(second) < 1_000
    assert first.strip().endswith(".venv/bin/recallflow demo")
    assert second.strip().endswith(".venv/bin/python -m pytest")
    assert (
        second.strip().removesuffix(" && .venv/bin/python -m pytest").split(" && ")[1]
        in (ROOT / ".ci" / "run").read_text()
    )
