"""A first start may be cut off at any moment, by a kill or a full disk: what it leaves is a directory that starts."""

import re
import subprocess
import sys
from pathlib import Path

DRIVER = Path(__file__).with_name("first_start.py")


def test_a_first_start_that_is_cut_off_leaves_a_directory_that_starts(tmp_path: Path) -> None:
    words: list[str | Path] = [sys.executable, DRIVER, tmp_path / "s", "remember", "tea", "--partitions", "1"]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    *broken, last = [line for line in found.stdout.splitlines() if not line.startswith("created: ")]
    assert broken == []
    moments, disks = map(int, last.split())
    assert moments > 5
    assert disks >= 6
    # What a full disk says is one line each time.
    said = found.stderr.splitlines()
    assert len(said) == disks, found.stderr
    assert all(re.fullmatch(r"recallflow: .+", line) for line in said)
