"""A replay to Kafka that is killed and run again sends every message, and none that would count twice."""

import gzip
import random
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
import pytest

from benchmarks.broker import Cluster
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.topic_reader import UNCOMMITTED, TopicReader
from tests.kafka.harness import read_topic, until

Start = Callable[..., subprocess.Popen[str]]

COUNT = 3_000


def lines(path: Path) -> None:
    """Events without ids, packed."""
    event = {"type": "message", "tenant_id": "acme", "user_id": "ann"}
    path.write_bytes(gzip.compress(b"\n".join(orjson.dumps(event | {"content": f"line {n}"}) for n in range(COUNT))))


def document(path: Path) -> None:
    path.write_bytes(
        orjson.dumps([{"role": "user", "content": f"line {n}"} for n in range(COUNT)], option=orjson.OPT_INDENT_2)
    )


@pytest.mark.parametrize("write", [lines, document])
def test_kills_at_any_time_lose_and_repeat_nothing(
    broker: Cluster, start: Start, topics: Callable[[str], str], tmp_path: Path, write: Callable[[Path], None]
) -> None:
    log, topic = tmp_path / "log", topics("memory.events")
    write(log)
    broker.create_topics({topic: 2})
    where = ["--bootstrap-servers", broker.bootstrap_servers, "--memory-topic", topic]
    chosen = random.Random(write.__name__)

    with TopicReader(KafkaOptions(broker.bootstrap_servers), UNCOMMITTED) as reader:

        def sent() -> int:
            return sum(high for _, high in reader.spans([topic]).values())

        def is_there(least: int) -> bool:
            return sent() >= least

        for share in sorted(chosen.uniform(0.05, 0.6) for _ in range(3)):
            replay = start("replay", log, *where, "--rate", "1500")
            until(partial(is_there, max(sent() + 1, int(share * COUNT))))
            replay.kill()
            assert replay.wait() == -signal.SIGKILL
    last = start("replay", log, *where)
    assert last.wait() == 0
    found = [orjson.loads(message.value() or b"") for message in read_topic(broker, topic)]
    assert {one["content"] for one in found} == {f"line {n}" for n in range(COUNT)}
    assert len({one["id"] for one in found}) == COUNT  # what was sent again has the id it had, and applies once
    assert len(found) < 2 * COUNT  # it went on where it was, and did not begin anew
