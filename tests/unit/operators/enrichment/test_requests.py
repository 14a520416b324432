"""Requests to the enrichment flow: for each event, and laws of all of them."""

import math
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recallflow.control import Category, ControlHistory
from recallflow.embedder import Kind, Matrix
from recallflow.events import EnrichmentRequest, content_hash
from recallflow.llm import EmbeddingService
from recallflow.operators.enrichment.requests import EPISODE, MEMORY
from recallflow.operators.rules import EnrichmentTasks
from recallflow.outputs import Output, TaskRequest
from tests.groups import share
from tests.unit.operators.harness import HOUR_MS, MEMORIES, Harness

ALL = EnrichmentTasks(relationships=True, facts=True, categories=True, summaries=True)
UPDATE = {"type": "memory.update", "tenant_id": "acme", "user_id": "ann"}
LONG = "My sister Ana visits us in Lisbon on Friday."


def requests(outputs: Iterable[Output]) -> list[EnrichmentRequest]:
    found = [output for output in outputs if isinstance(output, TaskRequest)]
    parsed = [EnrichmentRequest.model_validate_json(output.body) for output in found]
    assert [tuple(one.tasks) for one in parsed] == [output.tasks for output in found]
    return parsed


def message(number: int, content: str | None = LONG, **fields: Any) -> dict[str, Any]:
    known = {"type": "message", "id": f"m{number}", "tenant_id": "acme", "user_id": "ann", "session_id": "s"}
    return {**known, "role": "user", "timestamp": 1_700_000_000_000 + number, "content": content, **fields}


def memory(number: int, content: str = LONG, **fields: Any) -> dict[str, Any]:
    known = {"type": "memory", "id": f"m{number}", "tenant_id": "acme", "user_id": "ann", "session_id": "s"}
    return {**known, "timestamp": 1_700_000_000_000 + number, "content": content, **fields}


@pytest.fixture
def make(open_harness: Callable[..., Harness]) -> Callable[..., Harness]:
    return lambda wanted=ALL, **rules: open_harness(rules={"enrichment": wanted, **rules})


def test_request_contains_the_preceding_messages(make: Callable[..., Harness]) -> None:
    engine = make()
    engine.run(MEMORIES, message(0, "Hello!"), message(1, "Who is there?", role="assistant"))
    (output,) = (one for one in engine.run(MEMORIES, message(2)) if isinstance(one, TaskRequest))
    assert (output.number, output.key, str(output.position)) == (MEMORY, b"acme/ann", "memories:0:2")
    (request,) = requests([output])
    assert request.tasks == ["extract", "facts"]
    assert (request.tenant_id, request.user_id, request.session_id) == ("acme", "ann", "s")
    assert (request.source, request.timestamp) == ("memories:0:2", 2)
    (own,) = request.memories
    assert (own.memory_id, own.content, own.content_hash) == ("m2", LONG, content_hash(LONG))
    assert (own.kind, own.role, own.created_at) == ("message", "user", 1_700_000_000_002)
    assert [(one.memory_id, one.content) for one in request.recent] == [("m1", "Who is there?"), ("m0", "Hello!")]


@pytest.mark.parametrize(
    ("event", "tasks"),
    [
        (message(0, "I'm vegan"), ["facts"]),  # too short to be read for relations
        (message(0, role="assistant"), ["extract", "facts"]),
        (message(0, role="tool"), ["extract"]),
        (message(0, role="tool", name="Ana"), ["extract", "facts"]),
        (message(0, role="system"), ["extract"]),
        (memory(0), ["extract"]),
        (message(0, " "), []),
        (message(0, None, role="assistant"), []),
        (memory(0, derived_from={"memory_id": "x", "content_hash": "0" * 64}), []),
    ],
)
def test_tasks_requested_for_each_event(make: Callable[..., Harness], event: dict[str, Any], tasks: list[str]) -> None:
    assert [task for request in requests(make().run(MEMORIES, event)) for task in request.tasks] == tasks


