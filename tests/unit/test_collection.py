"""Two processes share the tests between them, so both must find the same ones: a name that holds the time of its
making, a random value or the order of a set stops the whole run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLLECT = """
import sys, time, pytest
real = time.time
time.time = lambda: real() + float(sys.argv[1])
sys.exit(pytest.main(["--collect-only", "-q", "-n0", "-p", "no:cacheprovider"]))
"""


def collected(later_s: int, hash_seed: str) -> list[str]:
    """The names of all tests, as a process finds them whose clock is ahead."""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", COLLECT, str(later_s)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_every_process_finds_the_same_tests() -> None:
    found = collected(0, "1")
    assert len(found) > 1_000
    assert found == collected(1_000_000, "2")
