"""Checkpoints: a member whose disk is lost restores its partitions and reads only newer records."""

import base64
import re
import signal
from contextlib import closing
from pathlib import Path

import orjson
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.broker import Cluster
from benchmarks.fleet import checker
from benchmarks.fleet.checker import settled
from benchmarks.fleet.engine import SHORT_SESSION, Topics, command
from benchmarks.fleet.members import Fleet
from benchmarks.fleet.records import Log, Reader
from tests.kafka.harness import FLAGS, Names, own_topics, read_topic, until, watched
from tests.readable import contains
from tests.starts import fork_server

PARTITIONS = 2
OWNERS = 6
TOLD, SINCE = 40, 12
WHOSE, WHAT = "acme-corporation/ann-of-acme", "The violin under the stairs"
SAID = ("acme-corporation", "ann-of-acme", "violin under the stairs")  # some of which stands in files as it is
OFTEN, SELDOM = ("--checkpoint-minutes", "0.01"), ("--checkpoint-minutes", "1000")
FETCHED = re.compile(r"partition (\d+) comes from a checkpoint of \d+ bytes in [\d.]+ s, applied up to offset (\d+)")
OURS = re.compile(r"partition (\d+) is ours[,;] .*:\d+ goes on from offset (\d+)")


def test_a_lost_disk_is_restored_from_encrypted_checkpoints(broker: Cluster, tmp_path: Path) -> None:
    topics, store = Topics(broker), tmp_path / "checkpoints"
    topics.make(PARTITIONS)
    log = Log(topics)
    always = ("--epoch-ms", "100", "--checkpoint-to", f"file:{store}", "--instance-id", "one", *SHORT_SESSION)
    key = ("--master-key-file", str(key_file(tmp_path)))
    with Fleet(topics, tmp_path, 1, *always, *key) as fleet, closing(Reader(topics)) as reader:
        (member,) = fleet.members

        def talk(count: int) -> dict[int, int]:
            """Returns where the memories of each partition end, once all is answered."""
            log.talk(count, owners=OWNERS)
            assert reader.until(lambda: settled(log, reader)), member.said()
            return {part: end for part, (_, end) in topics.bounds("memory").items()}

        member.up(*OFTEN)
        log.tell(WHOSE, content=WHAT)
        ends = talk(TOLD)
        member.until(lambda: kept(store) == ends, "kept")
        member.kill()
        member.up(*SELDOM)
        talk(SINCE)
        member.kill()
        fleet.lose_disk(0)
        member.up(*SELDOM)
        log.flush()
        assert kept(store) == ends  # nothing of what came since
        assert {int(part): int(offset) + 1 for part, offset in FETCHED.findall(member.said())} == ends
        assert {int(part): int(offset) for part, offset in OURS.findall(member.said())} == ends
        talk(SINCE)
        findings = checker.judge(log, reader)
        assert findings.clean(), findings
        assert member.metrics()["recallflow_memories"] == 1 + TOLD + 2 * SINCE
        assert member.stop().code == 0, member.said()
    assert readable(store) == set()


# An engine whose folders come from elsewhere only once a file is there.
SLOW = """
import sys, time
from pathlib import Path
from recallflow.cli import main
from recallflow.flows.checkpointing import Checkpoints
def restore(*_):
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
Checkpoints.restore = restore
sys.exit(main(sys.argv[2:]))
"""


def test_queries_during_a_first_restore_are_answered(broker: Cluster, topics: Names, tmp_path: Path) -> None:
    """Queries count from when the partitions are the member's, not from when each is open."""
    own, gate = own_topics(topics), tmp_path / "gate"
    broker.create_topics(dict.fromkeys((own.memory, own.queries), PARTITIONS))
    broker.create_topics(dict.fromkeys((own.control, *own.outputs()), 1))
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    group, parts = topics("group"), [TopicPartition(own.memory, number) for number in range(PARTITIONS)]
    words = ["run", "--create", "--state-dir", str(tmp_path / "s"), "--bootstrap-servers", broker.bootstrap_servers]
    words += ["--deployment", group, "--checkpoint-to", f"file:{tmp_path / 'kept'}"]
    words += [word for flag, name in FLAGS.items() for word in (flag, getattr(own, name))]
    process = fork_server().start(SLOW, [str(gate), *words])
    with watched(process), closing(Consumer(servers | {"group.id": group})) as asked:

        def has_places() -> bool:
            try:
                return all(one.offset >= 0 for one in asked.committed(parts, timeout=5))
            except KafkaException:  # the group is not there yet
                return False

        until(has_places)
        producer = Producer(servers)
        for part in parts:
            query = {"type": "user.stats", "tenant_id": "acme", "user_id": "ann", "id": f"q{part.partition}"}
            producer.produce(own.queries, orjson.dumps(query), b"acme/ann", part.partition)
        assert producer.flush(30) == 0
        gate.touch()
        until(lambda: len(read_topic(broker, own.responses)) == PARTITIONS)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def key_file(folder: Path) -> Path:
    path = folder / "master.key"
    path.write_text(base64.b64encode(bytes(range(32))).decode())
    return path


def kept(store: Path) -> dict[int, int]:
    """How many records of each partition's log the newest checkpoint has."""
    listed = command("checkpoints", "list", f"file:{store}", "--json").out.splitlines()
    found = [(one["partition"], one["offset"] + 1) for one in map(orjson.loads, listed)]
    return {part: max(offset for number, offset in found if number == part) for part, _ in found}


def readable(store: Path) -> set[str]:
    """What of all that was said stands in some object."""
    content = b"\0".join(path.read_bytes() for path in store.rglob("*") if path.parent.name == "objects")
    return {said for said in SAID if contains(content, said)}
