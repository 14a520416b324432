"""Outputs and dead letters on a real broker: large ones, refused ones, and records that are passed over."""

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from benchmarks.broker import Cluster
from recallflow.client import RecallClient
from recallflow.errors import DeliveryFailed, InvalidRecord
from tests.fleet import engine
from tests.fleet.engine import Topics
from tests.fleet.records import FOREIGN
from tests.kafka.harness import GIVE_UP_S, Command, Names
from tests.kafka.site import Site, start_site

QUESTION = "Where is the bicycle?"


@pytest.fixture(scope="module")
def site(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    config = {"memory": {"max.message.bytes": "3000000"}, "response": {"max.message.bytes": "600000"}}
    yield from start_site(broker, tmp_path_factory.mktemp("outputs"), config, 1)


@pytest.fixture
def letters(site: Site) -> list[str]:
    return [*site.servers(), "--dead-letter-topic", site.topics.of("dead-letter")]


def limit(broker: Cluster, topic: str, most_bytes: int) -> None:
    change = ConfigEntry("max.message.bytes", str(most_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result()


def test_large_answers_are_cut_in_their_largest_texts(site: Site) -> None:
    ann = site.user()
    giant = "The bicycle is in the cellar. " + "x" * 999_600
    first = site.tell(ann, content=giant)
    others = [site.tell(ann, content=f"The bicycle number {number} is red.") for number in range(9)]
    answer = site.ask(ann, "recall", query=QUESTION, wait_for=others[-1].position)
    assert (answer["status"], answer["warnings"][-1]["code"]) == ("degraded", "content_cut")
    shown = {memory["id"]: memory for memory in answer["memories"]}
    cut = shown.pop(first.query_id)
    assert cut["truncated"] is True
    assert giant.startswith(cut["content"])
    assert len(cut["content"]) > 500_000
    assert {name: one["content"] for name, one in shown.items()} == {
        sent.query_id: (sent.event or {})["content"] for sent in others
    }
    context = site.ask(ann, "recall", query=QUESTION, max_tokens=1_000_000)["context"]
    items = {item["id"]: item for item in context["relevant_items"]}
    assert (items[first.query_id]["truncated"], "truncated" in items[others[0].query_id]) == (True, False)


def test_an_answer_over_a_lowered_limit_is_an_error(broker: Cluster, site: Site) -> None:
    ann = site.user()
    told = site.tell(ann, content="The bicycle is in the cellar. " + "x" * 200_000)
    site.reader.receipt(told.position)
    limit(broker, site.topics.of("response"), 100_000)
    large, small = site.post(ann, "memory.get", memory_id=told.query_id), site.post(ann, "user.stats")
    assert site.reader.answer(large.query_id)["error"]["code"] == "too_large"
    assert site.reader.answer(small.query_id)["status"] == "ok"
    limit(broker, site.topics.of("response"), 600_000)


def test_a_record_can_be_skipped_and_replayed(site: Site, letters: list[str], command: Command) -> None:
    ann = site.user()
    assert site.engine.stop().code == 0
    kept = site.tell(ann, content="The bicycle is in the cellar.")
    unwanted = site.tell(ann, content="The bicycle is at Bob's.")
    last = site.tell(ann, content="The bicycle is red.")
    asked = site.post(ann, "recall", query=QUESTION)
    waits = site.post(ann, "recall", query=QUESTION, wait_for=last.position, wait_timeout_ms=30_000)
    site.engine.up("--skip", unwanted.position, "--skip", asked.position)
    for sent in (unwanted, asked):
        assert site.reader.letter(sent.position).header("error.code") == "skipped"
    found = {memory["id"] for memory in site.reader.answer(waits.query_id)["memories"]}
    assert found == {kept.query_id, last.query_id}
    assert site.engine.stop().code == 0
    site.engine.up()
    assert site.ask(ann, "memory.get", memory_id=unwanted.query_id)["error"]["code"] == "not_found"
    assert "2 sent again" in command("dlq", "replay", "--code", "skipped", *letters).stdout
    assert site.reader.answer(asked.query_id)["query_id"] == asked.query_id


def test_a_foreign_open_transaction_hides_no_output(site: Site, letters: list[str], command: Command) -> None:
    """After a kill without a snapshot, only the topics tell which outputs were sent."""
    ann = site.user()
    assert site.engine.stop().code == 0
    site.engine.up("--epoch-ms", "60000")
    options = {"bootstrap.servers": site.servers()[1], "transactional.id": site.topics.suffix}
    foreign = Producer(options | {"transaction.timeout.ms": 600_000})
    foreign.init_transactions(GIVE_UP_S)
    foreign.begin_transaction()
    for kind in ("response", "dead-letter"):
        foreign.produce(site.topics.of(kind), b"foreign", FOREIGN)
    assert foreign.flush(GIVE_UP_S) == 0
    asked = [site.post(ann, "user.stats") for _ in range(13)]
    broken = site.raw("memory", b"{broken, hidden?")
    for sent in asked:
        site.reader.answer(sent.query_id)
    site.reader.letter(broken.position)
    site.engine.kill()
    site.engine.up()
    site.ask(ann, "user.stats")
    site.check_nothing_twice()
    assert "{broken, hidden?" in command("dlq", "list", *letters).stdout
    with client(site) as reading:
        assert len(reading.search("bicycle", user=ann)) == 0
    foreign.abort_transaction(GIVE_UP_S)


def client(site: Site) -> RecallClient:
    return RecallClient(
        site.servers()[1], "acme", memory_topic=site.topics.of("memory"), query_topic=site.topics.of("query"),
        response_topic=site.topics.of("response"), timeout_s=20.0,
    )  # fmt: skip


# ── without a running engine ──────────────────────────────────────────────────────────────────────────────────────


def test_a_client_refuses_records_over_the_limit(broker: Cluster, topics: Names) -> None:
    named = {name: topics(name) for name in ("memory_topic", "query_topic", "response_topic")}
    broker.create_topics({named["memory_topic"]: 1, named["response_topic"]: 1}, {"max.message.bytes": "3000000"})
    broker.create_topics({named["query_topic"]: 1}, {"max.message.bytes": "20000"})
    with RecallClient(broker.bootstrap_servers, "acme", timeout_s=20.0, **named) as small:  # type: ignore[arg-type]
        with pytest.raises(InvalidRecord, match="1048576"):
            small.add("x" * 1_100_000, user="ann")
        assert small.add("x" * 1_040_000, user="ann").position.offset == 0
        with pytest.raises(DeliveryFailed):
            small.search("x" * 30_000, user="ann")


def test_a_replay_refuses_lines_over_the_limit(
    broker: Cluster, topics: Names, command: Command, tmp_path: Path
) -> None:
    topic, log = topics("memory.events"), tmp_path / "log.jsonl"
    broker.create_topics({topic: 1}, {"max.message.bytes": "20000"})
    owner = {"type": "message", "tenant_id": "a", "user_id": "u"}
    log.write_bytes(b"".join(orjson.dumps(owner | {"content": "x" * size}) + b"\n" for size in (10, 30_000, 10)))
    done = command("replay", log, "--bootstrap-servers", broker.bootstrap_servers, "--memory-topic", topic)
    assert done.returncode == 1, done.stderr
    (reject,) = map(orjson.loads, (tmp_path / "log.jsonl.rejects.jsonl").read_bytes().splitlines())
    assert (reject["line"], reject["error"]["code"]) == (2, "too_large")


def test_a_topic_that_takes_too_little_is_named_at_start(broker: Cluster, tmp_path: Path) -> None:
    small = Topics(broker)
    small.make(1, {"response": {"max.message.bytes": "10000"}})
    ended = engine.Engine(small, tmp_path).ends()
    assert ended.code == 2, ended
    assert f"{small.of('response')}: max.message.bytes" in ended.error
