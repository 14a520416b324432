"""The newest memories are packed as their owner leaves memory, and as a process ends: a kill there loses nothing."""

import subprocess
import sys
from pathlib import Path

DRIVER = Path(__file__).with_name("tails.py")


def test_a_kill_at_any_step_of_packing_loses_nothing(tmp_path: Path) -> None:
    words: list[str | Path] = [sys.executable, "-m", "tests.recovery.tails", tmp_path / "s"]
    found = subprocess.run(words, cwd=DRIVER.parents[2], capture_output=True, text=True, check=True, timeout=300)
    *broken, last = found.stdout.splitlines()
    assert broken == []
    between, within = map(int, last.split())
    assert between > 30
    assert within >= 5
