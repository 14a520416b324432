"""The main flow on a real broker: inputs, outputs and their topics, waiting queries, stops and kills."""

import os
import signal
from collections.abc import Iterator

import orjson
import pytest

from benchmarks.broker import Cluster
from tests.kafka.site import REPLY, Site, start_site

BICYCLE = "The bicycle is in the cellar."
QUESTION = "Where is the bicycle?"


@pytest.fixture(scope="module")
def site(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start_site(broker, tmp_path_factory.mktemp("flow"), {}, 2)


def behind(position: str, records: int = 1) -> str:
    """Return the position of a record that comes so many records later."""
    source, _, offset = position.rpartition(":")
    return f"{source}:{int(offset) + records}"


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


def test_a_query_that_waits_holds_up_no_other(site: Site) -> None:
    ann = site.user()
    first = site.tell(ann, "message", content=BICYCLE)
    waits = site.post(ann, "recall", query=QUESTION, wait_for=[first.position, behind(first.position)])
    assert site.ask(ann, "recall", query=QUESTION, wait_for=first.position)["status"] == "ok"
    assert ("response", waits.query_id) not in site.reader.seen
    second = site.tell(ann, "message", content="No: the bicycle is at Bob's.")
    answer = site.reader.answer(waits.query_id)
    assert (answer["status"], len(answer["memories"])) == ("ok", 2)
    assert second.query_id in [memory["id"] for memory in answer["memories"]]


def test_a_wait_that_times_out_is_a_stale_read(site: Site) -> None:
    ann = site.user()
    told = site.tell(ann, content=BICYCLE)
    answer = site.ask(ann, "recall", query=QUESTION, wait_for=behind(told.position, 5), wait_timeout_ms=300)
    assert answer["status"] == "degraded"
    assert [warning["code"] for warning in answer["warnings"]] == ["stale_read"]
    assert "5 records ahead" in answer["warnings"][0]["detail"]


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
