"""Metrics and spans of a flow, and the alert rules and the dashboard of docs/monitoring."""

import json
import logging
import re
import subprocess
from collections import Counter
from copy import copy
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from recallflow import __version__
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.kafka.admin import TopicDescription
from recallflow.connectors.kafka.cluster import OutageMonitor, TopicWatcher
from recallflow.connectors.kafka.control import LEFT_OUT, ControlTable
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.llm.policy import Meter
from recallflow.control import ControlHistory
from recallflow.errors import ErrorCode, InvalidRecord
from recallflow.events import DERIVED_TYPES, EnrichmentRequest, EnrichmentResult
from recallflow.flows import record_spans as module
from recallflow.flows.config import RunSettings
from recallflow.flows.engine_metrics import OutputCounter, Stages
from recallflow.flows.enrich import EnrichmentCounter, EnrichmentMember
from recallflow.flows.kafka import MainFlowMember
from recallflow.flows.member import FlowMetrics
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.router import MISROUTED_REASONS, OwningPartitions
from recallflow.flows.settings import Settings
from recallflow.kafka_options import KafkaOptions
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.operators.enrichment.results import MISSING_RESULTS, failure
from recallflow.operators.events import decode
from recallflow.outputs import Ack, Answer, DeadLetter, EventOutput, ReceiptOutput, TaskRequest
from recallflow.parsing import EVENT_TYPES, QUERY_TYPES
from recallflow.records import Position, Record
from recallflow.responses import WARNINGS, Context, MemoryPage, RecalledMemory, Response, Warn
from recallflow.state.directory import StateDirectory
from recallflow.telemetry import TRACE_HEADER
from tools.dashboard import dashboard
from tools.reference import metrics

QUERIES, MEMORIES = "query.events", "memory.events"
FIRST = 100  # of the query topic in this run


def answer(offset: int, number: int = 0, **said: Any) -> Answer:
    response = Response.model_validate({"query_id": "q", "status": "ok"} | said)
    return Answer(Position(QUERIES, 0, offset), number, b"acme/ann", b"{}", response)


def letter(topic: str, offset: int, number: int = 0) -> DeadLetter:
    record = Record(Position(topic, 0, offset), b"{", 0)
    return DeadLetter(record, number, InvalidRecord("invalid_json", []), "decode")


def receipt(offset: int) -> ReceiptOutput:
    return ReceiptOutput(Position(MEMORIES, 0, offset), 0, b"acme/ann", b"{}")


@pytest.fixture
def tally() -> OutputCounter:
    return OutputCounter(QUERIES, {f"{QUERIES}:0": FIRST, f"{MEMORIES}:0": 0})


def test_outputs_are_counted_by_kind(tally: OutputCounter) -> None:
    slow: dict[str, Any] = {
        "processing_time_ms": 70.0, "status": "degraded", "warnings": [Warn(code="stale_read", detail="late")],
    }  # fmt: skip
    wrong: dict[str, Any] = {"status": "error", "error": {"code": "not_found", "message": "there is none"}}
    outputs = (answer(100, processing_time_ms=2.0), answer(101, **slow), answer(102, **wrong), receipt(1))
    for output in (*outputs, letter(MEMORIES, 2)):
        tally.observe(output)
    for tasks in (("extract", "facts"), ("facts",)):
        tally.observe(TaskRequest(Position(MEMORIES, 0, 3), 10, b"acme/ann", b"{}", tasks))
    assert tally.outputs == {"response": 3, "receipt": 1, "dead_letter": 1, "request": 2}
    assert (tally.requested, tally.responses) == ({"extract": 1, "facts": 2}, {"ok": 1, "degraded": 1, "error": 1})
    assert (tally.response_errors, tally.warnings) == ({"not_found": 1}, {"stale_read": 1})
    assert tally.dead_letters == {"invalid_json": 1}


def test_queries_that_are_through_without_an_output_wait(tally: OutputCounter) -> None:
    tally.observe(answer(100))
    tally.observe(letter(QUERIES, 101))
    tally.observe(answer(101, number=1))  # a malformed query has a dead letter and an error response
    tally.observe(Ack(f"{QUERIES}:0", (100, 101, 102, 103)))
    assert tally.waiting == 2
    tally.observe(answer(102))
    assert tally.waiting == 1


