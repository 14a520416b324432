"""Two members under one supervisor: nothing is lost or repeated when one is killed."""

import os
import signal
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.broker import HOST, Cluster, free_ports
from benchmarks.kafka_flow import own_topics
from recallflow.members.start import member_name
from recallflow.state.lock import LOCK
from tests.kafka.harness import FLAGS, read_topic, until

Start = Callable[..., subprocess.Popen[str]]

PARTITIONS = 4
OWNERS = 24
GIVE_UP_S = 60.0
MEMBERS = [member_name(number) for number in range(2)]


class Site:
    def __init__(self, broker: Cluster, folder: Path, start: Start) -> None:
        self._broker, self._start = broker, start
        self.folder, self.topics, self._sent = folder, own_topics(), 0
        (self._port,) = free_ports(None)
        named = {getattr(self.topics, name) for name in FLAGS.values()} | {self.topics.enrichment}
        broker.create_topics(dict.fromkeys(named, PARTITIONS))
        self._producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        named = [word for flag, name in FLAGS.items() for word in (flag, getattr(self.topics, name))]
        where = ["--state-dir", self.folder, "--bootstrap-servers", self._broker.bootstrap_servers]
        pace = ["--epoch-ms", "50", "--metrics-port", str(self._port)]
        process = self._start("run", "--processes", "2", *pace, *where, *named)
        until(lambda: process.poll() is None and self.ask("/readyz") == "ready\n")
        yield process
        members = [self.pid(name) for name in MEMBERS]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=GIVE_UP_S)
        assert process.returncode == 0, errors
        assert not any(Path(f"/proc/{pid}").exists() for pid in members)

    def ask(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}{path}", timeout=GIVE_UP_S) as answer:
                return str(answer.read().decode())
        except OSError as error:
            return str(error)

    def measured(self, name: str) -> dict[str, float]:
        families = text_string_to_metric_families(self.ask("/metrics"))
        return {one.labels["member"]: one.value for family in families for one in family.samples if one.name == name}

    def pid(self, name: str) -> int:
        return int(orjson.loads((self.folder / name / LOCK).read_bytes())["pid"])

    def folders(self) -> dict[str, set[str]]:
        return {name: {one.name for one in (self.folder / name).glob("p0*")} for name in MEMBERS}

    def tell(self, count: int) -> None:
        for _ in range(count):
            user = f"user{self._sent % OWNERS}"
            event = {"type": "message", "id": f"m{self._sent}", "tenant_id": "acme", "user_id": user, "receipt": True}
            value = orjson.dumps(event | {"content": f"The key is under mat {self._sent}"})
            self._producer.produce(self.topics.memory, value, key=f"acme/{user}")
            self._sent += 1
        assert self._producer.flush(GIVE_UP_S) == 0

    def all_told_once(self) -> bool:
        receipts = read_topic(self._broker, self.topics.receipts)
        told = Counter(orjson.loads(one.value())["memory_id"] for one in receipts)
        assert not [one for one, times in told.items() if times > 1]
        return len(told) == self._sent


@pytest.fixture
def site(broker: Cluster, tmp_path: Path, start: Start) -> Site:
    return Site(broker, tmp_path / "state", start)


def test_members_share_partitions_and_a_killed_one_restarts(site: Site) -> None:
    with site.running():
        site.tell(60)
        until(site.all_told_once)
        until(lambda: min(map(len, site.folders().values())) >= PARTITIONS // 2)  # the group has spread them
        until(lambda: min(site.measured("recallflow_memories").values()) > 0)
        assert site.measured("recallflow_memories").keys() == {*MEMBERS}

        folders, killed = site.folders(), site.pid(MEMBERS[1])
        os.kill(killed, signal.SIGKILL)
        site.tell(60)
        until(site.all_told_once)
        until(lambda: site.ask("/readyz") == "ready\n")
        assert site.pid(MEMBERS[1]) != killed
        assert site.measured("recallflow_member_restarts_total") == {MEMBERS[0]: 0, MEMBERS[1]: 1}
        assert site.folders() == folders  # its name in the group was kept for it: nothing moved
