"""The npm package of the TypeScript client, packed and installed, against a gateway that its tests start."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from recallflow.distribution import __version__
from tests.conftest import GIVE_UP_S
from tests.pages import ROOT, environment, readme

pytestmark = pytest.mark.needs("npm")
PACKAGE = ROOT / "packages" / "typescript"
CODE = [f"dist/{name}" for name in ("index.js", "index.d.ts", "schema.js", "schema.d.ts")]
CONTENT = ["LICENSE", "README.md", "package.json", *CODE]
MADE = shutil.ignore_patterns("node_modules", "dist", "LICENSE", "openapi.json", "schema.ts")


def run(folder: Path, command: str) -> None:
    done = subprocess.run(
        command.split(), cwd=folder, env=environment(), capture_output=True, text=True, timeout=GIVE_UP_S
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def test_packed_client_passes_its_tests_against_a_gateway(tmp_path: Path) -> None:
    shutil.copy(ROOT / "LICENSE", tmp_path)
    copy = shutil.copytree(PACKAGE, tmp_path / "packages" / "typescript", ignore=MADE)
    run(copy, "npm ci --ignore-scripts")
    run(copy, "npm pack")
    packed = copy / f"recallflow-client-{__version__}.tgz"
    with tarfile.open(packed) as archive:
        assert {f"package/{name}" for name in CONTENT} == {*archive.getnames()}
    (user := tmp_path / "user").mkdir()
    (user / "package.json").write_text('{"type": "module"}')
    run(user, f"npm install --ignore-scripts {packed}")
    shutil.copytree(copy / "test", user / "test")
    run(user, "node --test test/client.test.js")
    (copy / "test" / "readme.ts").write_text("".join(readme("ts", copy / "README.md")))
    run(copy, "npm run check")
