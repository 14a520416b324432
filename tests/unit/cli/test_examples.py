"""The examples in the help of each command work as they stand. Those that need Kafka: tests/kafka/test_examples.py."""

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recallflow.cli import main
from recallflow.cli.commands import commands
from recallflow.cli.parser import leaves
from recallflow.connectors.checkpoints.manifest import About
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.samples import sample_path
from recallflow.state import keys

KAFKA = "localhost:9092"
UNTIL_STOPPED = ("recallflow serve",)
EXAMPLES = [example for one in [commands(), *leaves(commands())] for example in one.examples]
KEYS = ("old.key", "new.key")
GIVE_UP_S = 300


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what examples name."""
    folder = tmp_path_factory.mktemp("examples")
    for number, name in enumerate(KEYS):
        (folder / name).write_bytes(base64.b64encode(bytes([number] * 32)))
    shutil.copy(sample_path("conversations.jsonl"), folder)
    memory = ["--state-dir", str(folder / "memory"), "--create"]
    assert main(["remember", "I moved from Leeds to Porto in March", "--id", "home", *memory]) == 0
    assert main(["remember", "My sister Ana is allergic to walnuts", *memory]) == 0
    sealed = ["--state-dir", str(folder / "sealed"), "--create", "--master-key-file", str(folder / "old.key")]
    assert main(["remember", "tea", *sealed]) == 0
    engine = ["--state-dir", str(folder / "engine")]
    log = [str(folder / "conversations.jsonl"), "--embedded", "--create"]
    assert main(["replay", *log, *engine]) == 0
    assert main(["state", "checkpoint", str(folder / "checkpoint"), *engine]) == 0
    about = About(keys.FORMAT_VERSION, 0, 16, "memory.events:0", {}, "acme", "run", 0, {})
    CheckpointStore.open((folder / "checkpoints").as_uri()).save(0, folder / "checkpoint" / "p000", about)
    control = ["--control", str(folder / "control.jsonl")]
    assert main(["categories", "set", "acme", "food", "--description", "what they eat", *control]) == 0
    return folder


@pytest.mark.needs("bash")
@pytest.mark.parametrize("example", [one for one in EXAMPLES if KAFKA not in one])
def test_an_example_works_as_it_stands(prepared: Path, tmp_path: Path, example: str) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder)
    surroundings = {name: text for name, text in os.environ.items() if name != "KAFKA_BOOTSTRAP_SERVERS"}
    surroundings["RECALLFLOW_SERVE_PORT"] = "0"
    surroundings["PATH"] = f"{Path(sys.executable).parent}:{surroundings['PATH']}"
    line = f"timeout --signal TERM 20 {example} || [ $? = 124 ]" if example.startswith(UNTIL_STOPPED) else example
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=folder,
        env=surroundings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=GIVE_UP_S,
    )
    heads = (0, 141) if "| head" in example else (0,)
    assert ended.returncode in heads, ended.stderr
    assert "Traceback" not in ended.stderr
