"""The main flow and its outputs on a real broker, by each way to execute it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer

from benchmarks.kafka_flow import connect, create
from recallflow.client import RecallClient
from tests.fleet import engine
from tests.fleet.engine import Topics
from tests.fleet.records import FOREIGN
from tests.kafka.harness import FLAGS, GIVE_UP_S, Command, Deployment, Names, is_ready, own_topics, until
from tests.kafka.site import REPLY, Site, start_site
from tests.process import watched
from tests.unit.test_without_bytewax import HIDING
from tools.broker import Cluster, free_ports

BICYCLE = "The bicycle is in the cellar."
QUESTION = "Where is the bicycle?"


@pytest.fixture(scope="module")
def site(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start_site(broker, tmp_path_factory.mktemp("flow"), 2)


def test_outputs_go_to_their_topics_with_the_owners_key(site: Site) -> None:
    ann = site.user()
    key = f"acme/{ann}".encode()
    told = site.tell(ann, "message", content=BICYCLE)
    assert site.reader.receipt(told.position)["outcome"] == "created"
    broken = site.raw("memory", b'{"type": "message", "tenant', key=key, headers=[("traceparent", b"00-1-2-01")])
    letter = site.reader.letter(broken.position)
    assert (letter.key, letter.value) == (key, broken.value)
    codes = [letter.header(name) for name in ("traceparent", "error.code", "error.source", "error.step")]
    assert codes == ["00-1-2-01", "invalid_json", broken.position, "decode"]
    event = {"type": "message", "tenant_id": "acme", "user_id": ann, "content": "lost?"}
    misplaced = site.raw("query", orjson.dumps(event), key=key)
    assert site.reader.letter(misplaced.position).header("error.source") == misplaced.position
    answer = site.ask(ann, "recall", query=QUESTION)
    assert answer["memories"][0]["id"] == told.query_id
    assert answer["applied"] == [broken.position]  # a refused record counts as applied
    assert {output.key for output in site.reader.outputs if output.answers == answer["query_id"]} == {key}


def test_an_answer_goes_to_an_allowed_reply_topic(site: Site) -> None:
    ann, topic = site.user(), site.topics.of(REPLY)
    there = {"reply_to": {"topic": topic, "partition": 1}}
    site.post(ann, "user.stats", **there)
    site.post(ann, "memory.get", memory_id="nobody's", **there)
    assert site.reader.until(lambda: len(site.replies()) == 2)
    assert {output.part for output in site.replies()} == {f"{topic}:1"}
    assert [output.body.get("error", {}).get("code") for output in site.replies()] == [None, "not_found"]
    for wanted, field in (
        ({"topic": "elsewhere"}, "reply_to.topic"),
        ({"topic": topic, "partition": 9}, "reply_to.partition"),
    ):
        refused = site.ask(ann, "user.stats", reply_to=wanted)
        assert refused["error"]["fields"][0]["field"] == field


def test_a_signal_ends_the_flow_and_the_next_start_continues(site: Site) -> None:
    ann = site.user()
    told = site.tell(ann, content=BICYCLE)
    for number in (signal.SIGTERM, signal.SIGINT):
        site.ask(ann, "recall", query=QUESTION, wait_for=told.position)
        os.kill(site.engine.pid(), number)
        assert site.engine.ended().code == 0
        meanwhile = site.post(ann, "recall", query=QUESTION)
        site.engine.up()
        assert site.reader.answer(meanwhile.query_id)["memories"][0]["id"] == told.query_id
    site.check_nothing_twice()


WITHOUT_BYTEWAX = HIDING.format(names=("bytewax",)) + "from recallflow.cli import main; sys.exit(main(sys.argv[1:]))"
SENT = 20


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path) -> Deployment:
    made = Deployment(broker, own_topics(topics), tmp_path / "state")
    create(broker, made.topics, 2)
    return made


def test_runners_in_turn_answer_and_put_out_once(deployment: Deployment, tmp_path: Path) -> None:
    config = tmp_path / "recallflow.toml"
    names = [f'{name} = "{getattr(deployment.topics, name)}"' for name in FLAGS.values()]
    (port,) = free_ports(None)
    where = f'state_dir = "{deployment.state_dir}"', "[run]", "session_timeout_s = 6", f"metrics_port = {port}"
    kafka = "[kafka]", f'bootstrap_servers = "{deployment.broker.bootstrap_servers}"'
    config.write_text("\n".join([*where, *kafka, "[topics]", *names]))
    under_bytewax = ["-m", "bytewax.run", f"recallflow.flows.kafka:get_flow({str(config)!r})"]
    without = ["-c", WITHOUT_BYTEWAX, "run", "--config", str(config), "--create"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    client = connect(deployment.broker, deployment.topics, GIVE_UP_S)
    with client:
        for words in (under_bytewax, without, under_bytewax):
            process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, env=environment)
            with watched(process):
                until(lambda: is_ready(port))
                for number in range(deployment.sent, deployment.sent + SENT):
                    last = client.add(f"The kettle {number} is broken", user="ann", receipt=True)
                found = client.search("Which kettle is broken?", user="ann", after=last.position, k=SENT)
                deployment.sent, deployment.asked = deployment.sent + SENT, deployment.asked + 1
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=GIVE_UP_S)
                assert (process.returncode, len([*found])) == (0, SENT), errors.decode()
    deployment.check_outputs()


@pytest.fixture(scope="module")
def output_site(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start_site(broker, tmp_path_factory.mktemp("outputs"), 1)


@pytest.fixture
def letters(output_site: Site) -> list[str]:
    return [*output_site.servers(), "--dead-letter-topic", output_site.topics.of("dead-letter")]


def test_a_record_can_be_skipped_and_replayed(output_site: Site, letters: list[str], command: Command) -> None:
    ann = output_site.user()
    assert output_site.engine.stop().code == 0
    kept = output_site.tell(ann, content="The bicycle is in the cellar.")
    unwanted = output_site.tell(ann, content="The bicycle is at Bob's.")
    last = output_site.tell(ann, content="The bicycle is red.")
    asked = output_site.post(ann, "recall", query=QUESTION)
    waits = output_site.post(ann, "recall", query=QUESTION, wait_for=last.position, wait_timeout_ms=30_000)
    output_site.engine.up("--skip", unwanted.position, "--skip", asked.position)
    for sent in (unwanted, asked):
        assert output_site.reader.letter(sent.position).header("error.code") == "skipped"
    found = {memory["id"] for memory in output_site.reader.answer(waits.query_id)["memories"]}
    assert (found, output_site.engine.stop().code) == ({kept.query_id, last.query_id}, 0)
    output_site.engine.up()
    assert output_site.ask(ann, "memory.get", memory_id=unwanted.query_id)["error"]["code"] == "not_found"
    assert "2 sent again" in command("dlq", "replay", "--code", "skipped", *letters).stdout
    assert output_site.reader.answer(asked.query_id)["query_id"] == asked.query_id


def test_a_foreign_open_transaction_hides_no_output(output_site: Site, letters: list[str], command: Command) -> None:
    """After a kill without a snapshot, only the topics tell which outputs were sent."""
    ann = output_site.user()
    assert output_site.engine.stop().code == 0
    output_site.engine.up("--sync-ms", "60000")
    options = {"bootstrap.servers": output_site.servers()[1], "transactional.id": output_site.topics.suffix}
    foreign = Producer(options | {"transaction.timeout.ms": 600_000})
    foreign.init_transactions(GIVE_UP_S)
    foreign.begin_transaction()
    for kind in ("response", "dead-letter"):
        foreign.produce(output_site.topics.of(kind), b"foreign", FOREIGN)
    assert foreign.flush(GIVE_UP_S) == 0
    asked = [output_site.post(ann, "user.stats") for _ in range(13)]
    broken = output_site.raw("memory", b"{broken, hidden?")
    for sent in asked:
        output_site.reader.answer(sent.query_id)
    output_site.reader.letter(broken.position)
    output_site.engine.kill()
    output_site.engine.up()
    output_site.ask(ann, "user.stats")
    output_site.check_nothing_twice()
    assert "{broken, hidden?" in command("dlq", "list", *letters).stdout
    with client(output_site) as reading:
        assert len(reading.search("bicycle", user=ann)) == 0
    foreign.abort_transaction(GIVE_UP_S)


def client(output_site: Site) -> RecallClient:
    return RecallClient(
        output_site.servers()[1], "acme", memory_topic=output_site.topics.of("memory"),
        query_topic=output_site.topics.of("query"), response_topic=output_site.topics.of("response"), timeout_s=20.0,
    )  # fmt: skip


def test_a_topic_that_takes_too_little_is_named_at_start(broker: Cluster, tmp_path: Path) -> None:
    small = Topics(broker)
    small.make(1, {"response": {"max.message.bytes": "10000"}})
    ended = engine.Engine(small, tmp_path).ends()
    assert ended.code == 2, ended
    assert f"{small.of('response')}: max.message.bytes" in ended.error
