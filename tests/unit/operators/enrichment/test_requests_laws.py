"""Laws of all requests, for any events."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recallflow.events import EnrichmentRequest, content_hash
from recallflow.operators.rules import EnrichmentTasks
from recallflow.outputs import Output, Requested
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, Harness

ALL = EnrichmentTasks(embed=True, by_meaning=False, relationships=True, facts=True, summaries=True, min_chars=0)
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


def requested(outputs: Iterable[Output]) -> list[Requested]:
    return [output for output in outputs if isinstance(output, Requested)]


@given(events())
@settings(max_examples=share(0.5), phases=(Phase.explicit, Phase.generate))
def test_requests_are_valid_bounded_owned_and_reproducible(told: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        warm, cold = (Harness(Path(folder) / name, rules={"wanted": ALL}) for name in ("warm", "cold"))
        at_once = requested(warm.run(MEMORIES, *told))
        one_by_one: list[Requested] = []
        for number, event in enumerate(told):
            one_by_one += requested(cold.run(MEMORIES, event))
            if number == len(told) // 2:
                cold.restart()
        assert one_by_one == at_once
        assert len({(one.position, one.number) for one in at_once}) == len(at_once)
        for one in at_once:
            check(orjson.loads(one.body), told[one.position.offset])
            check_sizes(EnrichmentRequest.model_validate_json(one.body))
        for engine in (warm, cold):
            engine.stop()


def check(request: dict[str, Any], event: dict[str, Any]) -> None:
    """Nothing of another owner's, and hashes of whole texts."""
    (other,) = {*OWNERS} - {event["user_id"]}
    assert request["user_id"] == event["user_id"]
    assert f"of-{other}" not in orjson.dumps(request).decode()
    if event["type"] in ("message", "memory") and request["tasks"][0].startswith(("embed", "facts")):
        assert request["memories"][0]["content_hash"] == content_hash(event["content"])


def check_sizes(request: EnrichmentRequest) -> None:
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
