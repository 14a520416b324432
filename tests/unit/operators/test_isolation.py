"""Nothing of one owner is ever seen, counted, changed or forgotten by another, whatever the names."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.flows.embedded import Processed
from recallflow.owner import Owner

RunFlow = Callable[..., Processed]

# Names that, put together carelessly, read the same, climb out of a path, close a quote or fall away when trimmed.
NASTY = [
    "a",
    "a/b",
    "b/c",
    "c",
    "/",
    "..",
    "../a",
    "a:b",
    ":",
    " a",
    "a ",
    '"',
    'a","b',
    "\\",
    "é",
    "e\u0301",
    "👩‍👧",
    "A",
]
NAMES = st.sampled_from(NASTY) | st.text(st.sampled_from("/:.\"' \\aé👍%\u200b"), min_size=1, max_size=4).filter(
    str.strip
)
OWNERS = st.lists(st.builds(Owner, NAMES, NAMES, NAMES), min_size=2, max_size=4, unique=True)
MEMORIES = ["m", "a/b", "lines:0:0", "../m"]
IDS = st.sampled_from(MEMORIES)
SESSIONS = st.sampled_from(["s", "m"])  # a session may be called like a memory
WHO = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), WHO, IDS, SESSIONS),
        st.tuples(st.just("know"), WHO, IDS, SESSIONS),
        st.tuples(st.just("update"), WHO, IDS),
        st.tuples(st.just("forget"), WHO, IDS),
        st.tuples(st.just("forget_session"), WHO, SESSIONS),
        st.tuples(st.just("look"), WHO),
    ),
    max_size=20,
)


@dataclass
class Shadow:
    """What one owner should have: content and session of each current memory, and which ids are used up."""

    owner: Owner
    memories: dict[str, tuple[str, str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    rejected: int = 0

    def event(self, event_type: str, **fields: Any) -> dict[str, Any]:
        tenant_id, environment, user_id = self.owner
        scope = {"tenant_id": tenant_id, "environment": environment, "user_id": user_id}
        return {"type": event_type, **scope, "timestamp": 60_000} | fields

    def say(self, content: str, memory_id: str, session: str) -> dict[str, Any]:
        self._create(memory_id, (content, session))
        return self.event("message", id=memory_id, content=content, session_id=session)

    def know(self, content: str, memory_id: str, session: str) -> dict[str, Any]:
        self._create(memory_id, (content, session))
        return self.event("memory", id=memory_id, content=content, session_id=session)

    def update(self, content: str, memory_id: str) -> dict[str, Any]:
        if memory_id in self.memories:
            self.memories[memory_id] = (content, self.memories[memory_id][1])
        else:
            self.rejected += 1
        return self.event("memory.update", memory_id=memory_id, content=content)

    def forget(self, _: str, memory_id: str) -> dict[str, Any]:
        self.memories.pop(memory_id, None)
        return self.event("memory.forget", memory_id=memory_id)

    def forget_session(self, _: str, session: str) -> dict[str, Any]:
        self.memories = {name: memory for name, memory in self.memories.items() if memory[1] != session}
        return self.event("memory.forget", filter={"session_id": session})

    def look(self, _: str) -> dict[str, Any]:
        """Builds the owner's index in the midst of things; it then has to follow every change."""
        return self.event("recall", query="secret", k=50)

    def questions(self) -> list[dict[str, Any]]:
        return [
            self.event("recall", query="secret", k=50, mode="recency"),
            self.event("recall", query="everyone's secret", k=50),
            self.event("user.stats"),
            self.event("episodes.list"),
            *(self.event("memory.get", memory_id=memory_id) for memory_id in MEMORIES),
            *(self.event("memory.history", memory_id=memory_id) for memory_id in MEMORIES),
        ]

    def check(self, answers: list[dict[str, Any]]) -> None:
        recency, hybrid, stats, episodes, *looked_up = answers
        contents = {memory_id: content for memory_id, (content, _) in self.memories.items()}
        for recalled in (recency, hybrid):
            assert {m["id"]: m["content"] for m in recalled["memories"]} == contents
            assert recalled["routing_info"]["memories"] == len(contents)
        assert stats["stats"]["memories"] == len(contents)
        said = Counter(session for _, session in self.memories.values())
        assert stats["stats"]["episodes"] == len(said)
        assert {e["session_id"]: e["messages"] for e in episodes["episodes"]} == said
        for answer, memory_id in zip(looked_up, MEMORIES * 2, strict=True):
            if memory_id in contents:
                assert answer["versions"][-1]["content"] == contents[memory_id]
            else:
                assert answer["error"]["code"] == "not_found"

    def _create(self, memory_id: str, memory: tuple[str, str]) -> None:
        if memory_id in self.used:  # every content is another, so that a used id is a conflict
            self.rejected += 1
        else:
            self.used.add(memory_id)
            self.memories[memory_id] = memory


