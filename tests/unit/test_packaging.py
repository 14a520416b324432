"""What is installed is what is in the tree, and users can import what they are promised."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import recallflow

ROOT = Path(__file__).parents[2]


def setuptools_table() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return table


def test_every_package_in_the_tree_is_listed() -> None:
    folders = {"recallflow": "recallflow"} | {
        folder: f"recallflow.{folder}" for folder in ("connectors", "flows", "operators", "state")
    }
    found = {
        ".".join([folders[init.relative_to(ROOT).parts[0]], *init.relative_to(ROOT).parts[1:-1]])
        for folder in folders
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert found == set(setuptools_table()["packages"])


def test_type_checkers_find_every_module() -> None:
    links = ROOT / ".links" / "recallflow"
    own = {path.name for path in (ROOT / "recallflow").iterdir() if path.name != "__pycache__"}
    assert own | {"connectors", "flows", "operators", "state"} == {path.name for path in links.iterdir()}
    assert all(path.exists() for path in links.iterdir())


def test_the_wheel_holds_every_package_and_the_samples(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    imports = "; ".join(f"import {name}" for name in setuptools_table()["packages"])
    script = f"import sys; sys.path.insert(0, {str(wheel)!r}); {imports}; print(recallflow.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path
    ).stdout
    assert str(wheel) in shown
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "--list", str(wheel)], check=True, capture_output=True, text=True
    ).stdout
    assert "recallflow/samples/conversations.jsonl" in listed
    assert "recallflow/py.typed" in listed


def test_what_is_exported_is_there_and_named_as_it_is() -> None:
    assert sorted(recallflow.__all__) == recallflow.__all__
    for name in recallflow.__all__:
        value = getattr(recallflow, name)
        module = getattr(value, "__module__", None)
        if module is not None and module.startswith("recallflow"):
            assert getattr(importlib.import_module(module), name) is value
