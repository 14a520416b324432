"""A gateway before Kafka that can no longer read decisions reports it, and admits nobody."""

from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError

from benchmarks.broker import HOST, free_ports
from recallflow.connectors.kafka import control
from recallflow.connectors.kafka.control import ControlTable
from recallflow.flows import gateway
from recallflow.flows.config import Config
from recallflow.kafka_options import KafkaOptions
from tests.unit.connectors.fake_consumer import FakeKafka
from tests.unit.gateway.serving import served

ANN = {"tenant_id": "acme", "user_id": "ann"}
DECISION = {"tenant_id": "acme", "mode": "shadow", "by": "kim", "why": "a week of it"}


def test_a_gateway_that_reads_no_decisions_any_more_refuses_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    config = replace(config, kafka=KafkaOptions(f"{HOST}:{free_ports(None)[0]}", {"log_level": "0"}))
    config = replace(config, serve=replace(config.serve, port=0, timeout_s=1.0))
    kafka = FakeKafka(**{config.topics.control: 1})
    monkeypatch.setattr(control, "ControlTable", partial(ControlTable, new_consumer=kafka.consumer))
    seen: list[httpx.Response] = []

    def served_until_it_fails(app: Any, *_: Any) -> None:
        with served(app) as url, httpx.Client(base_url=url, timeout=30) as client:
            assert "Kafka has not answered yet" in client.get("/readyz").text
            kafka.fail(config.topics.control, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
            kafka.await_(lambda: "decisions" in client.get("/readyz").text)
            seen.extend([
                client.get("/readyz"), client.post("/memory/query", json={"type": "user.stats", **ANN}),
                client.post("/memory/events", json={"type": "memory", "content": "x", **ANN}),
                client.get("/memories", params=ANN), client.get("/graph/rollout?tenant_id=acme"),
                client.post("/graph/rollout", json=DECISION),
            ])  # fmt: skip

    monkeypatch.setattr(gateway, "serve", served_until_it_fails)
    gateway.serve_kafka(config)
    assert [one.status_code for one in seen] == [503] * 6
    assert all(f"{config.topics.control}:0: cannot be read: " in one.text for one in seen)
