"""The blocks of the README and of pages of docs/, and running them as a reader would: in order, in one folder."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)
GIVE_UP_S = 300
RUN = ("bash", "python", "sh")  # `sh` needs a broker


class Block(NamedTuple):
    """A block of a page to run. `shows`: lines that its output must contain."""

    language: str
    code: str
    shows: list[str]


def blocks(page: str) -> Iterator[Block]:
    found = FENCED.findall((DOCS / page).read_text())
    for (language, code), (following, text) in zip(found, [*found[1:], ("", "")], strict=True):
        if language in RUN:
            shows = text.splitlines() if following == "text" and not text.startswith("recallflow ") else []
            yield Block(language, code, shows)


def readme(kind: str, page: Path = README) -> list[str]:
    """Return the blocks of a kind, which is written behind the fence, in the README or another page."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(), re.M | re.S)


def environment(**more: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("RECALLFLOW_", "KAFKA_"))}
    return ours | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | more


def run(language: str, code: str, folder: Path, **more: str) -> str:
    command = ["bash", "-ec", code] if language != "python" else [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=GIVE_UP_S
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def running(command: str, folder: Path, servers: str) -> Iterator[None]:
    """A command that works until it is stopped; it is up when it says so."""
    process = subprocess.Popen(
        shlex.split(command), cwd=folder, env=environment(KAFKA_BOOTSTRAP_SERVERS=servers), stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if " ready after " in line:
                break
        assert process.poll() is None, said
        yield
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=GIVE_UP_S)
        assert process.returncode == 0, errors
    finally:
        process.kill()
        process.communicate()
