"""A sender limited to projects gets answers as if nothing else were remembered."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.control import ControlHistory, Rollout
from recallflow.events import content_hash
from recallflow.operators.graph.write import Similarity
from recallflow.operators.recall import moment
from recallflow.outputs import Output
from recallflow.records import Principal
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, MINUTE_MS, QUERIES, Harness, answers, letters, receipts

Event = dict[str, Any]

EVERYTHING, NOTHING = Principal("ops"), Principal("nobody", ())
OF_P, OF_Q = Principal("of-p", ("p",)), Principal("of-q", ("q",))
SECRET = "zyxq"  # in every text, id and name of what is not of the project p
WORDS = [
    "Red bikes are fast", "Sometimes Bo rides a bike to work", "Is tea with milk fine?",
    "Ana Cruz grows tea in Porto",
]  # fmt: skip
SIMILAR = Similarity(max_k=100, max_per_memory=100)  # few links are kept: how many, all projects share


def rules() -> dict[str, Any]:
    decisions = ControlHistory()
    decisions.add(0, Rollout(type="graph.rollout", tenant_id="acme", name="default", mode="canary"))
    return {"decisions": decisions, "similarity": SIMILAR}


class Story(Harness):
    """An owner's events, one after the other, each with a sender."""

    def tell(self, event: Event, sender: Principal = EVERYTHING, append_ms: int = 0) -> list[Output]:
        topic = QUERIES if event["type"] in ASKS else MEMORIES
        owned = {"tenant_id": "acme", "user_id": "ann", "timestamp": 0} | event
        outputs = self.run(topic, owned, principal=sender, append_ms=append_ms)
        return outputs + self.advance_to_end()

    def ask(self, event: Event, sender: Principal) -> Event:
        (answer,) = answers(self.tell(event, sender))
        return answer


ASKS = {
    "recall", "memory.get", "memory.history", "memories.list", "episodes.list", "user.stats", "graph.status",
    "graph.trace", "graph.explore", "graph.facts",
}  # fmt: skip


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "state", rules=rules())


def memory(project: str | None, number: int, **fields: Any) -> Event:
    """A memory of a project; all its names contain the secret unless the project is p."""
    mark = "" if project == "p" else SECRET
    return {
        "type": "memory", "id": f"{mark}{project}{number}",
        "project_id": project if project in ("p", None) else f"{mark}{project}",
        "content": f"{WORDS[number % len(WORDS)]}{mark and ' ' + mark}",
    } | fields  # fmt: skip


def marked(text: str, project: str | None) -> str:
    return text if project == "p" else f"{text} {SECRET}"


PROJECTS = st.sampled_from(["p", "p", "q", None])
AT = st.integers(0, 12).map(lambda step: step * 10 * MINUTE_MS)


@st.composite
def told(draw: st.DrawFn) -> tuple[str | None, Event]:
    """An event, and the project it is about."""
    project = draw(PROJECTS)
    mark = "" if project == "p" else SECRET
    memory_id = f"{mark}{draw(st.integers(0, 3))}{project}"
    kind = draw(
        st.sampled_from(
            [*["message", "memory"] * 3, "memory.update", "memory.forget", "memory.feedback", "graph.edges", "summary"]
        )
    )
    about = {"memory_id": memory_id}
    text = marked(draw(st.sampled_from(WORDS)), project)
    other = memory_id if draw(st.booleans()) else f"{SECRET}0q"
    kinds: dict[str, Event] = {
        "message": {"id": memory_id, "content": text, "session_id": draw(st.sampled_from(["s", "t"]))},
        "memory": {
            "id": f"{memory_id}f",
            "content": text,
            "category": draw(st.sampled_from([None, "habits", marked("secrets", project)])),
            "tags": [marked("tag", project)],
            "session_id": draw(st.sampled_from([None, "s"])),
            "layer": draw(st.sampled_from(["rule", "long_term"])),
            "entities": [
                {
                    "name": "Ana Cruz", "type": marked("person", project),
                    "aliases": [marked("Annie", project), *draw(st.permutations(["Nan", "Ani", "Zan"]))],
                },
                {"name": marked("Porto", project), "urn": f"urn:{mark}porto"},
            ],
            "relations": [
                {"source": "Ana Cruz", "type": "lives_in", "target": marked("Porto", project)},
                {
                    "source": "Ana Cruz", "type": "likes", "target": "tea",
                    "properties": {"how": marked("very", project)},
                },
            ],
        },
        "memory.update": about | {"content": text, "importance": 0.9},
        "memory.forget": about,
        "memory.feedback": about | {"useful": True},
        "graph.edges": {
            "edges": [
                {"source": f"{memory_id}f", "target": other, "type": "supersedes", "evidence": marked("so", project)},
                {"source": "entity:Ana Cruz", "target": f"entity:{marked('Porto', project)}", "type": "loves"}
                | {"evidence": memory_id},
            ]
        },
        "summary": {"category": "habits", "summary": f"{SECRET} habits"},
    }  # fmt: skip
    named = {"name": draw(st.sampled_from(["Bo", marked("Ida", project)]))} if kind == "message" else {}
    project_id = project if project in ("p", None) else f"{SECRET}q"
    whole = {"type": "category.summary" if kind == "summary" else kind, "project_id": project_id} | kinds[kind] | named
    is_shared = kind == "summary" or (kind == "graph.edges" and other != memory_id)
    return "q" if is_shared else project, {name: value for name, value in whole.items() if value is not None}