def test_earlier_queries_and_memories_are_not_waiting(tally: OutputCounter) -> None:
    tally.observe(Ack(f"{MEMORIES}:0", (1, 2, 3)))
    tally.observe(receipt(1))
    tally.observe(answer(FIRST - 1))  # it was set aside before this process began
    assert tally.waiting == 0


@pytest.fixture
def running(tally: OutputCounter, tmp_path: Path) -> Any:
    settings, embedder = Settings(partitions=1), load_embedder("hash")
    directory = StateDirectory.open(tmp_path / "s", settings.fingerprint(embedder), settings.cache_bytes)
    member = MainFlowMember.__new__(MainFlowMember)
    vars(member).update(
        run_settings=RunSettings(),
        source=OwnedSource(KafkaOptions("127.0.0.1:1"), MEMORIES, QUERIES, sync_s=1.0, tails=lambda: ({}, 0)),
        directory=directory,
        output_counter=tally,
        membership=Mock(spec=Membership, member_id="m", expected=frozenset()),
        watch=TopicWatcher(dict, {MEMORIES: TopicDescription("m", 2)}),
        outage_monitor=Mock(spec=OutageMonitor, connected=True),
        owning_partitions=OwningPartitions(1),
        authoriser=Authoriser(ControlHistory(), Trust()),
        table=Mock(spec=ControlTable, left_out=Counter()),
        spans=RecordSpans(Stages((MEMORIES, QUERIES)), parked_topic=QUERIES),
        checkpoints=None,
        meters=(),
    )
    return member


