"""The rules and the dashboard of docs/monitoring before real processes: a real Prometheus scrapes an engine, the
enrichment flow and a gateway, first in normal running, then while records and models fail.

A few alerts are fired here. promtool fires each of them on series of its own (tests/unit/test_metrics.py)."""

import contextlib
import os
import re
import signal
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from confluent_kafka import Producer

from benchmarks.broker import HOST, Cluster, free_ports
from recallflow.control import Quota
from recallflow.limits import LLM_TOKENS_PER_DAY, MEMORIES_PER_USER
from recallflow.owner import state_partition
from tests.kafka.harness import FLAGS
from tests.kafka.prometheus import GIVE_UP_S, MONITORING, Prometheus, running_prometheus, until
from tests.llm_server import LlmServer
from tests.starts import COMMAND, Started, fork_server
from tools.dashboard import dashboard

pytestmark = pytest.mark.needs("prometheus")

CO_PARTITIONED = ("--memory-topic", "--query-topic")  # in two partitions, so that a record can be misplaced
JOBS = ("recallflow", "recallflow-enrich", "recallflow-serve")
AT_ONCE = 4  # requests that the gateway takes
QUIET_SCRAPES = 30
POOR, SMALL = "poor", "small"  # tenants: without tokens; with room for one memory
FAULTS = (
    "RecallflowControlEventsLeftOut", "RecallflowDeadLetters", "RecallflowMisroutedRecords",
    "RecallflowModelBudgetSpent", "RecallflowModelFailures", "RecallflowUnfitEvents",
)  # fmt: skip


def expressions() -> dict[str, str]:
    panels = dashboard()["panels"]
    return {
        f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel.get("targets", ())
    }


def selectors() -> set[str]:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    exprs = [rule["expr"] for group in rules for rule in group["rules"] if "alert" in rule]
    name = r"\b(?:recallflow[_:][\w:]+|process_\w+|up)(?:\{[^}]*\})?"
    return {selector for expr in exprs for selector in re.findall(name, expr)}


@dataclass
class Outcome:
    quiet: set[str] = field(default_factory=set)  # alerts that fired in normal running
    fired: dict[str, dict[str, Any]] = field(default_factory=dict)
    unhealthy: list[str] = field(default_factory=list)  # rules that could not be evaluated
    empty: set[str] = field(default_factory=set)  # expressions and selectors without data