RECALL = {"type": "recall", "query": "Who rides the red bike, Ana Cruz or Bo?", "k": 20}
QUESTIONS: list[Event] = [
    *(RECALL | {"mode": mode} for mode in ("hybrid", "relevance", "recency", "decayed", "balanced")),
    RECALL | {"mode": "entity_focused", "entity_urns": ["Ana Cruz", f"urn:{SECRET}porto", "urn:porto"]},
    RECALL | {"mode": "episode"}, RECALL | {"strategy": "hybrid_graph", "traversal_depth": 3, "k": 1},
    RECALL | {"max_tokens": 2_000, "entity_urns": ["Ana Cruz"]},
    RECALL | {"session_id": "s", "query": f"What is {SECRET}?"},
    RECALL | {"include_history": True, "filters": {"entities": ["Ana Cruz"]}},
    RECALL | {"as_of": {"event_time": 60 * MINUTE_MS}},
    RECALL | {"as_of": {"ingestion_time": 60 * MINUTE_MS}, "max_tokens": 500, "entity_urns": ["Ana Cruz"]},
    RECALL | {"filters": {"categories": ["habits"]}}, RECALL | {"project_id": f"{SECRET}q"},
    {"type": "graph.trace", "query": "Where does Ana Cruz live?", "traversal_depth": 2},
    {"type": "graph.trace", "query": "Where does Ana Cruz live?", "as_of": {"event_time": 60 * MINUTE_MS}},
    {"type": "graph.explore", "hops": 2, "as_of": {"event_time": 60 * MINUTE_MS}},
    {"type": "graph.explore", "hops": 3, "as_of": {"event_time": 30 * MINUTE_MS, "ingestion_time": 60 * MINUTE_MS}},
    {"type": "graph.facts", "entities": ["entity:ana cruz"], "as_of": {"event_time": 30 * MINUTE_MS}},
    {"type": "graph.explore", "hops": 2}, {"type": "memories.list"}, {"type": "memories.list", "limit": 1},
    {"type": "memories.list", "filters": {"entities": ["Ana Cruz"]}, "project_id": "p"},
    {"type": "memories.list", "as_of": {"event_time": 60 * MINUTE_MS}},
    {"type": "memories.list", "limit": 2, "as_of": {"ingestion_time": 60 * MINUTE_MS}},
    {"type": "graph.explore", "whole": True},
    {"type": "graph.explore", "whole": True, "limit": 3, "as_of": {"event_time": 60 * MINUTE_MS}},
    {"type": "graph.explore", "whole": True, "after": "e:"},
    {"type": "graph.explore", "whole": True, "after": "e:", "as_of": {"ingestion_time": 60 * MINUTE_MS}},
    {"type": "graph.explore", "nodes": ["entity:ana cruz"], "hops": 3},
    {"type": "graph.facts", "query": "Where does Ana Cruz live?"},
    {"type": "graph.facts", "entities": ["entity:ana cruz"], "include_history": True}, {"type": "graph.status"},
    {"type": "user.stats"}, {"type": "episodes.list"}, {"type": "memory.get", "memory_id": "0p"},
    {"type": "memory.history", "memory_id": "1pf"}, {"type": "memory.get", "memory_id": f"{SECRET}0q"},
    {"type": "memory.history", "memory_id": f"{SECRET}0q"},
]  # fmt: skip


