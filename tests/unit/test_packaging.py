"""The compose file, the manifests, the lock and the audit."""

import argparse
import importlib
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, assert_type

import grimp
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import recallflow
from recallflow.cli import main
from recallflow.cli.commands import commands
from recallflow.cli.flags import FLAGS
from recallflow.connectors.kafka import admin
from recallflow.flows.config import LOCAL_BROKER, RawSetting, read_config
from recallflow.flows.settings import TopicNames
from recallflow.owner import Owner
from tools.broker import KAFKA_VERSION
from tools.planted_defects import DEFECTS, Defect

ROOT = Path(__file__).parents[2]


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


def test_modules_of_benchmarks_need_no_package_that_ci_lacks() -> None:
    packages = locked()
    extras = packages["recallflow"]["optional-dependencies"]
    pending = [one["name"] for one in extras["all"] + extras["dev"]]
    installed: set[str] = set()
    while pending:
        if (name := pending.pop()) not in installed:
            installed.add(name)
            pending += [one["name"] for one in packages[name].get("dependencies", ())]
    absent = {one["name"].replace("-", "_") for one in extras["bench"] if one["name"] not in installed}
    imports = re.compile(rf"^(?:import|from) ({'|'.join(absent)})\b", re.M)
    assert "scipy" in absent
    assert {file.name for file in (ROOT / "benchmarks").glob("*.py") if imports.search(file.read_text())} == set()


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
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert packages() == set(listed)


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


def test_modules_import_without_cycles() -> None:
    graph = grimp.build_graph("recallflow", cache_dir=None)  # with lazy imports, and those of type checkers
    TopologicalSorter({one: graph.find_modules_directly_imported_by(one) for one in graph.modules}).prepare()


def test_type_checker_knows_the_exports() -> None:
    assert_type(recallflow.Owner("acme", "prod", "ann"), Owner)  # mypy fails where it is Any


# What makes an import long, or is left out where the client alone is installed.
HEAVY = ("bytewax", "faiss", "httpx", "jsonschema", "networkx", "numpy", "openai", "pyarrow", "rocksdict")


