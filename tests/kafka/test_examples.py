"""The examples in help that need Kafka work as they stand, but for the broker's address and the topics' names."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from recallflow.cli.commands import commands
from recallflow.cli.parser import leaves
from recallflow.flows.topics import Topics
from recallflow.samples import sample_path

KAFKA = "localhost:9092"
EXAMPLES = [example for one in leaves(commands()) for example in one.examples if KAFKA in example]
UNTIL_STOPPED = ("recallflow run", "recallflow serve", "recallflow enrich", "recallflow mcp")
# What a service of models, or a key that was made before, is needed for: test_reembed.py and test_keys.py have them.
ELSEWHERE = ("recallflow reembed", "recallflow keys revoke")
Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


def _makes_a_key(example: str) -> bool:
    """From then on each record needs one: such an example comes last."""
    return example.startswith("recallflow keys create")


RUN_HERE: list[str] = sorted((one for one in EXAMPLES if not one.startswith(ELSEWHERE)), key=_makes_a_key)


@pytest.fixture(scope="module")
def shell(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Runs a line in a folder with what examples name; an engine runs beside it."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(sample_path("conversations.jsonl"), folder)
    suffix = f"-{os.getpid()}-{time.time_ns()}"
    fields = ("memory", "queries", "control", "responses", "receipts", "enrichment", "results", "dead_letters")
    named = {f"RECALLFLOW_TOPICS_{one.upper()}": getattr(Topics(), one) + suffix for one in fields}
    surroundings = os.environ | named | {"XDG_STATE_HOME": str(folder), "OPENAI_API_KEY": "none"}
    surroundings["RECALLFLOW_RUN_SESSION_TIMEOUT_S"] = "6"
    surroundings["PATH"] = f"{Path(sys.executable).parent}:{surroundings['PATH']}"

    def words(line: str) -> list[str]:
        return ["bash", "-euo", "pipefail", "-c", line.replace(KAFKA, broker.bootstrap_servers)]

    def run(line: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            words(line),
            cwd=folder,
            env=surroundings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    made = run(f"recallflow topics create --partitions 1 --bootstrap-servers {KAFKA}")
    assert made.returncode == 0, made.stderr
    line = f"exec recallflow run --bootstrap-servers {KAFKA} --state-dir beside --create"
    engine = subprocess.Popen(words(line), cwd=folder, env=surroundings, stderr=subprocess.DEVNULL)
    remembered = run(f"recallflow remember tea --timeout-s 120 --bootstrap-servers {KAFKA}")
    assert remembered.returncode == 0, remembered.stderr
    yield run
    engine.kill()
    engine.wait()


@pytest.mark.needs("bash")
@pytest.mark.parametrize("example", RUN_HERE)
def test_an_example_works_as_it_stands(shell: Shell, example: str) -> None:
    line = example
    if example.startswith(UNTIL_STOPPED):
        line = f"timeout --signal TERM 20 {example} || [ $? = 124 ]"
        line = line.replace("recallflow run ", "recallflow run --deployment beside ")
    ended = shell(line)
    heads = (0, 141) if "| head" in example else (0,)
    assert ended.returncode in heads, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