class Site:
    def __init__(self, broker: Cluster, folder: Path, llm: LlmServer) -> None:
        suffix = uuid.uuid4().hex[:8]
        words = (*FLAGS, "--enrichment-topic", "--result-topic")
        self._topics = {word: f"{word.removeprefix('--')}-{suffix}" for word in words}
        broker.create_topics({topic: 2 if word in CO_PARTITIONED else 1 for word, topic in self._topics.items()})
        self._servers, self._folder, self._llm = broker.bootstrap_servers, folder, llm
        self._producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 5, "partitioner": "murmur2_random"})
        self.targets = dict(zip(JOBS, free_ports(None, len(JOBS) - 1), strict=True))
        self.processes: dict[str, Started] = {}
        self.said: list[str] = []
        results, asks = ("--result-topic",), ("--query-topic", "--response-topic")
        self._start("recallflow", "run", *self._own("recallflow"), without=results)
        self._start("recallflow-enrich", "enrich", *self._own("recallflow-enrich"), without=asks)
        port = str(self.targets["recallflow-serve"])
        self._start("recallflow-serve", "serve", "--port", port, without=("--enrichment-topic", *results))

    @property
    def far_ahead(self) -> str:
        return f"{self._topics['--memory-topic']}:{state_partition('acme', 'ann', 2)}:999999"

    def _start(self, job: str, *words: str, without: tuple[str, ...]) -> None:
        """`without`: flags of topics that the command does not have."""
        named = [one for flag, topic in self._topics.items() if flag not in without for one in (flag, topic)]
        settings = {
            "RECALLFLOW_ENRICHMENT_FACTS": "true", "RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "0",
            "RECALLFLOW_ENRICHMENT_BATCH_SIZE": "1", "RECALLFLOW_LLM_MODEL": "judge",
            "RECALLFLOW_LLM_BASE_URL": self._llm.url, "RECALLFLOW_LLM_ATTEMPTS": "1", "RECALLFLOW_LLM_CAPACITY": "2",
            "RECALLFLOW_SERVE_CONCURRENCY": str(AT_ONCE), "RECALLFLOW_SERVE_TIMEOUT_S": "1",
        }  # fmt: skip
        words = (*words, "--bootstrap-servers", self._servers, *named)
        process = fork_server().start(COMMAND, [*words], os.environ | settings, text=True)
        self.processes[job] = process
        threading.Thread(target=self.said.extend, args=(process.stderr,), daemon=True).start()

    def _own(self, job: str) -> tuple[str, ...]:
        return ("--create", "--state-dir", str(self._folder / job), "--metrics-port", str(self.targets[job]))

    def post(self, **fields: Any) -> int:
        body = orjson.dumps({"type": "recall", "tenant_id": "acme", "user_id": "ann", "query": "Where is it?"} | fields)
        url = f"http://{HOST}:{self.targets['recallflow-serve']}/memory/query"
        headers = {"content-type": "application/json"}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=GIVE_UP_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def send(self, word: str, value: bytes, key: str) -> None:
        self._producer.produce(self._topics[word], value, key)

    def misplace(self, value: bytes, owner: tuple[str, str]) -> None:
        self._producer.produce(self._topics["--memory-topic"], value, partition=1 - state_partition(*owner, 2))

    def flush(self) -> None:
        assert self._producer.flush(GIVE_UP_S) == 0

    def tell(self, count: int, kind: str = "message", tenant: str = "acme", **fields: Any) -> None:
        content = {} if kind == "memory.embedding" else {"content": "Ann keeps her bicycle in the cellar"}
        event = {"type": kind, "tenant_id": tenant, "user_id": "ann"} | content | fields
        for _ in range(count):
            self.send("--memory-topic", orjson.dumps(event), f"{tenant}/ann")
        self.flush()

    def ask(self, count: int, kind: str = "recall", **fields: Any) -> None:
        query = {"type": kind, "tenant_id": "acme", "user_id": "ann"} | fields
        for _ in range(count):
            self.send("--query-topic", orjson.dumps(query), "acme/ann")
        self.flush()

    def limit(self, tenant: str, name: Any, limit: int) -> None:
        event = Quota(type="quota", tenant_id=tenant, name=name, limit=limit)
        self.send("--control-topic", orjson.dumps(event.model_dump(exclude_none=True)), event.record_key.decode())
        self.flush()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def outcome(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    folder = tmp_path_factory.mktemp("monitoring")
    with contextlib.ExitStack() as stack:
        llm = stack.enter_context(LlmServer())
        site = Site(broker, folder, llm)
        stack.callback(site.end)
        (folder / "prometheus").mkdir()
        prometheus = stack.enter_context(running_prometheus(folder / "prometheus", site.targets))
        yield observe(site, prometheus, llm)


def observe(site: Site, prometheus: Prometheus, llm: LlmServer) -> Outcome:
    outcome = Outcome()

    def await_alerts(*names: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        def all_fire() -> bool:
            meanwhile()
            outcome.fired |= prometheus.firing()
            return outcome.fired.keys() >= {*names}

        until(all_fire, lambda: ({*names} - outcome.fired.keys(), site.said))

    def reaches(expr: str) -> None:
        until(lambda: bool(prometheus.query(expr)), lambda: (expr, site.said))

    # ── normal running
    site.limit(POOR, LLM_TOKENS_PER_DAY, 0)
    site.limit(SMALL, MEMORIES_PER_USER, 1)
    reaches("sum(recallflow_ready) == 3")
    site.tell(20)
    site.tell(1, tenant=SMALL)
    site.ask(20, query="Where is the bicycle?")
    for _ in range(10):
        until(lambda: site.post() == HTTPStatus.OK, lambda: site.said)
    reaches('sum(recallflow_responses_total{status="ok"}) >= 30')
    reaches('sum(recallflow_enriched_tasks_total{outcome="done"}) == 21')
    reaches(f"min(count_over_time(recallflow_ready[1m])) > {QUIET_SCRAPES}")
    outcome.quiet = {*prometheus.firing()}

    # ── wrong records, wrong questions, too many requests, and a model that refuses
    llm.fail("refusal", times=None)
    site.tell(20)
    site.tell(3, tenant=POOR)
    vector: dict[str, Any] = {"memory_id": "m1", "embedding": [1.0] * 8, "model": "another", "content_hash": "0" * 64}
    misplaced = {"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "x"}
    site.send("--control-topic", b"no event", "acme/ann")
    site.misplace(orjson.dumps(misplaced), ("acme", "ann"))
    site.tell(150, "memory.embedding", **vector)
    with ThreadPoolExecutor(2 * AT_ONCE) as pool:
        waits = {"wait_for": site.far_ahead, "wait_timeout_ms": 2_000}
        statuses = {one.result() for one in [pool.submit(site.post, **waits) for _ in range(4 * AT_ONCE)]}
    assert {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT} <= statuses

    def send_wrong() -> None:
        site.send("--memory-topic", b"{", "acme/ann")
        site.tell(1, tenant=SMALL)
        site.ask(5, "memory.get", memory_id="nothing")
        site.ask(5, query="Where is it?", wait_for=site.far_ahead, wait_timeout_ms=100)

    await_alerts(*FAULTS, meanwhile=send_wrong)
    window = f"{GIVE_UP_S:.0f}s"

    def is_empty(expr: str) -> bool:
        chosen = expr.replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", window)
        return not prometheus.query(chosen)

    outcome.empty = {expr for expr in {*expressions().values(), *selectors()} if is_empty(expr)}
    outcome.unhealthy = [rule["name"] for rule in prometheus.rules() if rule["health"] != "ok"]

    # ── a process that ends
    site.processes["recallflow"].send_signal(signal.SIGKILL)
    await_alerts("RecallflowDown")
    return outcome


def test_normal_running_fires_no_alert(outcome: Outcome) -> None:
    assert outcome.quiet == set()


@pytest.mark.parametrize("alert", [*FAULTS, "RecallflowDown"])
def test_fault_fires_its_alert(outcome: Outcome, alert: str) -> None:
    said = outcome.fired[alert]["annotations"]
    assert not [text for text in said.values() if ("error" in text.lower() and "expand" in text) or "%!" in text]


def test_rules_and_dashboard_have_data(outcome: Outcome) -> None:
    assert outcome.unhealthy == []
    assert {panel for panel, expr in expressions().items() if expr in outcome.empty} == set()
    assert selectors() & outcome.empty == set()