def test_disabled_tasks_are_not_requested(make: Callable[..., Harness]) -> None:
    assert requests(make(None).run(MEMORIES, message(0))) == []
    assert requests(make(EnrichmentTasks(summaries=True)).run(MEMORIES, message(0))) == []
    (request,) = requests(make(EnrichmentTasks(facts=True)).run(MEMORIES, message(0)))
    assert request.tasks == ["facts"]


def test_an_update_asks_where_the_text_is_another(make: Callable[..., Harness]) -> None:
    engine = make()
    engine.run(MEMORIES, message(0))
    update = {**UPDATE, "memory_id": "m0"}
    assert requests(engine.run(MEMORIES, {**update, "category": "family"})) == []
    assert requests(engine.run(MEMORIES, {**update, "content": LONG})) == []
    (request,) = requests(engine.run(MEMORIES, {**update, "content": LONG.upper()}))
    assert (request.tasks, request.memories[0].content) == (["extract", "facts"], LONG.upper())
    assert request.recent == []


def test_uncategorised_memory_requests_a_category_if_any_exist(make: Callable[..., Harness]) -> None:
    decisions = ControlHistory()
    for at_ms, name, removed in ((1, "family", False), (3, "family", True)):
        event = Category(type="category", tenant_id="acme", name=name, description="Kin.", removed=removed)
        decisions.add(at_ms, event)
    engine = make(EnrichmentTasks(categories=True), decisions=decisions)
    found = [
        requests(engine.run(MEMORIES, event)) for event in (memory(0), memory(1), memory(2, category="x"), memory(3))
    ]
    assert [[one.tasks for one in each] for each in found] == [[], [["categorise"]], [], []]


def test_a_repeated_event_and_a_silent_one_ask_for_nothing(make: Callable[..., Harness]) -> None:
    engine = make()
    assert requests(engine.run(MEMORIES, message(0), silent=True)) == []
    assert requests(engine.run(MEMORIES, message(0))) == []
    assert len(requests(engine.run(MEMORIES, message(1)))) == 1


def test_stored_request_is_not_emitted_without_a_reader(make: Callable[..., Harness]) -> None:
    engine = make()
    engine.run(MEMORIES, message(0))
    engine.restart(enrichment=None)
    engine.rewind(MEMORIES)
    assert requests(engine.read(MEMORIES)) == []


def test_requests_are_no_part_of_the_state(make: Callable[..., Harness]) -> None:
    on, off = make(), make(None)
    for engine in (on, off):
        engine.run(MEMORIES, *(message(number, f"{LONG} {number}") for number in range(5)))
    assert on.hash() == off.hash()


