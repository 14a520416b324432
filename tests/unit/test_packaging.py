"""The installed packages equal the tree, and users can import the promised names."""

import importlib
import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, assert_type

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import recallflow
from recallflow.owner import Owner

ROOT = Path(__file__).parents[2]


def setuptools_table() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return table


LINKS = ("connectors", "flows", "operators", "state")


def packages() -> set[str]:
    tops = [ROOT / "recallflow", *(ROOT / "recallflow" / link for link in LINKS)]
    return {".".join(init.relative_to(ROOT).parts[:-1]) for top in tops for init in top.rglob("__init__.py")}


def locked() -> dict[str, dict[str, Any]]:
    """Return the packages of the lock file, the last one of those of several versions."""
    found: list[dict[str, Any]] = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return {package["name"]: package for package in found}


def wanted(requirements: Iterable[str], extra: str | None = None) -> set[tuple[str, str, str | None]]:
    """Return names, versions and extras of requirements; our own extras are expanded."""
    parsed = [Requirement(text) for text in requirements]
    return {(canonicalize_name(one.name), str(one.specifier), extra) for one in parsed if one.name != "recallflow"}


def test_lock_is_of_the_project_as_it_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = wanted(project["dependencies"])
    asked |= {one for extra, listed in project["optional-dependencies"].items() for one in wanted(listed, extra)}
    kept = locked()["recallflow"]["metadata"]["requires-dist"]
    extras = re.compile(r"extra == '([^']+)'")
    assert asked == {
        (one["name"], str(SpecifierSet(one.get("specifier", ""))), found[1] if found else None)
        for one in kept
        if one["name"] != "recallflow"
        for found in [extras.search(one.get("marker", ""))]
    }, "uv lock"


def test_lock_names_hashes_and_no_mirror() -> None:
    for name, package in locked().items():
        if name == "recallflow":
            continue
        assert package["source"] == {"registry": "https://pypi.org/simple"}
        for file in (*package.get("wheels", ()), *filter(None, [package.get("sdist")])):
            assert file["url"].startswith("https://files.pythonhosted.org/")
            assert file["hash"].startswith("sha256:")
    pinned = (ROOT / ".ci" / "uv.txt").read_text()
    assert f"uv=={locked()['uv']['version']} " in pinned
    assert all(file["hash"] in pinned for file in locked()["uv"]["wheels"])


@pytest.mark.parametrize("file", [".ci/run", "Dockerfile"])
def test_ci_and_image_install_locked_packages(file: str) -> None:
    installs = [line for line in (ROOT / file).read_text().splitlines() if " install --" in line]
    assert installs
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)


def test_the_folders_are_parts_of_the_package() -> None:
    for name in LINKS:
        assert (ROOT / "recallflow" / name).readlink() == Path("..") / name


def test_every_package_in_the_tree_is_listed() -> None:
    assert packages() == set(setuptools_table()["packages"])


def test_checkout_without_links_names_the_remedy(tmp_path: Path) -> None:
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "recallflow").mkdir()
    for name in LINKS:
        (tmp_path / "recallflow" / name).write_text(f"../{name}")
    with pytest.raises(SystemExit, match=r"core\.symlinks"):
        runpy.run_path(str(tmp_path / "setup.py"))


def test_exported_names_exist() -> None:
    assert sorted(recallflow.__all__) == recallflow.__all__
    for name in recallflow.__all__:
        value = getattr(recallflow, name)
        module = getattr(value, "__module__", None)
        if module is not None and module.startswith("recallflow"):
            assert getattr(importlib.import_module(module), name) is value


def test_type_checker_knows_the_exports() -> None:
    assert_type(recallflow.Owner("acme", "prod", "ann"), Owner)  # mypy fails where it is Any


# What makes an import long, or is left out where the client alone is installed.
HEAVY = ("bytewax", "faiss", "httpx", "jsonschema", "networkx", "numpy", "openai", "pyarrow", "rocksdict")


@pytest.mark.processes
def test_client_import_loads_no_engine() -> None:
    names = "AsyncRecallClient, CatchingUp, DeliveryFailed, QueryFailed, QueryTimeout, RecallClient"
    script = f"import sys; from recallflow.client import {names}; from recallflow import Found, Message"
    loaded = modules_of(f"{script}, RecallClient; print(*sys.modules)")
    assert "recallflow.client" in loaded
    engine = {f"recallflow.{name}" for name in (*LINKS, "memory")} | {*HEAVY}
    assert [name for name in loaded if any(f"{name}.".startswith(f"{of}.") for of in engine)] == []


def modules_of(script: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()


VULNERABLE = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
UNFIXED = {"name": "b", "version": "1", "vulns": [{"id": "CVE-2", "fix_versions": []}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found"}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([VULNERABLE, SKIPPED], 1, "CVE-1"),
        ([UNFIXED], 0, "CVE-2"),
        ([SKIPPED], 0, "NOT AUDITED"),  # of an index without advisories, pip-audit itself finds nothing wrong
        (None, 0, "NOT AUDITED"),
        ([{"name": "d", "version": "1", "vulns": []}], 0, "0 known vulnerabilities in 1 packages"),
    ],
)
def test_audit_fails_for_fixable_vulnerabilities(
    tmp_path: Path, found: list[object] | None, code: int, said: str
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "audit", tmp_path / ".ci")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    report = "" if found is None else json.dumps({"dependencies": found})
    program = tmp_path / ".venv" / "bin" / "pip-audit"
    write = f"open(sys.argv[sys.argv.index('--output') + 1], 'w').write({report!r})"
    program.write_text(f"#!{sys.executable}\nimport sys\n{write}\nsys.exit(1)\n")
    program.chmod(0o755)
    done = subprocess.run([tmp_path / ".ci" / "audit", "lock.txt"], capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert ("NOT AUDITED" in done.stderr) is (found is None or SKIPPED in found)