def shown(metrics: FlowMetrics) -> dict[str, float]:
    """Every sample of ours by its name and labels."""
    text = generate_latest(metrics.registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    samples = [sample for sample in samples if sample.name.startswith("recallflow_")]
    return {f"{one.name}{dict(sorted(one.labels.items())) or ''}": one.value for one in samples}


def test_metrics_show_the_counts(running: Any) -> None:
    metrics = FlowMetrics()
    known = {"recallflow_ready": 0, f"recallflow_build_info{{'version': '{__version__}'}}": 1}
    assert (shown(metrics), metrics.obstacle()) == (known, "starting")
    metrics.member = running
    running.source.counters.count_emitted(MEMORIES, 5)
    running.source.counters.count_finished(MEMORIES, 2)
    for output in (answer(100, processing_time_ms=2.0), answer(101, processing_time_ms=70.0), letter(MEMORIES, 1)):
        running.output_counter.observe(output)
    found = shown(metrics)
    expected = {
        "recallflow_records_total{'topic': 'memory.events'}": 5, "recallflow_in_flight_records": 3,
        "recallflow_added_partitions_total{'topic': 'memory.events'}": 0,
        "recallflow_outputs_total{'kind': 'response'}": 2, "recallflow_outputs_total{'kind': 'dead_letter'}": 1,
        "recallflow_dead_letters_total{'code': 'invalid_json'}": 1, "recallflow_responses_total{'status': 'ok'}": 2,
        "recallflow_response_processing_seconds_bucket{'le': '0.001'}": 0,
        "recallflow_response_processing_seconds_bucket{'le': '0.002'}": 1,
        "recallflow_response_processing_seconds_bucket{'le': '0.1'}": 2,
        "recallflow_response_processing_seconds_bucket{'le': '+Inf'}": 2,
        "recallflow_response_processing_seconds_sum": 0.072, "recallflow_hot_cache_bytes": 0,
        "recallflow_hot_cache_limit_bytes": 512 * 1024 * 1024,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_every_counter_is_there_before_anything_is_counted(running: Any) -> None:
    metrics = FlowMetrics()
    metrics.member = running
    found = shown(metrics)
    expected = [f"recallflow_responses_total{{'status': '{status}'}}" for status in ("ok", "degraded", "error")]
    expected += [f"recallflow_response_warnings_total{{'code': '{code}'}}" for code in WARNINGS]
    expected += [f"recallflow_response_errors_total{{'code': '{code}'}}" for code in get_args(ErrorCode)]
    expected += [f"recallflow_dead_letters_total{{'code': '{code}'}}" for code in get_args(ErrorCode)]
    expected += [f"recallflow_enrichment_tasks_total{{'task': '{task}'}}" for task in MISSING_RESULTS]
    expected += [f"recallflow_records_total{{'topic': '{topic}'}}" for topic in (MEMORIES, QUERIES)]
    expected += [f"recallflow_misrouted_records_total{{'reason': '{reason}'}}" for reason in MISROUTED_REASONS]
    expected += [f"recallflow_control_events_left_out_total{{'reason': '{reason}'}}" for reason in LEFT_OUT]
    expected += [f"recallflow_unfit_events_total{{'reason': 'outdated', 'type': '{kind}'}}" for kind in DERIVED_TYPES]
    expected += ["recallflow_unfit_events_total{'reason': 'other_model', 'type': 'memory.embedding'}"]
    expected += ["recallflow_unfit_events_total{'reason': 'too_many', 'type': 'memory'}"]
    erasable = sorted(EVENT_TYPES - QUERY_TYPES - {"user.erase"})
    expected += [f"recallflow_unfit_events_total{{'reason': 'erased', 'type': '{kind}'}}" for kind in erasable]
    expected += [
        f"recallflow_outputs_total{{'kind': '{kind}'}}"
        for kind in ("response", "receipt", "request", "dead_letter", "verdict")
    ]
    assert {name: found.get(name) for name in expected} == dict.fromkeys(expected, 0)


def test_readiness_names_the_obstacle(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, early, ready_early = FlowMetrics(), FlowMetrics(), copy(running)
    ready_early.run_settings = RunSettings(serve_while_catching_up=True)
    metrics.member = running
    early.member = ready_early
    assert (metrics.obstacle(), early.obstacle()) == ("starting", "starting")
    monkeypatch.setattr(running.source, "ready", lambda: True)
    running.source.catch_up.set_targets({f"{MEMORIES}:0": 3})
    running.source.catch_up.add(f"{MEMORIES}:0", 1)
    assert (metrics.obstacle(), early.obstacle()) == ("catching up, 2 memory records remain", "")
    assert (shown(metrics)["recallflow_catching_up_records"], shown(metrics)["recallflow_ready"]) == (2, 0)
    assert shown(early)["recallflow_ready"] == 1
    running.source.catch_up.count_emitted(f"{MEMORIES}:0", [1, 2], 3)
    running.source.catch_up.count_applied(f"{MEMORIES}:0", (1, 2))
    assert ((metrics.obstacle(), early.obstacle()), shown(metrics)["recallflow_ready"]) == (("", ""), 1)
    with monkeypatch.context() as coming:
        coming.setattr(running.membership, "expected", frozenset({0, 1, 2}))
        assert (metrics.obstacle(), early.obstacle()) == ("partitions 0-2 are being opened",) * 2
    with monkeypatch.context() as outside:
        outside.setattr(running.membership, "member_id", None)
        assert metrics.obstacle() == "not a member of the deployment yet"
    running.outage_monitor.connected = False
    assert (metrics.obstacle(), early.obstacle()) == ("Kafka is unavailable", "Kafka is unavailable")
    assert shown(metrics)["recallflow_connected"] == 0


def test_oldest_barrier_of_owned_partitions_is_shown(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = FlowMetrics()
    metrics.member = running
    monkeypatch.setattr(running.source, "_owned", {0: Mock(barrier_s=11.0), 1: Mock(barrier_s=10.0)})
    assert shown(metrics)["recallflow_snapshot_timestamp_seconds"] == 10.0


def test_results_are_counted_by_task_code_and_reason(running: Any) -> None:
    flow, metrics = EnrichmentMember.__new__(EnrichmentMember), FlowMetrics()
    vars(flow).update(vars(running))
    flow.state_dir, flow.enrichment_counter, flow.meters = running.directory.path, EnrichmentCounter(), [Meter("judge")]
    metrics.member = flow
    request = EnrichmentRequest.model_construct(tasks=["facts", "extract", "classify"])
    result = EnrichmentResult.model_construct(
        failures=[failure("extract", "timeout"), failure("classify", "timeout")], refused={"no_evidence": 2}, calls=3,
        prompt_tokens=100, completion_tokens=10, embedding_tokens=0,
    )  # fmt: skip
    for _ in range(4):
        flow.enrichment_counter.count_result(request, result)
    flow.table.left_out["not_signed"] += 2
    flow.enrichment_counter.observe(EventOutput(Position("results", 0, 1), 0, b"acme/ann", b"{}"))
    found = shown(metrics)
    expected = {
        "recallflow_enriched_tasks_total{'outcome': 'done', 'task': 'facts'}": 4,
        "recallflow_enriched_tasks_total{'outcome': 'failed', 'task': 'facts'}": 0,
        "recallflow_enriched_tasks_total{'outcome': 'failed', 'task': 'extract'}": 4,
        "recallflow_enrichment_failures_total{'code': 'GRAPH_LLM_CLASSIFICATION_FAILED'}": 4,
        "recallflow_enrichment_failures_total{'code': 'GRAPH_RELATIONSHIP_PARTIAL_DEGRADE'}": 8,
        "recallflow_enrichment_failures_total{'code': 'EMBEDDING_FAILED'}": 0,
        "recallflow_refused_claims_total{'reason': 'no_evidence'}": 8,
        "recallflow_refused_claims_total{'reason': 'unfit'}": 0,
        "recallflow_outputs_total{'kind': 'event'}": 1,
        "recallflow_model_left_alone{'model': 'judge'}": 0,
        "recallflow_control_events_left_out_total{'reason': 'not_signed'}": 2,
        "recallflow_control_events_left_out_total{'reason': 'replayed'}": 0,
    }
    assert {name: found.get(name) for name in expected} == expected


DOCS = Path(__file__).parents[2] / "docs"
MONITORING = DOCS / "monitoring"


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def listed() -> set[str]:
    return set(re.findall(r"^\| `(recallflow_\w+)", metrics.page(), re.MULTILINE))


def named(text: str) -> set[str]:
    """Metrics that an expression looks at, a histogram's by its own name."""
    return {re.sub(r"_bucket$", "", name) for name in re.findall(r"\brecallflow_\w+", text)}


@pytest.mark.examples
@pytest.mark.needs("promtool")
@pytest.mark.parametrize(
    "words", ["check rules alerts.yml", "check config prometheus.yml", "test rules alerts_test.yml"]
)
def test_promtool_finds_nothing_wrong(words: str) -> None:
    done = subprocess.run(["promtool", *words.split()], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    samples = [sample for test in tests for case in test["promql_expr_test"] for sample in case["exp_samples"]]
    fired = [re.findall(r'alertname="(\w+)"', sample["labels"])[0] for sample in samples]
    assert sorted(fired) == sorted(alerts())


def test_normal_series_cover_all_alerts() -> None:
    normal = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"][0]
    given = {series["series"].partition("{")[0].removesuffix("_bucket") for series in normal["input_series"]}
    assert {name for rule in alerts().values() for name in named(rule["expr"])} <= given


def test_expressions_look_at_metrics_that_there_are() -> None:
    exprs = [target["expr"] for panel in panels() for target in panel["targets"]]
    exprs += [rule["expr"] for rule in alerts().values()]
    assert {name for expr in exprs for name in named(expr)} <= listed()


def test_selectors_name_labels_of_their_metrics() -> None:
    rows = re.findall(r"^\| `(recallflow_\w+)` \| \w+ \| (.*?) \|", metrics.page(), re.MULTILINE)
    labels = {name: {"job", "instance", "member", "le", *re.findall(r"\w+", text)} for name, text in rows}
    exprs = [target["expr"] for panel in panels() for target in panel["targets"]]
    exprs += [rule["expr"] for rule in alerts().values()]
    selectors = [found for expr in exprs for found in re.findall(r"\b(recallflow_\w+?)(?:_bucket)?\{(.*?)\}", expr)]
    assert len(selectors) > 20
    for name, chosen in selectors:
        assert {*re.findall(r"(\w+)\s*(?:=|!)", chosen)} <= labels[name], (name, chosen)


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for panel in panels() for target in panel["targets"] for name in named(target["expr"])}
    assert listed() - shown == set()


def test_grafana_reads_the_dashboard_as_it_is() -> None:
    register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard())))
    assert [*lost(dashboard(), read)] == []


def lost(written: Any, read: Any, path: str = "") -> list[str]:
    if isinstance(written, dict) and isinstance(read, dict):
        return [one for key, value in written.items() for one in lost(value, read.get(key), f"{path}.{key}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [one for at, (a, b) in enumerate(zip(written, read, strict=True)) for one in lost(a, b, f"{path}[{at}]")]
    return [] if written == read else [f"{path}: {written} → {read}"]


def test_every_expression_uses_the_dashboard_variables() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert variables == {"datasource", "job", "instance"}
    for panel in panels():
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            for selector in re.findall(r"\b(?:recallflow|process)_\w+(\{.*?\})", target["expr"]):
                assert selector.startswith('{job=~"$job", instance=~"$instance"'), panel["title"]
            assert len(re.findall(r"\b(?:recallflow|process)_\w+\{", target["expr"])) == len(
                re.findall(r"\b(?:recallflow|process)_\w+", target["expr"])
            ), panel["title"]


EVENT_TOPIC, QUERY_TOPIC = "memory.events", "query.events"
PARENT = ((TRACE_HEADER, b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)
EVENT = b'{"type":"memory","tenant_id":"acme","user_id":"ann","content":"tea"}'
QUERY = b'{"type":"recall","tenant_id":"acme","user_id":"ann","query":"tea?"}'
MOST = 10


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(module, "tracer", provider.get_tracer("test"))
    monkeypatch.setattr(module, "PARKED_MAX", MOST)
    return exporter


@pytest.mark.parametrize(("topic", "value"), [(EVENT_TOPIC, EVENT), (QUERY_TOPIC, QUERY)], ids=["events", "queries"])
def test_waiting_spans_are_bounded_and_end_once(
    exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, topic: str, value: bytes
) -> None:
    caplog.set_level(logging.DEBUG)
    spans = RecordSpans(Stages((EVENT_TOPIC, QUERY_TOPIC)), parked_topic=QUERY_TOPIC)
    places = [Position(topic, 0, offset) for offset in range(3 * MOST)]
    spans.begin([decode(Record(place, value, 0, b"acme/ann", headers=PARENT)) for place in places], 0.0)
    spans.end_or_park(places)  # without an output
    assert [spans.is_parked(place) for place in places] == [False] * 2 * MOST + [True] * MOST
    (_, parent), *_ = spans.headers(places[-1])
    assert parent is not None
    assert parent.startswith(PARENT[0][1][:36])
    assert spans.headers(places[0]) == ()
    spans.track_output(ReceiptOutput(places[-1], 0, b"acme/ann", b"{}"))(5)
    spans.end_parked(places[2 * MOST :])
    assert not any(spans.is_parked(place) for place in places)
    assert len(exported.get_finished_spans()) == len(places)
    assert not caplog.records


def test_silent_records_are_in_no_trace(exported: InMemorySpanExporter) -> None:
    spans, place = RecordSpans(Stages((EVENT_TOPIC, QUERY_TOPIC)), QUERY_TOPIC), Position(EVENT_TOPIC, 0, 1)
    spans.begin([decode(Record(place, EVENT, 0, b"acme/ann", headers=PARENT, silent=True))], 0.0)
    assert spans.headers(place) == ()
    spans.end_or_park([place])
    assert not exported.get_finished_spans()


ROW = RecalledMemory.model_construct(id="m1")
ANSWERS = {
    "nothing": (Response(query_id="q", status="ok"), 0),
    "recalled": (Response.model_construct(query_id="q", status="ok", memories=[ROW, ROW]), 2),
    "of no memory": (Response.model_construct(query_id="q", status="ok", memories=[]), 0),
    "versions of one": (
        Response.model_construct(query_id="q", status="ok", versions=[{"version": 0}, {"version": 1}]),
        1,
    ),
    "a page": (
        Response.model_construct(
            query_id="q", status="ok", memory_page=MemoryPage.model_construct(memories=[ROW, ROW, ROW])
        ),
        3,
    ),
    "a context": (
        Response.model_construct(query_id="q", status="ok", context=Context.model_construct(relevant_items=[ROW])),
        1,
    ),
}


@pytest.mark.parametrize(("response", "count"), ANSWERS.values(), ids=ANSWERS)
def test_span_counts_memories_of_any_answer(exported: InMemorySpanExporter, response: Response, count: int) -> None:
    spans, place = RecordSpans(Stages((EVENT_TOPIC, QUERY_TOPIC)), QUERY_TOPIC), Position(QUERY_TOPIC, 0, 1)
    spans.begin([decode(Record(place, QUERY, 0, b"acme/ann", headers=PARENT))], 0.0)
    spans.track_output(Answer(place, 0, b"acme/ann", b"{}", response))
    spans.end_or_park([place])
    [span] = exported.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["gen_ai.memory.record.count"] == count
