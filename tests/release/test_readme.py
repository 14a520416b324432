"""The commands of docs/how-to/install.md for uv and Docker work."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.pages import DOCS, ROOT, environment, readme

INSTALL = DOCS / "how-to" / "install.md"


@pytest.mark.index
def test_uv_runs_the_demo() -> None:
    """The test uses its own Python, because the one of the page may need a download."""
    (block,) = readme("sh uv", INSTALL)
    words = shlex.split(block)
    assert words[:4] == ["uvx", "--python", "3.12", "--from"]
    words[2] = sys.executable
    uvx = str(Path(find_uv_bin()).with_name("uvx"))
    done = subprocess.run([uvx, *words[1:]], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "because:" in done.stdout


def test_the_container_shows_the_demo() -> None:
    """Checked without Docker: the commands are the Dockerfile's own, and `run` without a command is the demo."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    (block,) = readme("sh docker", INSTALL)
    for command in block.strip().split(" && "):
        assert re.search(rf"^# +{re.escape(command)}(?: |$)", dockerfile, re.M), command
    assert re.search(r'^ENTRYPOINT \["recallflow"\]\nCMD \["demo"\]', dockerfile, re.M)
