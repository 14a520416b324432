"""The Dockerfile, and the engine of docker-compose.kafka.yml, are what the code expects; checked without Docker."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from recallflow.cli.commands import commands
from tests.http_server import Handler, serving
from tests.release.conftest import ROOT, Environment, uv

DOCKERFILE = (ROOT / "Dockerfile").read_text()
STEPS = [
    (words[0], words[1])
    for line in re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines()
    if line and not line.startswith("#")
    for words in [line.split(" ", 1)]
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def last(step: str) -> str:
    return [said for name, said in STEPS if name == step][-1]


def settings(command: str, variables: dict[str, str]) -> str:
    asked = [str(Path(sys.executable).with_name("recallflow")), command, "--print-config"]
    return subprocess.run(asked, env=variables, capture_output=True, text=True, check=True).stdout


def variables() -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(last("ENV")))


@pytest.fixture
def engine() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.kafka.yml").read_text())["services"]["engine"]
    return found


def test_its_python_has_bytewax() -> None:
    assert {said.split(" ")[0] for name, said in STEPS if name == "FROM"} == {"${BASE}"}
    (base,) = [said.partition("=")[2] for name, said in STEPS if name == "ARG" and said.startswith("BASE=")]
    versions = {re.match(r"python:([\d.]+)-slim", base)}
    (bytewax,) = [Requirement(text) for text in PROJECT["dependencies"] if text.startswith("bytewax")]
    assert bytewax.marker is not None
    for match in versions:
        assert match is not None
        assert bytewax.marker.evaluate({"python_version": match[1]})


@pytest.mark.index
def test_image_build_creates_its_entry_point(
    tmp_path: Path, wheels: dict[str, Path], environment: Callable[..., Environment]
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        kept = ROOT / line.removeprefix("!")
        if line.startswith("!") and kept.is_dir():
            shutil.copytree(kept, context / kept.name, symlinks=True)
        elif line.startswith("!"):
            shutil.copy(kept, context)
    uv("build", "--quiet", "--wheel", "--out-dir", str(tmp_path), str(context))
    (made,) = tmp_path.glob("*.whl")
    assert set(zipfile.ZipFile(made).namelist()) == set(zipfile.ZipFile(wheels["recallflow"]).namelist())
    image = environment(f"{made}[{last('ARG').partition('=')[2]}]")
    assert "because:" in image.shown(*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD")))


def test_its_extras_are_there() -> None:
    name, _, extras = last("ARG").partition("=")
    assert name == "EXTRAS"
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert any(name == "RUN" and "${EXTRAS}" in step for name, step in STEPS)


def test_image_runs_the_installed_command_as_non_root() -> None:
    assert json.loads(last("ENTRYPOINT"))[0] in PROJECT["scripts"]
    commands().parse_args(json.loads(last("CMD")))
    user, _, group = last("USER").partition(":")
    assert int(user) > 0  # a number: `runAsNonRoot` of Kubernetes cannot look a name up
    assert f"--gid {group} " in last("RUN")
    assert f"useradd --uid {user} " in last("RUN")


def test_image_is_stopped_by_the_engine_signal() -> None:
    assert last("STOPSIGNAL") == "SIGTERM"
    for step in ("ENTRYPOINT", "CMD"):
        assert isinstance(json.loads(last(step)), list)  # no shell in between, which would keep the signal


def test_image_variables_are_settings_and_probes_match() -> None:
    given = {name: value for name, value in variables().items() if name.startswith("RECALLFLOW_")}
    printed = settings("run", given)
    assert all(f"# {name}" in printed for name in given)
    port = given["RECALLFLOW_RUN_METRICS_PORT"]
    assert port == last("EXPOSE")
    assert f"http://127.0.0.1:{port}/livez" in last("HEALTHCHECK")
    assert f"\nport = {port}\n" in settings("serve", given)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_image_health_check_uses_the_probe(status: int, healthy: bool) -> None:
    class Probe(Handler):
        def do_GET(self) -> None:  # noqa: N802 - of http.server
            self.reply(status=status)

    with serving(Probe) as url:
        words = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
        script = words[-1].replace(f":{last('EXPOSE')}/", f":{url.rpartition(':')[2]}/")
        done = subprocess.run([sys.executable, *words[1:-1], script], capture_output=True)
    assert (done.returncode == 0) is healthy


def test_composes_engine_is_the_image_beside_kafka(engine: dict[str, Any]) -> None:
    options = commands().parse_args(engine["command"])
    kafka = yaml.safe_load((ROOT / "docker-compose.kafka.yml").read_text())["services"]["kafka"]["environment"]
    assert f"INSIDE://{vars(options)['kafka.bootstrap_servers']}" in kafka["KAFKA_ADVERTISED_LISTENERS"]
    assert not Path(str(vars(options)["state_dir"])).is_absolute()  # so that it lies in the volume
    assert engine["build"] == "."
    assert engine["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}
    assert [volume.split(":")[1] for volume in engine["volumes"]] == [last("VOLUME")] == [last("WORKDIR")]
    assert [port.rpartition(":")[2] for port in engine["ports"]] == [last("EXPOSE")]
