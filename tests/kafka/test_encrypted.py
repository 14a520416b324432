"""An encrypted deployment on a real broker: nothing is readable while questions wait, and a kill loses nothing."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.broker import Cluster
from recallflow.state.folders import partition_folder
from tests.kafka.harness import Deployment, Names, deployed, produce, read_topic, until, watched
from tests.readable import contains

SAID = ["walnut", "violin under the stairs", "ann-of-acme", "acme-corporation", "waits-for-it", "m-of-ann"]
SCOPE = {"tenant_id": "acme-corporation", "user_id": "ann-of-acme"}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "master.key"
    path.write_text(base64.b64encode(bytes(range(32))).decode())
    return path


@pytest.fixture
def made(broker: Cluster, topics: Names, tmp_path: Path, key: Path) -> Deployment:
    return deployed(broker, topics, tmp_path / "s", flags=("--master-key-file", str(key)))


def answered(made: Deployment) -> dict[str, dict[str, Any]]:
    found = [orjson.loads(one.value()) for one in read_topic(made.broker, made.topics.responses)]
    return {one["query_id"]: one for one in found}


def readable(folder: Path) -> set[str]:
    """Return the texts that a folder contains: plain, in UTF-16 or in base64, at any offset."""
    content = b"\0".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return {said for said in SAID if contains(content, said)}


def test_waiting_question_is_unreadable_on_disk_and_survives_a_kill(made: Deployment) -> None:
    own, folder = made.topics, partition_folder(made.state_dir, 0)
    told = {"type": "message", "id": "m-of-ann", "content": "The violin under the stairs, a walnut", "receipt": True}
    waiting = {"type": "recall", "id": "waits-for-it", "query": "Where is the violin?", "wait_timeout_ms": 60_000}
    produce(made.broker, own.memory, SCOPE | told)
    process = made.start()
    with watched(process):
        made.outputs(own.receipts, 1)
        produce(made.broker, own.queries, SCOPE | waiting | {"wait_for": f"{own.memory}:0:1"})
        produce(made.broker, own.queries, SCOPE | {"type": "recall", "id": "at-once", "query": "violin?"})
        until(lambda: answered(made).keys() == {"at-once"})
        before = _written(folder)
        until(lambda: _written(folder) > before + 1_000_000_000)  # several marks later
    assert readable(made.state_dir) == set()
    code, errors = replace(made, flags=()).ends()
    assert (code, "is encrypted" in errors) == (2, True)  # without the key it does not start, and changes nothing
    with made.running():
        produce(made.broker, own.memory, SCOPE | {"type": "message", "content": "more"})
        until(lambda: len(answered(made)) == 2)
    answer = answered(made)["waits-for-it"]
    assert answer["memories"][0]["content"] == "The violin under the stairs, a walnut"
    assert readable(made.state_dir) == set()


def _written(folder: Path) -> int:
    """When a file of the folder was last written."""
    return max(path.stat().st_mtime_ns for path in folder.iterdir())
