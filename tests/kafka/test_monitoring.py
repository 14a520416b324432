"""A night with the rules and the dashboard of docs/monitoring: a real Prometheus scrapes real processes, in normal
running at first, then while one fault after another is done to them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
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

from benchmarks.broker import HOST, Broker, free_ports
from recallflow.control import Quota
from recallflow.owner import state_partition
from recallflow.quota_names import LLM_TOKENS_PER_DAY, MEMORIES_PER_USER
from tests.kafka.harness import FLAGS
from tests.kafka.prometheus import GIVE_UP_S, MONITORING, SPEED, Prometheus, faster, running_prometheus, until
from tests.llm_server import Fault, LlmServer

pytestmark = pytest.mark.needs("prometheus")

SCRIPT = "import sys; from recallflow.cli import main; sys.exit(main())"
CO_PARTITIONED = ("--memory-topic", "--query-topic")  # in two partitions, so that a record can be misplaced
JOBS = ("recallflow", "recallflow-enrich", "recallflow-serve")
AT_ONCE = 16  # requests that the gateway takes
MANY = 1_100  # more than the records of lag that an alert bears
ALONE, POOR, SMALL = "alone", "poor", "small"  # tenants: with a key; without tokens; with room for one memory

# What is done to them, and which alerts speak up at it.
PROVOKED = (
    "RecallflowControlEventsLeftOut",
    "RecallflowDeadLetters",
    "RecallflowDegradedResponses",
    "RecallflowDown",
    "RecallflowEnrichmentFailures",
    "RecallflowErrorResponses",
    "RecallflowGatewayErrors",
    "RecallflowGatewayRefuses",
    "RecallflowGatewaySlow",
    "RecallflowKafkaAway",
    "RecallflowLagGrows",
    "RecallflowMisplacedRecords",
    "RecallflowModelBudgetSpent",
    "RecallflowModelFailures",
    "RecallflowModelLeftAlone",
    "RecallflowNotReady",
    "RecallflowQuotaRefusals",
    "RecallflowRefusedCredentials",
    "RecallflowStuck",
    "RecallflowUnfitEvents",
)

LOOK_FAR_BACK = {"RecallflowModelBudgetSpent", "RecallflowUnfitEvents"}  # an hour


def expressions() -> dict[str, str]:
    """Of the dashboard, by panel and number."""
    panels = orjson.loads((MONITORING / "dashboard.json").read_bytes())["panels"]
    return {
        f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel.get("targets", ())
    }


def selectors() -> dict[str, list[str]]:
    """Of each alert, the series that it looks at."""
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    alerts = {rule["alert"]: rule["expr"] for group in rules for rule in group["rules"] if "alert" in rule}
    name = r"\b(?:recallflow[_:][\w:]+|process_\w+|up)(?:\{[^}]*\})?"
    return {alert: re.findall(name, expr) for alert, expr in alerts.items()}


@dataclass
class Night:
    """What was seen."""

    quiet: set[str] = field(default_factory=set)  # alerts that fired in normal running
    fired: dict[str, dict[str, Any]] = field(default_factory=dict)
    unhealthy: list[str] = field(default_factory=list)  # rules that could not be evaluated
    given: dict[str, int] = field(default_factory=dict)  # by expression, how many series it gave


class Site:
    """The processes, and what is sent to them."""

    def __init__(self, broker: Broker, folder: Path, llm: LlmServer) -> None:
        suffix = uuid.uuid4().hex[:8]
        words = (*FLAGS, "--enrichment-topic", "--result-topic")
        self._topics = {word: f"{word.removeprefix('--')}-{suffix}" for word in words}
        counts = {topic: 2 if word in CO_PARTITIONED else 1 for word, topic in self._topics.items()}
        broker.create_topics(counts)
        self._servers, self._folder, self._llm = broker.bootstrap_servers, folder, llm
        self._producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 5, "partitioner": "murmur2_random"})
        self.targets = dict(zip(JOBS, free_ports(None, len(JOBS) - 1), strict=True))
        self.api_key = ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def far_ahead(self) -> str:
        """A position that is not written."""
        return f"{self._topics['--memory-topic']}:{state_partition(ALONE, 'ann', 2)}:999999"

    def start(self, job: str, *words: str, without: tuple[str, ...] = ()) -> None:
        """`without`: flags of topics that the command does not have."""
        named = [one for flag, topic in self._topics.items() if flag not in without for one in (flag, topic)]
        command = [sys.executable, "-c", SCRIPT, *words, "--bootstrap-servers", self._servers, *named]
        settings = {
            "RECALLFLOW_ENRICHMENT_FACTS": "true",
            "RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "0",
            "RECALLFLOW_ENRICHMENT_BATCH_SIZE": "1",
            "RECALLFLOW_LLM_MODEL": "judge",
            "RECALLFLOW_LLM_BASE_URL": self._llm.url,
            "RECALLFLOW_LLM_ATTEMPTS": "1",
            "RECALLFLOW_LLM_CAPACITY": "2",
            "RECALLFLOW_SERVE_CONCURRENCY": str(AT_ONCE),
            "RECALLFLOW_SERVE_TIMEOUT_S": "4",
        }
        with (self._folder / f"{job}.log").open("ab") as log:
            self.processes[job] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=log, env=os.environ | settings
            )

    def engine(self) -> None:
        self.start("recallflow", "run", *self._own("recallflow"), without=("--result-topic",))

    def enrichment(self) -> None:
        own = self._own("recallflow-enrich")
        self.start("recallflow-enrich", "enrich", *own, without=("--query-topic", "--response-topic"))

    def gateway(self) -> None:
        port = str(self.targets["recallflow-serve"])
        self.start("recallflow-serve", "serve", "--port", port, without=("--enrichment-topic", "--result-topic"))

    def _own(self, job: str) -> tuple[str, ...]:
        return ("--create", "--state-dir", str(self._folder / job), "--metrics-port", str(self.targets[job]))

    def make_key(self) -> None:
        """The first key: from now on each record needs one."""
        where = ["--bootstrap-servers", self._servers, "--control-topic", self._topics["--control-topic"]]
        words = [sys.executable, "-c", SCRIPT, "keys", "create", ALONE, *where]
        self.api_key = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    def post(self, **fields: Any) -> int:
        """A question over HTTP: the answer's status."""
        body = orjson.dumps({"type": "recall", "tenant_id": ALONE, "user_id": "ann", "query": "Where is it?"} | fields)
        url = f"http://{HOST}:{self.targets['recallflow-serve']}/memory/query"
        headers = {"content-type": "application/json"} | ({"x-api-key": self.api_key} if self.api_key else {})
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=GIVE_UP_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    @contextlib.contextmanager
    def asking(self, at_once: int, **fields: Any) -> Iterator[None]:
        """So many ask over HTTP, again and again, until the end of the block."""
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                self.post(**fields)

        with ThreadPoolExecutor(at_once) as pool:
            asked = [pool.submit(ask) for _ in range(at_once)]
            try:
                yield
            finally:
                over.set()
        for one in asked:
            one.result()

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
            process.wait()

    def said(self) -> str:
        return "\n".join(file.read_text() for file in self._folder.glob("*.log"))


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    folder = tmp_path_factory.mktemp("night")
    with contextlib.ExitStack() as stack:
        broker, llm = stack.enter_context(Broker()), stack.enter_context(LlmServer())
        site = Site(broker, folder, llm)
        stack.callback(site.end)
        site.engine()
        site.enrichment()
        site.gateway()
        (folder / "prometheus").mkdir()
        prometheus = stack.enter_context(running_prometheus(folder / "prometheus", site.targets))
        try:
            yield spent(site, prometheus, broker, llm)
        finally:
            print(site.said())