def compared(answer: Event) -> Event:
    """An answer without positions in the log, which say nothing of a user."""
    return {name: value for name, value in answer.items() if name != "applied"}


@settings(max_examples=share(0.2))
@given(
    events=st.lists(st.tuples(told(), AT), max_size=14), asked_between=st.integers(0, 14),
    at_once=st.sampled_from([2, moment.AT_ONCE]),
)  # fmt: skip
def test_nothing_of_other_projects_is_there(
    events: list[tuple[tuple[str | None, Event], int]], asked_between: int, at_once: int
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(moment, "AT_ONCE", at_once)
        patch.setattr("recallflow.operators.answers.parked_queries.AT_ONCE", at_once)
        every, own = (Story(Path(folder) / name, rules=rules()) for name in ("every", "own"))
        for number, ((project, event), at_ms) in enumerate(events):
            timed = event | {"timestamp": at_ms}
            if number == asked_between:  # its index is built, and has to follow
                every.ask(RECALL | {"timestamp": 0}, OF_P)
                own.ask(RECALL | {"timestamp": 0}, OF_P)
            for one in (every, own) if project == "p" else (every,):
                one.tell(timed, append_ms=number * 10 * MINUTE_MS)
        for number, question in enumerate(QUESTIONS):
            asked = question | {"timestamp": 200 * MINUTE_MS, "id": f"q{number}"}
            answer = every.ask(asked, OF_P)
            assert compared(answer) == compared(own.ask(asked, OF_P)), question
            if SECRET not in str(question):
                assert SECRET not in orjson.dumps(answer).decode(), question
        every.stop()
        own.stop()


def test_sender_without_projects_reads_nothing(story: Story) -> None:
    story.tell(memory("p", 0))
    story.tell(memory(None, 1))
    for question in QUESTIONS:
        answer = story.ask(question, NOTHING)
        assert [name for name in ("memories", "versions", "episodes") if answer.get(name)] == [], question
        assert "Red bikes" not in str(answer)


@pytest.mark.parametrize("kind", ["memory.get", "memory.history"])
def test_another_projects_memory_is_like_none(story: Story, kind: str) -> None:
    story.tell(memory("q", 0, id="there"))
    story.tell(memory("q", 1, id="gone"))
    story.tell({"type": "memory.forget", "memory_id": "gone"})
    found = [story.ask({"type": kind, "memory_id": name}, OF_P)["error"] for name in ("there", "gone", "never")]
    said = [str(error).replace(name, "…") for error, name in zip(found, ("there", "gone", "never"), strict=True)]
    assert found[0]["code"] == "not_found"
    assert len({*said}) == 1


def test_no_number_counts_the_memories_of_others(story: Story) -> None:
    for number in range(3):
        story.tell(memory("q", number))
    story.tell(memory("p", 0))
    (version,) = story.ask({"type": "memory.get", "memory_id": "p0"}, OF_P)["versions"]
    assert "seq" not in version
    assert story.ask({"type": "memory.get", "memory_id": "p0"}, EVERYTHING)["versions"][0]["seq"] == 3


def test_sources_are_reported_as_far_as_readable(story: Story) -> None:
    for one in (memory("p", 0), memory("p", 1), memory("q", 2)):
        story.tell(one)
    others = [{"memory_id": f"{SECRET}q2"}, {"memory_id": "p1"}]
    story.tell(memory("p", 3, derived_from={"memory_id": "p0", "others": others}))
    story.tell(memory("p", 4, derived_from={"memory_id": f"{SECRET}q2", "others": []}))
    found = {one["id"]: one for one in story.ask(RECALL, OF_P)["memories"]}
    assert [one["memory_id"] for one in found["p3"]["derived_from"]["others"]] == ["p1"]
    assert found["p4"].get("derived_from") is None
    (version,) = story.ask({"type": "memory.get", "memory_id": "p3"}, OF_P)["versions"]
    assert version["derived_from"] == found["p3"]["derived_from"]


def test_graph_status_is_forbidden_for_project_senders(story: Story) -> None:
    error = story.ask({"type": "graph.status"}, OF_P)["error"]
    assert error["code"] == "forbidden"


@pytest.mark.parametrize("project_id", [None, "q", "P"])
@pytest.mark.parametrize("kind", ["message", "memory"])
def test_a_memory_must_be_of_a_project_of_its_sender(story: Story, kind: str, project_id: str | None) -> None:
    (letter,) = letters(story.tell({"type": kind, "id": "m", "content": "It is red", "project_id": project_id}, OF_P))
    assert letter.error.code == "forbidden"
    assert story.ask({"type": "memory.get", "memory_id": "m"}, EVERYTHING)["error"]["code"] == "not_found"


CHANGES: list[Event] = [
    {"type": "memory.update", "content": "It is blue"},
    {"type": "memory.feedback", "useful": True},
    {"type": "memory.forget"},
    {
        "type": "memory.embedding", "model": "hash-1", "embedding": [1.0, *[0.0] * 383],
        "content_hash": content_hash("It is red"),
    },
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change["type"])
def test_memory_of_another_project_cannot_be_changed(story: Story, change: Event) -> None:
    told = {"type": "memory", "content": "It is red"}
    story.tell(told | {"id": "there", "project_id": "q"})
    story.tell(told | {"id": "bare"})
    story.tell(told | {"id": "gone", "project_id": "q"})
    story.tell({"type": "memory.forget", "memory_id": "gone"})
    before, outcomes = story.hash(), []
    for name in ("never", "there", "bare", "gone"):
        outputs = story.tell(change | {"memory_id": name, "project_id": "p", "receipt": True}, OF_P)
        refusals = [str(letter.error).replace(name, "…") for letter in letters(outputs)]
        outcomes.append((refusals, [receipt["outcome"] for receipt in receipts(outputs)]))
    assert [one == outcomes[0] for one in outcomes] == [True] * 4, outcomes
    assert story.hash() == before
    assert story.ask({"type": "memory.get", "memory_id": "there"}, OF_Q)["versions"][0]["content"] == "It is red"


TOO_WIDE: list[Event] = [
    {"type": "episode.end", "session_id": "s"},
    {"type": "category.summary", "category": "habits", "summary": "All about tea"},
    {"type": "episode.summary", "episode_id": "ep_1", "session_id": "s", "summary": "All about tea"},
    {"type": "graph.edges", "edges": [{"source": "entity:a", "target": "entity:b", "type": "knows"}]},
    {"type": "graph.archive", "entities": ["entity:ana cruz"]},
    {"type": "user.erase", "project_id": None},
]


@pytest.mark.parametrize("event", TOO_WIDE, ids=lambda event: event["type"])
def test_project_sender_cannot_change_shared_data(story: Story, event: Event) -> None:
    story.tell(memory("p", 0, session_id="s", entities=[{"name": "Ana Cruz"}]))
    before = story.hash()
    (letter,) = letters(story.tell({"project_id": "p"} | event, OF_P))
    assert letter.error.code == "forbidden"
    assert story.hash() == before


def test_a_kill_forgets_nobodys_projects(story: Story) -> None:
    story.tell(memory("q", 0))
    asked = {"tenant_id": "acme", "user_id": "ann"} | RECALL | {"timestamp": 0, "wait_for": f"{MEMORIES}:0:1"}
    assert answers(story.run(QUERIES, asked, principal=OF_P)) == []
    story.kill(story.mark())
    outputs: Callable[[], list[Output]] = story.advance_to_end
    (answer,) = answers(story.tell(memory("p", 1)) + outputs())
    assert [one["id"] for one in answer["memories"]] == ["p1"]


def test_messages_of_other_projects_join_no_episodes(story: Story) -> None:
    said = [memory("p", 0), memory("q", 1), memory("p", 2), memory("p", 3)]
    for one, at_min in zip(said, (0, 25, 50, 55), strict=True):
        event = one | {"type": "message", "session_id": "s", "timestamp": at_min * MINUTE_MS}
        story.tell(event)
        if at_min == 0:
            story.ask(RECALL, OF_P)  # the index is built, and follows from here on
        if at_min == 50:
            story.tell({"type": "episode.end", "session_id": "s", "timestamp": 52 * MINUTE_MS})
    asked = {"type": "episodes.list", "timestamp": 60 * MINUTE_MS}
    followed = story.ask(asked, OF_P)["episodes"]
    assert [one["messages"] for one in followed] == [1, 1, 1]
    story.restart()
    assert story.ask(asked, OF_P)["episodes"] == followed
    assert [one["messages"] for one in story.ask(asked, EVERYTHING)["episodes"]] == [1, 3]
