"""The examples in the help of each command work as they stand. Those that need Kafka: tests/kafka/test_examples.py."""

import base64
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recallflow.cli import main
from recallflow.cli.parser import leaves
from recallflow.connectors.checkpoints.manifest import CheckpointOrigin
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.samples import sample_path
from recallflow.state import keys
from tests.unit.cli.harness import PARSER, event, jsonl, on_files

KAFKA = "localhost:9092"
SERVE = "recallflow serve --state-dir memory"
MOVING = ("recallflow state move", "recallflow state split", "recallflow state merge")  # need several partitions
EXAMPLES = [*dict.fromkeys(example for one in [PARSER, *leaves(PARSER)] for example in one.examples)]
LOCAL = [one for one in EXAMPLES if KAFKA not in one]
GIVE_UP_S = 300


def words(example: str) -> list[str]:
    """Return the command's words after `recallflow`, without what a shell takes for itself."""
    command = re.search(r"recallflow [^|<>()]+", example)
    assert command is not None
    return shlex.split(command[0])[1:]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that examples name."""
    folder = tmp_path_factory.mktemp("examples")
    for number, name in enumerate(("old.key", "new.key")):
        (folder / name).write_bytes(base64.b64encode(bytes([number] * 32)))
    shutil.copy(sample_path("conversations.jsonl"), folder)
    owner = {"tenant_id": "default", "user_id": "user"}
    told = [
        event("memory", id="home", content="I moved from Leeds to Porto in March", **owner),
        event("memory", content="My sister Ana is allergic to walnuts", **owner),
    ]
    for name, partitions in (("memory", 1), ("several", Settings().partitions)):
        process(jsonl(*told).splitlines(), Settings(partitions=partitions), folder / name)
    shutil.copytree(folder / "memory", folder / "engine")
    sealed = ["--state-dir", str(folder / "sealed"), "--create", "--master-key-file", str(folder / "old.key")]
    assert main(["remember", "tea", *sealed, "--partitions", "1"]) == 0
    assert main(["state", "checkpoint", str(folder / "checkpoint"), "--state-dir", str(folder / "engine")]) == 0
    about = CheckpointOrigin(keys.FORMAT_VERSION, 0, 16, "memory.events:0", {}, "acme", "run", 0, {})
    CheckpointStore.open((folder / "checkpoints").as_uri()).save(0, folder / "checkpoint" / "p000", about)
    control = ["--control", str(folder / "control.jsonl")]
    assert main(["categories", "set", "acme", "food", "--description", "what they eat", *control]) == 0
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    example = request.node.callspec.params["example"]
    for path in prepared.iterdir():
        source = prepared / "several" if path.name == "memory" and example.startswith(MOVING) else path
        if re.search(rf"\b{re.escape(path.name)}\b", example):
            (shutil.copytree if path.is_dir() else shutil.copy)(source, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder", "mcp")
@pytest.mark.parametrize("example", LOCAL)
def test_help_example_succeeds(prepared: Path, example: str) -> None:
    piped = (prepared / "conversations.jsonl").read_bytes() if re.search("[|<]", example) else b""
    done = on_files(*words(example), *(["--print-config"] if example == SERVE else []), stdin=piped)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("example", [one for one in EXAMPLES if KAFKA in one])
def test_help_example_for_kafka_is_accepted_by_the_parser(example: str) -> None:
    PARSER.parse_args(words(example))


@pytest.mark.examples
@pytest.mark.usefixtures("folder")
@pytest.mark.needs("bash")
@pytest.mark.parametrize("example", [one for one in LOCAL if re.search("[|<>$]", one) or "mcp" in one])
def test_help_example_succeeds_in_a_shell(example: str) -> None:
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=GIVE_UP_S,
    )
    assert ended.returncode in ((0, 141) if "| head" in example else (0,)), ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.examples
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("example", [SERVE])
def test_help_example_serves_until_it_is_stopped(example: str) -> None:
    command = [sys.executable, "-m", "recallflow", *words(example), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as served:
        assert served.stderr is not None
        up = any("127.0.0.1:" in line for line in served.stderr)
        served.send_signal(signal.SIGTERM)
        assert (up, served.wait(GIVE_UP_S)) == (True, 0)