def spent(site: Site, prometheus: Prometheus, broker: Broker, llm: LlmServer) -> Night:
    night = Night()

    def fires(*names: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        def all_fire() -> bool:
            meanwhile()
            night.fired |= prometheus.firing()
            return night.fired.keys() >= {*names}

        until(all_fire, lambda: ({*names} - night.fired.keys(), site.said()))

    def reaches(expr: str) -> None:
        until(lambda: bool(prometheus.query(expr)), lambda: (expr, site.said()))

    # ── normal running
    site.limit(POOR, LLM_TOKENS_PER_DAY, 0)
    site.limit(SMALL, MEMORIES_PER_USER, 1)
    reaches("sum(recallflow_ready) == 3")
    site.tell(50)
    site.tell(1, tenant=SMALL)
    site.ask(50, query="Where is the bicycle?")
    for _ in range(30):
        until(lambda: site.post() == HTTPStatus.OK, site.said)
    reaches('sum(recallflow_responses_total{status="ok"}) >= 80')
    reaches('sum(recallflow_enriched_tasks_total{outcome="done"}) == 51')
    reaches("min(count_over_time(recallflow_ready[1m])) > 40")  # scrapes: for longer than most rules look back
    night.quiet = {*prometheus.firing()}

    # ── a model that hangs, then refuses, then fails
    llm.fail("hang", times=None)
    site.tell(MANY)
    with site.asking(AT_ONCE, wait_for=site.far_ahead, wait_timeout_ms=2_000):
        fires("RecallflowStuck", "RecallflowLagGrows", "RecallflowGatewaySlow")
    llm.heal()
    llm.fail("refusal", times=None)
    fires("RecallflowModelFailures", "RecallflowEnrichmentFailures")
    site.tell(3, tenant=POOR)
    fires("RecallflowModelBudgetSpent")
    llm.heal()
    llm.fail(Fault("status", status=503), times=None)
    site.tell(20)
    fires("RecallflowModelLeftAlone")

    # ── senders and askers who are wrong
    misplaced = {"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "x"}
    vector: dict[str, Any] = {"memory_id": "m1", "embedding": [1.0] * 8, "model": "another", "content_hash": "0" * 64}
    site.send("--control-topic", b"no event", "acme/ann")
    site.misplace(orjson.dumps(misplaced), ("acme", "ann"))
    site.tell(150, "memory.embedding", **vector)

    def wrong() -> None:
        site.send("--memory-topic", b"{", "acme/ann")
        site.tell(1, tenant=SMALL)
        site.ask(20, "memory.get", memory_id="nothing")
        site.ask(20, query="Where is it?", wait_for=site.far_ahead, wait_timeout_ms=100)

    sent = ("ControlEventsLeftOut", "DeadLetters", "MisplacedRecords", "QuotaRefusals", "UnfitEvents")
    asked = ("DegradedResponses", "ErrorResponses", "GatewayRefuses")
    with site.asking(2 * AT_ONCE):
        fires(*(f"Recallflow{name}" for name in (*sent, *asked)), meanwhile=wrong)
    site.make_key()
    fires("RecallflowRefusedCredentials", meanwhile=lambda: site.tell(10))

    # ── the broker
    broker.stop(hard=True)
    with site.asking(AT_ONCE):
        fires("RecallflowKafkaAway", "RecallflowNotReady", "RecallflowGatewayErrors")

    # ── everything that may be shown was there by now
    window = f"{GIVE_UP_S:.0f}s"
    for expr in {*expressions().values(), *(one for found in selectors().values() for one in found)}:
        chosen = expr.replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", window)
        night.given[expr] = len(prometheus.query(chosen))
    night.unhealthy = [rule["name"] for rule in prometheus.rules() if rule["health"] != "ok"]

    # ── the engine
    broker.start()
    site.processes["recallflow"].send_signal(signal.SIGKILL)
    fires("RecallflowDown")
    site.processes["recallflow"].wait()
    site.engine()
    llm.heal()
    reaches("sum(recallflow_ready) == 3")
    until(lambda: prometheus.firing().keys() <= LOOK_FAR_BACK, lambda: (prometheus.firing(), site.said()))
    return night


def test_nothing_speaks_up_in_normal_running(night: Night) -> None:
    assert night.quiet == set()


@pytest.mark.parametrize("alert", PROVOKED)
def test_an_alert_speaks_up_at_its_fault(night: Night, alert: str) -> None:
    said = night.fired[alert]["annotations"]
    assert not [text for text in said.values() if ("error" in text.lower() and "expand" in text) or "%!" in text]


def test_every_rule_can_be_evaluated(night: Night) -> None:
    assert night.unhealthy == []


@pytest.mark.parametrize("panel", [*expressions()])
def test_every_expression_of_the_dashboard_gives_data(night: Night, panel: str) -> None:
    assert night.given[expressions()[panel]]


@pytest.mark.parametrize("alert", [*selectors()])
def test_every_alert_looks_at_series_that_there_are(night: Night, alert: str) -> None:
    assert [one for one in selectors()[alert] if not night.given[one]] == []


def test_time_runs_faster_in_the_test_alone() -> None:
    assert faster("increase(a_10m[15m] offset 1h) > 24 * 3600") == "increase(a_10m[15000ms] offset 60000ms) > 24 * 3600"
    assert faster("30s") == f"{30_000 // SPEED}ms"