def check_isolation(run_flow: RunFlow, owners: list[Owner], steps: list[tuple[Any, ...]], partitions: int) -> None:
    """Runs the steps of all owners as one log, then asks each owner for everything there is."""
    shadows = [Shadow(owner) for owner in owners]
    events = []
    for number, (action, who, *arguments) in enumerate(steps):
        events.append(getattr(shadows[who % len(shadows)], action)(f"secret {number}", *arguments))
    asked = [question for shadow in shadows for question in shadow.questions()]
    processed = run_flow([*events, *asked], partitions=partitions)
    assert len(processed.rejected) == sum(shadow.rejected for shadow in shadows)
    answers = processed.responses[-len(asked) :]
    each = len(asked) // len(shadows)
    for at, shadow in enumerate(shadows):
        shadow.check(answers[at * each : (at + 1) * each])


@given(owners=OWNERS, steps=STEPS, partitions=st.integers(1, 2))
def test_owners_see_and_change_their_own_memories_alone(
    run_flow: RunFlow, owners: list[Owner], steps: list[tuple[Any, ...]], partitions: int
) -> None:
    check_isolation(run_flow, owners, steps, partitions)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Owner("a/b", "prod", "c"), Owner("a", "prod", "b/c")),
        (Owner("acme", "prod", "ann"), Owner("acme", "test", "ann")),
        (Owner("acme", "prod", "ann"), Owner("Acme", "prod", "ann")),
        (Owner("acme", "prod", "ann"), Owner("acme", "prod", "ann ")),
        (Owner("acme", "prod", "é"), Owner("acme", "prod", "e\u0301")),
        (Owner('a","prod', "prod", "c"), Owner("a", "prod", 'prod","c')),
    ],
)
def test_owners_that_look_alike_stay_apart(run_flow: RunFlow, one: Owner, other: Owner) -> None:
    steps = [
        ("say", 0, "m", "s"),
        ("say", 1, "m", "s"),
        ("look", 0),
        ("look", 1),
        ("update", 0, "m"),
        ("forget", 1, "m"),
    ]
    check_isolation(run_flow, [one, other], steps, partitions=1)


def test_the_same_id_with_the_same_content_is_a_memory_of_each_owner(run_flow: RunFlow) -> None:
    # Were it taken for a repetition, the second owner would have nothing.
    owners = [Owner("a/b", "prod", "c"), Owner("a", "prod", "b/c"), Owner("a/b", "c", "c")]
    said = [
        Shadow(owner).event("message", id="m", content="hello", session_id="s", receipt=True)
        for owner in [*owners, *owners]
    ]
    outcomes = [receipt["outcome"] for receipt in run_flow(said).receipts]
    assert outcomes == ["created"] * 3 + ["duplicate"] * 3


def test_an_applied_event_id_is_used_up_for_its_owner_only(run_flow: RunFlow) -> None:
    ann, bo = Shadow(Owner("acme", "prod", "ann")), Shadow(Owner("acme", "prod", "bo"))
    events = []
    for shadow in (ann, bo):
        events += [shadow.say("first", "m", "s"), shadow.update("second", "m") | {"id": "once", "receipt": True}]
    assert [receipt["outcome"] for receipt in run_flow(events).receipts] == ["updated", "updated"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_owner_without_memories_has_empty_answers(run_flow: RunFlow, forgotten: bool) -> None:
    shadow = Shadow(Owner("acme", "prod", "nobody"))
    before = [shadow.say("gone", "m", "s"), shadow.look(""), shadow.forget("", "m")] if forgotten else []
    asked = shadow.questions()
    shadow.check(run_flow([*before, *asked]).responses[-len(asked) :])


@pytest.mark.parametrize("query", ["user.stats", "episodes.list"])
def test_asking_for_someone_unknown_does_not_stop_the_flow(run_flow: RunFlow, query: str) -> None:
    ann = Shadow(Owner("acme", "prod", "ann"))
    nobody = Shadow(Owner("acme", "prod", "nobody"))
    processed = run_flow([nobody.event(query), ann.say("hello", "m", "s"), ann.look("")])
    assert [response["status"] for response in processed.responses] == ["ok", "ok"]
