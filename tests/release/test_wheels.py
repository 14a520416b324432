"""Archives, wheels, the upgrade page, and environments they are installed in."""

import os
import re
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
from recallflow.language.analysis import ANALYSIS
from recallflow.state.keys import FORMAT_VERSION
from tests.release.conftest import DISTRIBUTIONS, ROOT, Environment
from tools.release import absolute

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
NO_CLIENT = "recallflow-embedded has no confluent_kafka: pip uninstall recallflow-embedded, and pip install recallflow"
EMBEDDED = """
from recallflow import GraphExplore, InvalidRecord, Memory, UsageError
with Memory() as memory:
    memory.add("I live in Porto", user="ann")
    print(memory.search("Where do I live?", user="ann", k=1)[0].content)
    try:
        memory.ask(GraphExplore(type="graph.explore", tenant_id="default", user_id="ann"))
    except Exception as error:
        print(error.error.fields[0].problem)
try:
    Memory(embedder="openai")
except UsageError as error:
    print(error)
try:
    from recallflow import RecallClient
except ImportError as error:
    print(error)
"""
ENGINE = {
    "bytewax", "faiss-cpu", "rocksdict", "pyarrow", "networkx", "openai", "fastapi", "pystemmer", "cryptography",
    "numpy",
}  # fmt: skip


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


def test_client_requirements_equal_those_of_the_whole() -> None:
    whole, client = project("recallflow"), project("recallflow-client")
    assert set(client["dependencies"]) <= set(whole["dependencies"])
    extras = whole["optional-dependencies"]
    added = client["optional-dependencies"].pop("flink-agents")  # PyFlink excludes the engine's pyarrow
    assert client["optional-dependencies"] == {name: extras[name] for name in client["optional-dependencies"]}
    assert added == ["flink-agents>=0.3,<0.4"]
    assert client["requires-python"] == whole["requires-python"]


@pytest.mark.index
def test_embedded_engine_fits_200_mb_and_names_missing_extras(environment: Make, wheels: Wheels) -> None:
    slim = environment(wheels["recallflow-embedded"])
    assert not slim.has & {"bytewax", "confluent-kafka", "networkx", "openai", "opentelemetry-api", "pyarrow", "rich"}
    assert slim.shown("python", "-c", EMBEDDED).splitlines() == [
        "I live in Porto", "networkx is not installed: pip install 'recallflow-embedded[graph]'",
        "openai is not installed: pip install 'recallflow-embedded[llm]'", f"recallflow.RecallClient: {NO_CLIENT}",
    ]  # fmt: skip
    (packages,) = (slim.folder / "env" / "lib").glob("python*/site-packages")
    size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
    assert size <= 200 * 1024 * 1024


def test_embedded_requirements_equal_those_of_the_whole() -> None:
    whole, slim = project("recallflow"), project("recallflow-embedded")
    assert set(slim["dependencies"]) <= set(whole["dependencies"])
    known = {*whole["dependencies"], *(one for some in whole["optional-dependencies"].values() for one in some)}
    assert {one for some in slim["optional-dependencies"].values() for one in some} <= known
    assert slim["requires-python"] == whole["requires-python"]


@pytest.mark.index
def test_type_checkers_elsewhere_see_an_editable_install(environment: Make, tmp_path: Path) -> None:
    uses = 'from recallflow import Memory\nreveal_type(Memory().search("x", user="ann"))\n'
    (tmp_path / "uses.py").write_text(uses)
    environment("--editable", ROOT)
    python = tmp_path / "env" / "bin" / "python"
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", python, "uses.py"], cwd=tmp_path, capture_output=True,
        text=True, env={name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH")},
    )  # fmt: skip
    assert 'Revealed type is "recallflow.verbs.results.SearchResults"' in checked.stdout
    # What else looks for types reads path files, and runs no import hook.
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    paths = [line for file in packages.glob("*recallflow*.pth") for line in file.read_text().splitlines()]
    assert [(Path(line) / "recallflow" / "py.typed").is_file() for line in paths] == [True]


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


WHERE = "https://example.org/acme/recallflow"


def test_relative_readme_links_lead_to_the_repository() -> None:
    page = (
        "![demo](docs/images/demo.svg) [events](docs/events.md#queries) [above](#figures) [bytewax](https://bytewax.io)\n"
        '<img src="docs/images/a.png"> <a href="docs/">all</a> [`--reranker`](docs/operations.md#a-reranker)'
    )
    assert absolute(page, WHERE, "v1.2.0") == (
        f"![demo]({WHERE}/raw/v1.2.0/docs/images/demo.svg) [events]({WHERE}/blob/v1.2.0/docs/events.md#queries) "
        f"[above](#figures) [bytewax](https://bytewax.io)\n"
        f'<img src="{WHERE}/raw/v1.2.0/docs/images/a.png"> <a href="{WHERE}/blob/v1.2.0/docs/">all</a> '
        f"[`--reranker`]({WHERE}/blob/v1.2.0/docs/operations.md#a-reranker)"
    )


def test_the_readmes_links_lead_to_files_that_there_are() -> None:
    page = absolute((ROOT / "README.md").read_text(), WHERE, "v1")
    paths = re.findall(rf"{re.escape(WHERE)}/(?:raw|blob)/v1/([^)\s#\"]+)", page)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert re.findall(r"\]\((?!#|https?://)[^)]+\)", page) == []


def test_the_changelog_begins_with_this_version() -> None:
    newest = re.findall(r"^## (\S+)", Path(ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == recallflow.__version__


PAGE = (ROOT / "docs" / "how-to" / "upgrading.md").read_text()


def test_newest_row_of_the_version_table_is_this_version() -> None:
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \| (\d+) \| (\S+) \|", PAGE, re.MULTILINE)
    assert rows[0] == (recallflow.__version__, str(FORMAT_VERSION), ANALYSIS)


def test_every_format_there_was_is_named() -> None:
    (formats,) = re.findall(r"^Formats before the first release.*?: (.*?)\.\n\n", PAGE, re.MULTILINE | re.DOTALL)
    numbers = [int(number) for number in re.findall(r"(?:^|; )(\d+)\s", " ".join(formats.split()))]
    assert numbers == list(range(1, FORMAT_VERSION + 1))


def test_every_check_that_it_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(named) > 4
    assert [path for path in named if not (ROOT / path).exists()] == []
