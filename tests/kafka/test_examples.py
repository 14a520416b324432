"""The examples of the command help that need Kafka work, but for the broker's address and the topics' names."""

import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recallflow.cli.commands import commands
from recallflow.cli.parser import leaves
from recallflow.samples import sample_path
from tests.kafka.engine import READY, Engine
from tests.kafka.harness import GIVE_UP_S, Start

KAFKA = "localhost:9092"
EXAMPLES = [example for one in leaves(commands()) for example in one.examples if KAFKA in example]
UNTIL_STOPPED = ("recallflow run", "recallflow serve", "recallflow enrich", "recallflow mcp")
# test_models.py and test_keys.py have these: one needs a service of models, one a key that was made before.
ELSEWHERE = ("recallflow reembed", "recallflow keys revoke")
SERVES = (READY, "serving at", "http://")
Cli = Callable[..., subprocess.CompletedProcess[str]]


def _makes_a_key(example: str) -> bool:
    """From then on each record needs one: such an example comes last."""
    return example.startswith("recallflow keys create")


RUN_HERE: list[str] = sorted((one for one in EXAMPLES if not one.startswith(ELSEWHERE)), key=_makes_a_key)


@pytest.fixture(scope="module")
def folder(deserted_topics: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(sample_path("conversations.jsonl"), folder)
    with deserted_topics.running(folder / "beside"):
        yield folder


@pytest.mark.parametrize("example", RUN_HERE)
def test_example_of_the_help_works(
    deserted_topics: Engine, folder: Path, cli: Cli, start: Start, monkeypatch: pytest.MonkeyPatch, example: str
) -> None:
    monkeypatch.chdir(folder)
    for field, name in vars(deserted_topics.topics).items():
        if isinstance(name, str):
            monkeypatch.setenv(f"RECALLFLOW_TOPICS_{field.upper()}", name)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    words = shlex.split(example.replace(KAFKA, deserted_topics.broker.bootstrap_servers))[1:]
    words = words[: next((at for at, word in enumerate(words) if word in "|>"), len(words))]
    ended = run_until_ready(start, words) if example.startswith(UNTIL_STOPPED) else cli(*words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def run_until_ready(start: Start, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that serves, and stop it once it is ready."""
    if words[0] == "run":
        words = [*words, "--deployment", "beside", "--session-timeout-s", "6"]
    process = start(*words)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if any(sign in line for sign in SERVES):
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=GIVE_UP_S)
    return subprocess.CompletedProcess(words, process.returncode, out, said + err)
