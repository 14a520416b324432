"""Each benchmark, in its quick form; figures are not judged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.broker import BOOTSTRAP_VARIABLE, Cluster
from benchmarks.kafka import SCENARIOS

TREE = Path(__file__).parents[2]
QUICK = sorted(path.stem for path in (TREE / "benchmarks").glob("*.py") if "[--quick]" in path.read_text())
COMMANDS = [name for name in QUICK if name != "kafka"] + [f"kafka {scenario}" for scenario in SCENARIOS]


@pytest.mark.parametrize("command", COMMANDS)
def test_quick_benchmark_prints_figures_and_is_documented(command: str, broker: Cluster) -> None:
    name, *scenario = command.split()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *scenario, "--quick"], cwd=TREE,
        env=os.environ | {BOOTSTRAP_VARIABLE: broker.bootstrap_servers}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert any(character.isdecimal() for character in done.stdout)
    assert f"benchmarks.{command}" in (TREE / "docs" / "figures.md").read_text()
