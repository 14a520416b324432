"""Models behind real HTTP in the flows: enrichment, embedding, reembed and the page about models."""

import contextlib
import re
import shlex
import signal
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from recallflow.client import QueryTimeout, RecallClient
from recallflow.connectors.kafka.messages import NUMBER_HEADER, SOURCE_HEADER
from recallflow.events import content_hash
from recallflow.flows.reembed import FLUSH_TEXTS
from recallflow.flows.settings import TopicNames
from recallflow.operators.enrichment.prompt_frame import DATA, DATA_END
from recallflow.state.trace_search import Findings, Pieces, RecordFilter, search_folder
from tests.fleet.engine import SHORT_SESSION
from tests.kafka.harness import (
    FLOW_FLAGS,
    Command,
    Deployment,
    Names,
    OnTopics,
    Start,
    enriched_topics,
    own_topics,
    produce,
    read_topic,
    until,
)
from tests.llm_server import Asked, Fault, LlmServer
from tests.process import Process
from tests.process import command as finished
from tools.broker import Cluster

PARTITIONS = 2
CAPACITY = 20


@dataclass
class Enrichment(OnTopics):
    state_dir: Path
    settings: dict[str, str]

    def words(self, *more: str) -> list[str]:
        where = ["--state-dir", str(self.state_dir), *self.options(FLOW_FLAGS["enrich"])]
        return ["enrich", *where, "--sync-ms", "50", *SHORT_SESSION, *more]

    def process(self, *more: str) -> Process:
        return Process(self.state_dir.with_suffix(".log"), *self.words(*more), environment=self.settings)

    def running(self, *more: str) -> contextlib.AbstractContextManager[Process]:
        return self.command(self.state_dir.parent, *self.words(*more), environment=self.settings)

    def request(self, count: int, begin: int = 0, **fields: Any) -> None:
        requests: list[dict[str, Any]] = []
        for number in range(begin, begin + count):
            user = f"u{number % 5}"
            content = f"I moved to town {number}"
            memory: dict[str, Any] = {
                "memory_id": f"m{number}", "content": content, "content_hash": content_hash(content),
            }  # fmt: skip
            memory |= {"kind": "message", "role": "user", "created_at": number}
            request: dict[str, Any] = {
                "type": "enrichment.request", "tenant_id": "acme", "user_id": user, "tasks": ["facts"],
            }  # fmt: skip
            request |= {"source": f"memory.events:0:{number}", "memories": [memory]} | fields
            requests.append(request)
        produce(self.broker, self.topics.enrichment, *requests)

    def results(self) -> list[dict[str, Any]]:
        return self.read(self.topics.results)

    def events(self) -> list[dict[str, Any]]:
        return [event for event in self.read(self.topics.memory) if event["type"] != "message"]

    def check_once(self, count: int) -> None:
        until(lambda: len(self.results()) >= count)
        assert Counter(result["memory_id"] for result in self.results()) == Counter(f"m{n}" for n in range(count))
        wanted = sum(len(result["events"]) for result in self.results())
        until(lambda: len(self.events()) >= wanted)
        assert wanted >= count
        assert [*Counter(event["id"] for event in self.events()).values()] == [1] * wanted
        headers = [dict(message.headers() or ()) for message in read_topic(self.broker, self.topics.memory)]
        identities = Counter((one[SOURCE_HEADER], one[NUMBER_HEADER]) for one in headers if SOURCE_HEADER in one)
        assert [*identities.values()] == [1] * wanted


def data(asked: Asked) -> Any:
    return orjson.loads(asked.user.partition(DATA)[2].partition(DATA_END)[0])


def facts(asked: Asked) -> dict[str, Any]:
    empty: dict[str, Any] = {"entities": [], "valid_from": None, "valid_to": None}
    found = [
        {"message": one["number"], "content": one["text"], "kind": "fact", "confidence": 0.9, "evidence": one["text"]}
        for one in data(asked)["messages"]
    ]
    return {"facts": [one | empty for one in found]}


