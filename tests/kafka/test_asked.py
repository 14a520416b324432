"""A state directory of `run`: other commands may use it between runs, and it belongs to its topics."""

import io
import shutil
import sys
from pathlib import Path

import orjson
import pytest

from benchmarks.broker import Cluster
from recallflow.cli import main
from recallflow.state.folders import partition_folder
from tests.kafka.harness import ANN, Deployment, Names, deployed, produce, read_topic, until

AS_ANN = ["--tenant", "acme", "--user", "ann"]


@pytest.fixture
def made(broker: Cluster, topics: Names, tmp_path: Path) -> Deployment:
    """Return a stopped deployment with one memory, and a query that waits for the next memory."""
    made = deployed(broker, topics, tmp_path / "s")
    own = made.topics
    send(made, own.memory, 0)
    with made.running():
        made.outputs(own.receipts, 1)
        waiting = {"type": "recall", "id": "open", "query": "Where is the bicycle?", "wait_timeout_ms": 60_000}
        produce(made.broker, own.queries, waiting | {"wait_for": f"{own.memory}:0:1"})
        produce(made.broker, own.queries, {"type": "user.stats", "id": "at once"})
        made.outputs(own.responses, 1)
    return made


def send(made: Deployment, topic: str, number: int) -> None:
    told = {"type": "memory", "id": f"m{number}", "content": f"The bicycle is in cellar {number}.", "receipt": True}
    produce(made.broker, topic, told)


def answered(made: Deployment) -> list[str]:
    return [orjson.loads(one.value())["query_id"] for one in read_topic(made.broker, made.topics.responses)]


def test_commands_may_use_a_directory_of_run_and_its_checkpoint(
    made: Deployment, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other commands do not create a lost partition; the next run rebuilds it."""
    ask = ["ask", "Where is the bicycle?", "--state-dir", str(made.state_dir), *AS_ANN]
    lost = partition_folder(made.state_dir, 0)
    shutil.rmtree(lost)
    assert main(ask) == 1
    assert lost.name in capfd.readouterr().err
    assert not lost.exists()
    with made.running():
        send(made, made.topics.memory, 1)
        until(lambda: "open" in answered(made))
        made.outputs(made.topics.receipts, 2)
    assert answered(made) == ["at once", "open"]

    copy = tmp_path / "copy"
    assert main(["state", "checkpoint", "--state-dir", str(made.state_dir), str(copy)]) == 0
    for directory in (copy, made.state_dir):
        where = ["--state-dir", str(directory)]
        assert main(["ask", "Where is the bicycle?", *where, *AS_ANN]) == 0
        assert "cellar 0" in capfd.readouterr().out
        assert main(["remember", "The key hangs by the door.", *where, *AS_ANN]) == 0
        piped = orjson.dumps(ANN | {"type": "user.stats", "id": "piped"})
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        capfd.readouterr()
        assert main(["pipe", *where]) == 0
        assert [orjson.loads(line)["query_id"] for line in capfd.readouterr().out.splitlines()] == ["piped"]
        assert main(["state", "verify", *where]) == 0
    shutil.rmtree(made.state_dir)
    assert main(["state", "restore", str(copy), "--state-dir", str(made.state_dir)]) == 0
    with made.running():
        send(made, made.topics.memory, 2)
        made.outputs(made.topics.receipts, 3)
    assert answered(made) == ["at once", "open"]
    assert [*made.outputs(made.topics.receipts).values()] == [1, 1, 1]
