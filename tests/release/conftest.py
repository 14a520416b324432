"""Environments of users: with the wheels that are built here, and from the package index."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.kafka.engine import engine  # noqa: F401

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {
    "recallflow": ROOT, "recallflow-client": ROOT / "packages" / "client",
    "recallflow-embedded": ROOT / "packages" / "embedded",
}  # fmt: skip


class Environment:
    def __init__(self, folder: Path, python: str, *requirements: str) -> None:
        self.folder = folder
        uv("venv", "--quiet", "--python", python, str(folder / "env"))
        interpreter = str(folder / "env" / "bin" / "python")
        uv("pip", "install", "--quiet", "--python", interpreter, *requirements)
        listed = uv("pip", "list", "--quiet", "--python", interpreter, "--format", "freeze")
        self.has = {line.partition("==")[0].lower().replace("_", "-") for line in listed.splitlines()}

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = self.folder / "env" / "bin" / program
        return subprocess.run([path, *arguments], cwd=self.folder, capture_output=True, text=True)

    def shown(self, program: str, *arguments: str) -> str:
        done = self.run(program, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


Make = Callable[..., Environment]


def uv(*arguments: str) -> str:
    done = subprocess.run([find_uv_bin(), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution, by way of its source archive, which holds nothing that a build before left."""
    made = {}
    for name, project in DISTRIBUTIONS.items():
        folder = tmp_path_factory.mktemp("wheel")
        uv("build", "--quiet", "--out-dir", str(folder), str(project))
        (made[name],) = folder.glob("*.whl")
    return made


@pytest.fixture
def environment(tmp_path: Path) -> Make:
    def make(*requirements: object, python: str = sys.executable) -> Environment:
        return Environment(tmp_path, python, *map(str, requirements))

    return make