def settings(llm_server: LlmServer) -> dict[str, str]:
    return {
        "RECALLFLOW_LLM_MODEL": "judge", "RECALLFLOW_LLM_BASE_URL": llm_server.url,
        "RECALLFLOW_ENRICHMENT_BATCH_WAIT_MS": "0", "RECALLFLOW_ENRICHMENT_BATCH_SIZE": "1",
        "RECALLFLOW_LLM_CAPACITY": str(CAPACITY),
    }  # fmt: skip


@pytest.fixture
def enrichment(broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer) -> Enrichment:
    llm_server.answer("facts", facts)
    return Enrichment(broker, enriched_topics(broker, topics), tmp_path / "enrich", settings(llm_server))


def empty(broker: Cluster, topic: str) -> None:
    """Remove all records of a topic, as retention does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, n, OFFSET_END) for n in range(PARTITIONS)]).values():
        future.result()


def test_open_requests_are_asked_again_unless_retention_took_them(
    broker: Cluster, enrichment: Enrichment, llm_server: LlmServer
) -> None:
    """No file names a user or holds a text while calls are under way, and a stop does not wait for them."""
    enrichment.request(10)
    llm_server.fail("hang", times=None)
    with enrichment.process() as process:
        process.start()
        llm_server.wait_for(lambda now: now.held == 10)
    findings, texts = Findings(), Pieces([b"I moved to town", b"user_id", b'"acme"', b"acme/u"])
    search_folder(enrichment.state_dir, texts, RecordFilter(), findings)
    assert findings.sizes
    assert findings.conclusive() == {}
    llm_server.heal()
    with enrichment.running():
        enrichment.check_once(10)
    times_asked = Counter(one["text"] for asked in llm_server.requests for one in data(asked)["messages"])
    assert {*times_asked.values()} == {2}
    llm_server.fail("hang", times=None)
    enrichment.request(5, begin=10)
    with enrichment.running():
        llm_server.wait_for(lambda now: now.held == 5)
    llm_server.heal()
    empty(broker, enrichment.topics.enrichment)
    enrichment.request(1, begin=15)
    refused = enrichment.process().ends()
    assert (refused.code, "--give-up-unanswered" in refused.said) == (1, True), refused
    with enrichment.running("--give-up-unanswered"):
        until(lambda: len(enrichment.results()) == 11)
    assert "m15" in [result["memory_id"] for result in enrichment.results()]


def test_kills_of_both_flows_change_nothing(
    broker: Cluster, topics: Names, tmp_path: Path, llm_server: LlmServer
) -> None:
    """Queries are answered while all calls hang; then both processes die."""
    own = replace(own_topics(topics), enrichment=topics("enrichment"), results=topics("results"))
    broker.create_topics(dict.fromkeys((*own.read_topics(), *own.outputs(), own.enrichment, own.results), PARTITIONS))
    main = Deployment(broker, own, tmp_path / "run", flags=("--enrich-facts", "--enrichment-topic", own.enrichment))
    enrichment = Enrichment(broker, own, tmp_path / "enrich", settings(llm_server))
    llm_server.answer("facts", facts)
    llm_server.fail("hang", times=None)
    for number in range(40):
        message = {"type": "message", "id": f"m{number}", "tenant_id": "acme", "user_id": f"u{number % 5}"}
        content = f"I moved to town {number}"
        produce(broker, own.memory, message | {"content": content})

    def ask(number: int) -> None:
        query = {"type": "recall", "id": f"q{number}", "tenant_id": "acme", "user_id": "u1", "k": 50}
        produce(broker, own.queries, query | {"query": "Where did I move?"})

    def answers() -> list[dict[str, Any]]:
        return enrichment.read(own.responses)

    with main.start(), enrichment.process() as enrich:
        enrich.start()
        llm_server.wait_for(lambda now: now.held == CAPACITY)
        for number in range(5):
            ask(number)
        until(lambda: len(answers()) >= 5)
    llm_server.heal()
    with main.running(), enrichment.running():
        enrichment.check_once(40)
        asked = 5
        while not any(memory["kind"] == "fact" for memory in answers()[-1]["memories"]):
            ask(asked)
            asked += 1
            until(lambda count=asked: len(answers()) == count)  # type: ignore[misc]
    assert [*Counter(answer["query_id"] for answer in answers()).values()] == [1] * asked


NINE_FERRY, BIKE = "The ferry to Porto leaves at nine", "Bo sold his red bike"


@pytest.fixture
def memory(broker: Cluster, topics: Names) -> str:
    broker.create_topics({topics("memory.events"): 2, topics("control.events"): 1})
    return topics("memory.events")


@pytest.fixture
def reembed(broker: Cluster, memory: str, topics: Names, llm_server: LlmServer) -> list[str]:
    model = ["--embedder", "openai", "--embedding-model", "e-1", "--embedding-dimension", "64"]
    return ["reembed", *model, "--embedding-url", llm_server.url, "--memory-topic", memory,
            "--control-topic", topics("control.events"), "--bootstrap-servers", broker.bootstrap_servers]  # fmt: skip


def notes(count: int) -> list[dict[str, Any]]:
    return [{"type": "memory", "id": f"m{n}", "content": f"Note {n}"} for n in range(count)]


def vectors(broker: Cluster, topic: str) -> list[dict[str, Any]]:
    events = [orjson.loads(message.value()) for message in read_topic(broker, topic)]
    return [event for event in events if event["type"] == "memory.embedding"]


def test_each_current_text_gets_one_vector(
    command: Command, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    produce(
        broker,
        memory,
        {"type": "message", "id": "a", "name": "Ann", "content": NINE_FERRY, "session_id": "s"},
        {"type": "memory", "id": "b", "content": "An earlier text"},
        {"type": "memory.update", "memory_id": "b", "content": BIKE},
        {"type": "memory", "id": "c", "content": "Forgotten"},
        {"type": "memory.forget", "memory_id": "c"},
        {"type": "memory", "id": "d", "content": "Of a category", "category": "gone"},
        {"type": "memory.forget", "filter": {"category": "gone"}},
        {"type": "memory", "id": "e", "content": "Has its vector", "embedding": [1.0] + [0.0] * 63},
        {"type": "memory", "id": "f", "content": "Another's vector", "embedding": [1.0, 0.0]},
        {"type": "memory", "id": "h", "content": "Of another", "user_id": "cy", "environment": "test"},
        {"type": "memory.embedding", "memory_id": "a", "embedding": [1.0, 0.0], "model": "other",
         "content_hash": content_hash(NINE_FERRY)},
    )  # fmt: skip
    for mode, texts in (("required", 0), ("auto", 3)):  # an engine that requires credentials refuses these events
        monkeypatch.setenv("RECALLFLOW_AUTH_MODE", mode)
        dry = command(*reembed, "--dry-run", "--price-per-million", "2")
        assert dry.returncode == 0, dry.stderr
        assert dry.stdout.startswith(f"{texts} texts")
    unconfirmed = command(*reembed)
    assert (unconfirmed.returncode, llm_server.requests) == (2, [])
    done = command(*reembed, "--yes")
    assert done.returncode == 0, done.stderr
    asked = sorted(text for asked in llm_server.requests for text in asked.texts)
    assert asked == [f"Ann: {NINE_FERRY}", BIKE, "Of another"]
    found = {event["memory_id"]: event for event in vectors(broker, memory) if event["model"] == "e-1"}
    assert {name: event["content_hash"] for name, event in found.items()} == {
        "a": content_hash(NINE_FERRY), "b": content_hash(BIKE), "h": content_hash("Of another")
    }  # fmt: skip
    assert (found["h"]["user_id"], found["h"]["environment"]) == ("cy", "test")
    assert all(len(event["embedding"]) == 64 for event in found.values())
    assert command(*reembed, "--yes").stdout.startswith("0 texts")
    produce(broker, memory, {"type": "memory.update", "memory_id": "b", "content": "A third text"})
    assert command(*reembed, "--dry-run").stdout.startswith("1 texts")


def test_a_killed_run_continues_without_repeated_vectors(
    command: Command, start: Start, broker: Cluster, memory: str, reembed: list[str], llm_server: LlmServer
) -> None:
    count = 3 * FLUSH_TEXTS
    produce(broker, memory, *notes(count))
    llm_server.fail(Fault("delay"), times=4)
    llm_server.fail("hang", times=None)
    process = start(*reembed, "--yes")
    llm_server.wait_for(lambda now: now.held == 4)
    process.send_signal(signal.SIGKILL)
    assert (process.wait(), len(vectors(broker, memory))) == (-signal.SIGKILL, FLUSH_TEXTS)
    llm_server.heal()
    done = command(*reembed, "--yes")
    assert done.returncode == 0, done.stderr
    each = Counter(event["memory_id"] for event in vectors(broker, memory))
    assert each == dict.fromkeys((f"m{n}" for n in range(count)), 1)
    paid = Counter(text for asked in llm_server.requests for text in asked.texts)
    assert sum(paid.values()) - count <= FLUSH_TEXTS


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "models.md").read_text()
PROBE_S = 1.0


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def own(topics: Names) -> TopicNames:
    named: dict[str, Any] = {
        name: topics(value) for name, value in asdict(TopicNames()).items() if isinstance(value, str)
    }
    return TopicNames(**named)


def test_first_run_of_the_page_finds_facts(
    broker: Cluster, llm_server: LlmServer, own: TopicNames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work in a folder with the package, as in a checkout, and the settings of the page."""
    # The whole package: Python prefers a folder of this name with the samples alone to an editable installation.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recallflow").symlink_to(ROOT / "recallflow", target_is_directory=True)
    shown = block("toml").replace("localhost:9092", broker.bootstrap_servers)
    chosen = re.sub(r'^# base_url = ".*?"', f'base_url = "{llm_server.url}"', shown, flags=re.MULTILINE)
    named = "".join(f'{name} = "{value}"\n' for name, value in asdict(own).items() if isinstance(value, str))
    (tmp_path / "recallflow.toml").write_text(f"{chosen}\n[topics]\n{named}")
    monkeypatch.setenv("RECALLFLOW_LLM_KEY", "secret")
    monkeypatch.setenv("RECALLFLOW_CONFIG", "recallflow.toml")
    llm_server.answer("facts", facts)
    commands = [shlex.split(line)[1:] for line in block("sh").splitlines() if line.startswith("recallflow ")]
    create, run, enrich, replay = ([word for word in words if word != "&"] for words in commands)
    assert (made := finished(*create)).code == 0, made
    flows = [Process(tmp_path / f"{words[0]}.log", *words) for words in (run, enrich)]
    where: dict[str, Any] = {"memory_topic": own.memory, "query_topic": own.queries, "response_topic": own.responses}

    def found() -> bool:
        with RecallClient(broker.bootstrap_servers, tenant="demo", timeout_s=PROBE_S, **where) as client:
            try:
                memories = client.search("When is the launch?", user="team-atlas")
            except QueryTimeout:
                return False
        return any(memory.kind == "fact" and memory.derived_from is not None for memory in memories)

    with flows[0], flows[1]:
        for flow in flows:
            flow.start()
        assert "205 events sent" in finished(*replay).out
        until(found)
        script = block("python").replace("localhost:9092", broker.bootstrap_servers)
        script, put = re.subn('tenant="demo"', lambda said: f"{said[0]}, **{where!r}", script)
        assert put == 1
        assert re.search(r"^fact .*launch.* \{'memory_id': 'atlas-", finished(script=script).out, re.MULTILINE)
        assert {asked.headers["authorization"] for asked in llm_server.requests} == {"Bearer secret"}
        assert [flow.stop().code for flow in flows] == [0, 0]