def test_failed_request_code_keeps_the_memory(make: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    monkeypatch.setattr("recallflow.operators.writes.requests", lambda *_: 1 / 0)
    assert requests(engine.run(MEMORIES, message(0))) == []
    monkeypatch.undo()
    (request,) = requests(engine.run(MEMORIES, message(1)))
    assert [one.memory_id for one in request.recent] == ["m0"]


def test_facts_about_the_user_compare_common_words_first(make: Callable[..., Harness]) -> None:
    engine = make(ALL._replace(by_meaning=False))
    engine.run(MEMORIES, memory(0, "User lives in Lisbon"), memory(1, "User likes green tea"), memory(2, "It rains"))
    (request,) = requests(engine.run(MEMORIES, memory(3, "User moved out, and lives in Porto")))
    assert [one.memory_id for one in request.similar] == ["m0", "m1"]


def test_facts_of_other_speakers_are_not_compared(make: Callable[..., Harness]) -> None:
    engine = make(ALL._replace(by_meaning=False))
    engine.run(MEMORIES, message(0, "i love hiking in the hills", name="Ben"))
    (request,) = requests(engine.run(MEMORIES, message(1, "i love hiking in the hills too", name="Cleo")))
    assert "classify" not in request.tasks
    (request,) = requests(engine.run(MEMORIES, message(2, "i hate hiking in the hills", name="Ben")))
    assert [one.memory_id for one in request.similar] == ["m0"]


class AngleEmbedder:
    """A text's vector lies at the angle that it tells."""

    name, dimension = "angles", 8
    kind: Kind = "contextual"

    def embed(self, texts: Sequence[str]) -> Matrix:
        angles = [math.radians(int(number[0])) if (number := re.findall(r"\d+", text)) else 0.0 for text in texts]
        return np.array([[math.cos(one), math.sin(one), *[0] * 6] for one in angles], np.float32)


def test_ambiguous_memories_are_compared_closest_first(tmp_path: Path) -> None:
    engine = Harness(
        tmp_path / "s", AngleEmbedder(), rules={"enrichment": EnrichmentTasks(relationships=True, min_chars=99)}
    )
    engine.run(MEMORIES, *(memory(angle, f"{angle} degrees") for angle in (3, 20, 26, 30, 45, 46, 90)))
    (request,) = requests(engine.run(MEMORIES, memory(0, "0 degrees")))
    assert request.tasks == ["classify"]
    expected = {f"m{angle}": round(math.cos(math.radians(angle)), 4) for angle in (26, 30, 45)}
    assert {one.memory_id: one.similarity for one in request.similar} == pytest.approx(expected)
    assert [one.memory_id for one in request.similar] == ["m26", "m30", "m45"]
    engine.stop()


def test_derived_memory_requests_only_classification(make: Callable[..., Harness]) -> None:
    engine = make(ALL._replace(by_meaning=False))
    engine.run(MEMORIES, message(9), memory(0, "The user lives in Lisbon with Ana"))
    derived = {"memory_id": "m9", "content_hash": content_hash(LONG)}
    (request,) = requests(engine.run(MEMORIES, memory(1, "The user lives in Porto with Ana", derived_from=derived)))
    assert (request.tasks, request.memories[0].derived_from) == (["classify"], "m9")
    assert (request.recent, request.entities) == ([], [])
    (request,) = requests(engine.run(MEMORIES, memory(2, "The user lives in Braga with Ana", derived_from=derived)))
    assert [one.memory_id for one in request.similar] == ["m0"]
    (request,) = requests(engine.run(MEMORIES, {**UPDATE, "memory_id": "m1", "content": "The user lives in Faro"}))
    assert request.tasks == ["classify"]


def test_new_name_within_a_known_one_is_requested_once(make: Callable[..., Harness]) -> None:
    engine = make(EnrichmentTasks(relationships=True))
    engine.run(MEMORIES, memory(0, "It rained. My neighbour Ana García paints. She is nice."))
    (request,) = requests(engine.run(MEMORIES, message(1, "Yesterday Ana came to see us in Braga")))
    assert "resolve" in request.tasks
    (known,) = request.entities
    assert (known.key, known.name) == ("entity:ana garcía", "Ana García")
    assert known.told_by == "My neighbour Ana García paints."
    (request,) = requests(engine.run(MEMORIES, message(2, "Yesterday Ana came to see us in Braga")))
    assert "resolve" not in request.tasks
    assert {one.name for one in request.entities} == {"Ana", "Braga"}


SUMMARIES = EnrichmentTasks(summaries=True)


def test_an_episode_is_summed_up_when_the_next_one_begins(make: Callable[..., Harness]) -> None:
    engine = make(SUMMARIES)
    assert requests(engine.run(MEMORIES, message(0, "Hello!"), message(1, "Hi, Ann!"), message(2, ""))) == []
    (output,) = (one for one in engine.run(MEMORIES, message(HOUR_MS)) if isinstance(one, TaskRequest))
    assert output.number == EPISODE
    (request,) = requests([output])
    assert request.tasks == ["summarise_episode"]
    assert [one.content for one in request.memories] == ["Hello!", "Hi, Ann!"]
    assert (request.session_id, request.source) == ("s", "memories:0:3")
    assert request.episode_id is not None
    assert request.episode_id.startswith("ep_")


def test_an_episode_that_is_ended_is_summed_up_once(make: Callable[..., Harness]) -> None:
    engine = make(SUMMARIES)
    end = {"type": "episode.end", "tenant_id": "acme", "user_id": "ann", "session_id": "s"}
    engine.run(MEMORIES, message(0), message(1))
    (request,) = requests(engine.run(MEMORIES, {**end, "timestamp": message(2)["timestamp"]}))
    assert [one.memory_id for one in request.memories] == ["m0", "m1"]
    assert requests(engine.run(MEMORIES, {**end, "timestamp": message(3)["timestamp"]})) == []
    assert requests(engine.run(MEMORIES, message(HOUR_MS), message(HOUR_MS + 1, session_id="other"))) == []


def test_long_episode_summary_reads_the_newest_messages(make: Callable[..., Harness]) -> None:
    engine = make(SUMMARIES)
    engine.run(MEMORIES, *(message(number, f"{number} " * 1_000) for number in range(60)))
    (request,) = requests(engine.run(MEMORIES, message(HOUR_MS)))
    numbers = [int(one.memory_id[1:]) for one in request.memories]
    assert numbers == [*range(60 - len(numbers), 60)]
    assert sum(len(one.content) for one in request.memories) <= 20_000
    engine.run(MEMORIES, *(message(2 * HOUR_MS + number, f"{number}") for number in range(60)))
    (request,) = requests(engine.run(MEMORIES, message(3 * HOUR_MS)))
    assert [one.content for one in request.memories] == [str(number) for number in range(10, 60)]


def test_a_category_is_summed_up_as_it_grows(make: Callable[..., Harness]) -> None:
    engine = make(SUMMARIES)
    summary = {"type": "category.summary", "tenant_id": "acme", "user_id": "ann", "category": "food"}
    grown: list[int] = []
    for number in range(200):
        event = memory(number, f"Fact {number}", category="food" if number != 3 else None)
        if number == 3:
            engine.run(MEMORIES, event)
            event = {**UPDATE, "memory_id": "m3", "category": "food"}
        for request in requests(engine.run(MEMORIES, event)):
            assert (request.tasks, request.category) == (["summarise_category"], "food")
            assert [one.memory_id for one in request.memories] == [f"m{n}" for n in range(number, -1, -1)][:40]
            assert request.summary == (f"Food, {len(grown)}" if grown else None)
            grown.append(number + 1)
            engine.run(MEMORIES, {**summary, "summary": f"Food, {len(grown)}"})
    assert grown[:4] == [5, 10, 20, 40]
    assert 1 <= len(grown[4:]) <= 12


class RemoteAngles(AngleEmbedder):
    service: EmbeddingService = Mock(spec=EmbeddingService)  # nobody asks it here


def test_comparison_waits_for_late_vectors(tmp_path: Path) -> None:
    wanted = EnrichmentTasks(embed=True, relationships=True, facts=True, min_chars=99)
    engine = Harness(tmp_path / "s", RemoteAngles(), rules={"enrichment": wanted})

    def embed(angle: int) -> dict[str, Any]:
        (vector,) = AngleEmbedder().embed([str(angle)])
        known = {"type": "memory.embedding", "tenant_id": "acme", "user_id": "ann", "model": "angles"}
        content = f"{angle} degrees"
        return {**known, "memory_id": f"m{angle}", "embedding": vector.tolist(), "content_hash": content_hash(content)}

    for angle in (0, 30):
        (request,) = requests(engine.run(MEMORIES, message(angle, f"{angle} degrees")))
        assert (request.tasks, request.text) == (["embed", "facts"], f"user: {angle} degrees")
    assert requests(engine.run(MEMORIES, embed(0))) == []
    (request,) = requests(engine.run(MEMORIES, embed(30)))
    assert request.tasks == ["classify"]
    assert [one.memory_id for one in (*request.memories, *request.similar)] == ["m30", "m0"]
    assert requests(engine.run(MEMORIES, embed(30))) == []
    (request,) = requests(engine.run(MEMORIES, memory(1, "29", embedding=[1.0, *[0.0] * 7])))
    assert request.tasks == ["classify"]
    engine.stop()


ALL_TASKS = EnrichmentTasks(embed=True, by_meaning=False, relationships=True, facts=True, summaries=True, min_chars=0)
OWNERS = ("ann", "bob")
WORDS = st.sampled_from([
    "Ana", "Ana García", "tea", "likes", "Lisbon", "moved to", ". ", "\n", "\x01", "日本", "🙂", "@", "x" * 3_000,
    f"urn:a:{'y' * 600}", "urn:a:\x01b",
])  # fmt: skip
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
NAMES = st.sampled_from(["Ana", "Ben", "x" * 512])


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    for number in range(draw(st.integers(1, 12))):
        owner = draw(st.sampled_from(OWNERS))
        kind = draw(st.sampled_from(["message", "memory", "memory.update", "memory.forget", "episode.end"]))
        event: dict[str, Any] = {"type": kind, "tenant_id": "acme", "user_id": owner, "session_id": "s"}
        event["timestamp"] = draw(st.sampled_from([5, 1_700_000_000_000, 1_700_000_000_000 + number * 3_600_000]))
        text = f"{draw(TEXTS)} of-{owner}"
        match kind:
            case "message":
                event |= {"role": draw(st.sampled_from(["user", "assistant", "tool"])), "id": f"{owner}{number}"}
                event |= {"content": text, "name": draw(NAMES)}
            case "memory":
                entities = [{"name": draw(NAMES), "type": draw(NAMES)}]
                event |= {"id": f"{owner}{number}", "content": text, "category": draw(NAMES), "entities": entities}
            case "memory.update":
                event |= {"memory_id": f"{owner}{draw(st.integers(0, number))}", "content": text}
            case "memory.forget":
                event |= {"memory_id": f"{owner}{draw(st.integers(0, number))}"}
        made.append(event)
    return made


def requested(outputs: Iterable[Output]) -> list[TaskRequest]:
    return [output for output in outputs if isinstance(output, TaskRequest)]


@given(events())
@settings(max_examples=share(0.5), phases=(Phase.explicit, Phase.generate))
def test_requests_are_valid_bounded_owned_and_reproducible(told: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        warm, cold = (Harness(Path(folder) / name, rules={"enrichment": ALL_TASKS}) for name in ("warm", "cold"))
        at_once = requested(warm.run(MEMORIES, *told))
        one_by_one: list[TaskRequest] = []
        for number, event in enumerate(told):
            one_by_one += requested(cold.run(MEMORIES, event))
            if number == len(told) // 2:
                cold.restart()
        assert one_by_one == at_once
        assert len({(one.position, one.number) for one in at_once}) == len(at_once)
        for one in at_once:
            check(one.body, told[one.position.offset])
        for engine in (warm, cold):
            engine.stop()


def check(body: bytes, event: dict[str, Any]) -> None:
    """Nothing of another owner's, hashes of whole texts, and bounded sizes."""
    request = EnrichmentRequest.model_validate_json(body)
    (other,) = {*OWNERS} - {event["user_id"]}
    assert request.user_id == event["user_id"]
    assert f"of-{other}" not in body.decode()
    if event["type"] in ("message", "memory") and request.tasks[0].startswith(("embed", "facts")):
        assert request.memories[0].content_hash == content_hash(event["content"])
    most = 50 if "summarise_episode" in request.tasks else 40 if "summarise_category" in request.tasks else 1
    assert 1 <= len(request.memories) <= most
    assert all(len(one.content) <= 8_000 for one in request.memories)
    assert len(request.similar) <= 10
    assert len(request.recent) <= 20
    assert all(len(one.content) <= 2_000 for one in (*request.similar, *request.recent))
    assert len(request.entities) <= 20
    assert all(len(one.told_by or "") <= 300 for one in request.entities)
    assert len((request.text or "").encode()) <= 8_000
    about = {one.memory_id for one in request.memories}
    assert about.isdisjoint(one.memory_id for one in (*request.similar, *request.recent))
