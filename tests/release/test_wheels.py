"""What is installed of the wheels, in fresh environments, does what the README says."""

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import recallflow
from tests.release.conftest import DISTRIBUTIONS, ROOT, Environment

Make = Callable[..., Environment]
Wheels = dict[str, Path]

IMPORT_ALL = """
import recallflow.client
for name in recallflow.__all__:
    try:
        getattr(recallflow, name)
    except ImportError as error:
        print(error)
"""
ENGINE = {
    "bytewax",
    "faiss-cpu",
    "rocksdict",
    "pyarrow",
    "networkx",
    "openai",
    "fastapi",
    "pystemmer",
    "cryptography",
    "numpy",
}


def project(name: str) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((DISTRIBUTIONS[name] / "pyproject.toml").read_text())["project"]
    return table


@pytest.mark.index
def test_a_fresh_environment_runs_the_demo(environment: Make, wheels: Wheels) -> None:
    fresh = environment(wheels["recallflow"])
    assert fresh.shown("recallflow", "--version") == f"recallflow {recallflow.__version__}\n"
    assert "because:" in fresh.shown("recallflow", "demo")
    refused = fresh.run("recallflow", "serve", "--state-dir", "memory", "--create")
    assert refused.returncode == 2
    assert refused.stderr.rstrip().endswith("is not installed: pip install 'recallflow[serve]'")


@pytest.mark.index
def test_the_client_comes_without_the_engine(environment: Make, wheels: Wheels) -> None:
    light = environment(wheels["recallflow-client"])
    assert not light.has & ENGINE
    assert len(light.has) <= 12  # of which pydantic brings some
    assert light.shown("python", "-c", IMPORT_ALL).splitlines() == [
        f"recallflow.{name}: recallflow-client is the Kafka client alone; the engine and the commands: "
        "pip install recallflow"
        for name in ("AsyncMemory", "Embedder", "Memory", "TokenCounter")
    ]


def test_the_client_asks_for_what_the_whole_asks_for() -> None:
    whole, client = project("recallflow"), project("recallflow-client")
    assert set(client["dependencies"]) <= set(whole["dependencies"])
    extras = whole["optional-dependencies"]
    assert client["optional-dependencies"] == {name: extras[name] for name in client["optional-dependencies"]}
    assert client["requires-python"] == whole["requires-python"]


def test_no_python_is_too_new() -> None:
    assert Requirement(f"python{project('recallflow')['requires-python']}").specifier.contains("3.99")
    assert Requirement(f"python{project('recallflow')['requires-python']}").specifier.contains("4.0")


def test_wheel_of_source_archive_holds_every_package_and_samples(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)], check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"recallflow"}
    assert {"recallflow/samples/conversations.jsonl", "recallflow/py.typed"} <= set(files)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    imports = "; ".join(f"import {name}" for name in sorted(packages))
    script = f"import sys; sys.path.insert(0, {str(wheel)!r}); {imports}; print(recallflow.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path
    ).stdout
    assert str(wheel) in shown
