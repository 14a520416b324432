"""Every command of the README works as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_readme_work_one_after_the_other(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    setup = [block for block in blocks if block.startswith("python3 -m venv")]
    assert len(setup) == 2  # these two make the environment this test runs in: CI pastes them
    script = "set -e\n" + "".join(block for block in blocks if block not in setup)
    (tmp_path / "recallflow").symlink_to(ROOT / "recallflow")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "I moved from Leeds to Porto in March" in done.stdout
    assert '"query_id"' in done.stdout
    assert re.search(r"^[0-9a-f]{64}$", done.stdout, re.MULTILINE)


def test_the_setup_commands_stand_at_the_top() -> None:
    first, second = BLOCK.findall((ROOT / "README.md").read_text())[:2]
    assert first.strip().endswith(".venv/bin/recallflow demo")
    assert second.strip().endswith(".venv/bin/python -m pytest")
    assert (
        second.strip().removesuffix(" && .venv/bin/python -m pytest").split(" && ")[1]
        in (ROOT / ".ci" / "run").read_text()
    )