@pytest.mark.processes
def test_client_import_loads_no_engine() -> None:
    names = "AsyncRecallClient, CatchingUp, DeliveryFailed, QueryFailed, QueryTimeout, RecallClient"
    script = f"import sys; from recallflow.client import {names}; from recallflow import SearchResults, Message"
    command = [sys.executable, "-c", f"{script}, RecallClient; print(*sys.modules)"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "recallflow.client" in loaded
    engine = {f"recallflow.{name}" for name in (*LINKS, "memory")} | {*HEAVY}
    assert [name for name in loaded if any(f"{name}.".startswith(f"{of}.") for of in engine)] == []


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


COMPOSE = ROOT / "docker-compose.kafka.yml"
KAFKA_TOPICS = "/opt/kafka/bin/kafka-topics.sh"

Made = dict[str, tuple[int, dict[str, str]]]  # topic → partitions and settings


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return {name: service for name, service in found.items() if name != "engine"}


def bash_commands(service: Mapping[str, Any]) -> list[str]:
    """Everything a service hands to bash, as bash sees it: Compose makes `$$` a `$`."""
    words = [*service.get("entrypoint", []), *service.get("command", [])]
    check = service.get("healthcheck", {}).get("test", ["CMD"])[1:]
    return [argv[2].replace("$$", "$") for argv in (words, check) if argv]


def address(listeners: str, name: str) -> str:
    """`host:port` of one listener of a list."""
    return dict(listener.split("://") for listener in listeners.split(","))[name]


def created_by_compose(services: dict[str, Any], folder: Path) -> Made:
    """Return the topics that the script creates, by a kafka-topics.sh that records its arguments."""
    (script,) = bash_commands(services["topics"])
    assert KAFKA_TOPICS in script
    notes = folder / "calls"
    stand_in = folder / "kafka-topics.sh"
    stand_in.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "${{*@Q}}" >> {shlex.quote(str(notes))}\n')
    stand_in.chmod(0o755)
    subprocess.run([*services["topics"]["entrypoint"], script.replace(KAFKA_TOPICS, str(stand_in))], check=True)
    parser = argparse.ArgumentParser(exit_on_error=False)
    for flag in ("--create", "--if-not-exists"):
        parser.add_argument(flag, action="store_true", required=True)
    for option in ("--bootstrap-server", "--topic", "--replication-factor"):
        parser.add_argument(option, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--config", action="append", default=[])
    calls = [parser.parse_args(shlex.split(line)) for line in notes.read_text().splitlines()]
    inside = address(services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"], "INSIDE")
    assert {(call.bootstrap_server, call.replication_factor) for call in calls} == {(inside, "1")}
    own = {"message.timestamp.type": services["kafka"]["environment"]["KAFKA_LOG_MESSAGE_TIMESTAMP_TYPE"]}
    return {call.topic: (call.partitions, own | dict(c.split("=") for c in call.config)) for call in calls}


def created_by_command(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The topics that `recallflow topics create` makes."""
    made: Made = {}

    def note(_: object, partitions: Mapping[str, int], config: Mapping[str, Mapping[str, str]], *__: object) -> Any:
        made.update({topic: (count, dict(config[topic])) for topic, count in partitions.items()})
        return dict.fromkeys(partitions, True)

    monkeypatch.setattr(admin, "create_topics", note)
    assert main(["topics", "create"]) == 0
    return made


def test_topics_equal_those_of_topics_create(
    services: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = created_by_compose(services, tmp_path)
    assert made == created_by_command(monkeypatch)
    assert made.keys() == {name for field, name in asdict(TopicNames()).items() if field not in ("replies", "audit")}


def test_kafka_listens_at_the_default_address(services: dict[str, Any]) -> None:
    environment, port = services["kafka"]["environment"], LOCAL_BROKER.rpartition(":")[2]
    assert address(environment["KAFKA_ADVERTISED_LISTENERS"], "HOST") == LOCAL_BROKER
    assert address(environment["KAFKA_LISTENERS"], "HOST") == f":{port}"
    assert services["kafka"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_compose_commands_are_valid_bash(services: dict[str, Any]) -> None:
    handed = [command for service in services.values() for command in bash_commands(service)]
    assert len(handed) == 2
    for command in handed:
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_compose_uses_the_tested_kafka_version(services: dict[str, Any]) -> None:
    assert {service["image"] for service in services.values()} == {f"apache/kafka:{KAFKA_VERSION}"}


BASE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base"
POD = "recallflow-0"


def test_base_manifest_names_settings_of_the_code() -> None:
    pod: Any = yaml.safe_load((BASE / "stateful-set.yaml").read_text())["spec"]["template"]["spec"]
    (engine,) = pod["containers"]
    given = vars(commands().parse_args([word.replace("$(POD_NAME)", POD) for word in engine["args"]]))
    flags = {key: RawSetting(flag.name, given[key]) for key, flag in FLAGS.items() if given.get(key) is not None}
    variables = {one["name"]: str(one.get("value", POD)) for one in engine["env"]}
    assert Path(variables.pop("RECALLFLOW_CONFIG")).name == "recallflow.toml"
    chosen, _ = read_config(flags, variables, BASE / "recallflow.toml")
    assert chosen.run.instance_id == POD
    assert [one["containerPort"] for one in engine["ports"]] == [chosen.run.metrics_port]
    assert chosen.named_state_dir().parent in {Path(one["mountPath"]) for one in engine["volumeMounts"]}
    assert pod["securityContext"]["runAsNonRoot"]


def test_planted_defects_match_the_code() -> None:
    for one in tomllib.loads(DEFECTS.read_text())["defect"]:
        Defect(**one).mutate((ROOT / one["file"]).read_text())
