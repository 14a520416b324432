"""No owner sees, counts, changes, erases or exports data of another, whatever the names."""

import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.flows.export import export
from recallflow.operators.events import Refused
from recallflow.owner import Owner
from recallflow.state.description import describe
from recallflow.state.directory import StateDirectory
from tests.groups import share
from tests.unit.operators.harness import MEMORIES as LOG
from tests.unit.operators.harness import Harness, run_flow
from tests.unit.senders import EVENT, Senders, bearer, signing_keys, token, token_key, with_key

SECRET = re.compile(r"secret \d+")

# Names that, put together carelessly, read the same, climb out of a path, close a quote or fall away when trimmed.
NASTY = [
    "a", "a/b", "b/c", "c", "/", "..", "../a", "a:b", ":", " a", "a ", '"', 'a","b', "\\", "é", "e\u0301", "👩‍👧", "A",
    "\uff41", "K", "\u212a", "*", "a" * 128, "a" * 127 + "b",
]  # fmt: skip
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
        st.tuples(st.just("say"), WHO, IDS, SESSIONS), st.tuples(st.just("know"), WHO, IDS, SESSIONS),
        st.tuples(st.just("update"), WHO, IDS), st.tuples(st.just("forget"), WHO, IDS),
        st.tuples(st.just("forget_session"), WHO, SESSIONS), st.tuples(st.just("erase"), WHO, st.booleans()),
        st.tuples(st.just("look"), WHO),
    ),
    max_size=20,
)  # fmt: skip


@dataclass
class Shadow:
    """The expected state of one owner: current memories, all its texts, and used ids. Events have the time `at_ms`."""

    owner: Owner
    memories: dict[str, tuple[str, str]] = field(default_factory=dict)
    told: dict[str, list[str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    rejected: int = 0
    at_ms: int = 60_000

    def event(self, event_type: str, **fields: Any) -> dict[str, Any]:
        tenant_id, environment, user_id = self.owner
        scope = {"tenant_id": tenant_id, "environment": environment, "user_id": user_id}
        return {"type": event_type, **scope, "timestamp": self.at_ms} | fields

    def say(self, content: str, memory_id: str, session: str) -> dict[str, Any]:
        self._create(memory_id, (content, session))
        return self.event("message", id=memory_id, content=content, session_id=session)

    def know(self, content: str, memory_id: str, session: str) -> dict[str, Any]:
        self._create(memory_id, (content, session))
        return self.event("memory", id=memory_id, content=content, session_id=session)

    def update(self, content: str, memory_id: str) -> dict[str, Any]:
        if memory_id in self.memories:
            self.memories[memory_id] = (content, self.memories[memory_id][1])
            self.told[memory_id].append(content)
        else:
            self.rejected += 1
        return self.event("memory.update", memory_id=memory_id, content=content)

    def forget(self, _: str, memory_id: str) -> dict[str, Any]:
        self.memories.pop(memory_id, None)
        return self.event("memory.forget", memory_id=memory_id)

    def forget_session(self, _: str, session: str) -> dict[str, Any]:
        self.memories = {name: memory for name, memory in self.memories.items() if memory[1] != session}
        return self.event("memory.forget", filter={"session_id": session})

    def erase(self, _: str, everywhere: bool) -> dict[str, Any]:
        event = self.event("user.erase")
        return {name: given for name, given in event.items() if name != "environment"} if everywhere else event

    def is_erased_with(self, other: "Shadow", everywhere: bool) -> bool:
        same_user = (self.owner.tenant_id, self.owner.user_id) == (other.owner.tenant_id, other.owner.user_id)
        return same_user and (everywhere or self.owner == other.owner)

    def go(self) -> None:
        self.memories, self.told, self.used = {}, {}, set()

    def exported(self) -> set[str]:
        return {content for memory_id in self.memories for content in self.told[memory_id]}

    def look(self, _: str) -> dict[str, Any]:
        return self.event("recall", query="secret", k=50)

    def questions(self) -> list[dict[str, Any]]:
        return [
            self.event("recall", query="secret", k=50, mode="recency"),
            self.event("recall", query="everyone's secret", k=50), self.event("user.stats"),
            self.event("episodes.list"), *(self.event("memory.get", memory_id=memory_id) for memory_id in MEMORIES),
            *(self.event("memory.history", memory_id=memory_id) for memory_id in MEMORIES),
        ]  # fmt: skip

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
            self.memories[memory_id], self.told[memory_id] = memory, [memory[0]]


def check_isolation(owners: list[Owner], steps: list[tuple[Any, ...]], partitions: int) -> None:
    """Runs the steps of all owners as one log, then asks each owner for everything there is, and exports each user."""
    shadows = [Shadow(owner) for owner in owners]
    events = []
    for number, (action, who, *arguments) in enumerate(steps):
        shadow = shadows[who % len(shadows)]
        for one in shadows:
            one.at_ms += 1  # what is of the time of an erasure goes with it
        events.append(getattr(shadow, action)(f"secret {number}", *arguments))
        if action == "erase":
            for one in shadows:
                if one.is_erased_with(shadow, *arguments):
                    one.go()
    asked = [question for shadow in shadows for question in shadow.questions()]
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "s"
        processed = run_flow([*events, *asked], state_dir, partitions=partitions)
        check_exports(state_dir, shadows)
    assert len(processed.rejected) == sum(shadow.rejected for shadow in shadows)
    answers = processed.responses[-len(asked) :]
    each = len(asked) // len(shadows)
    for at, shadow in enumerate(shadows):
        shadow.check(answers[at * each : (at + 1) * each])


def check_exports(state_dir: Path, shadows: list[Shadow]) -> None:
    with StateDirectory.open(state_dir, describe(state_dir)[0]) as directory:
        for tenant_id, _, user_id in (shadow.owner for shadow in shadows):
            own = {
                one.owner: one for one in shadows if (one.owner.tenant_id, one.owner.user_id) == (tenant_id, user_id)
            }
            records = [*export(directory, tenant_id, user_id)]
            found = {text for record in records for text in SECRET.findall(orjson.dumps(record).decode())}
            assert found == set[str]().union(*(shadow.exported() for shadow in own.values()))
            people = (record for record in records if record["type"] == "person")
            assert {Owner(*(person[name] for name in Owner._fields)) for person in people} <= own.keys()


@settings(max_examples=share(0.4))
@given(owners=OWNERS, steps=STEPS, partitions=st.integers(1, 2))
def test_owners_see_and_change_their_own_memories_alone(
    owners: list[Owner], steps: list[tuple[Any, ...]], partitions: int
) -> None:
    check_isolation(owners, steps, partitions)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Owner("a/b", "prod", "c"), Owner("a", "prod", "b/c")),
        (Owner("acme", "prod", "ann"), Owner("acme", "test", "ann")),
        (Owner("acme", "prod", "ann"), Owner("Acme", "prod", "ann")),
        (Owner("acme", "prod", "ann"), Owner("acme", "prod", "ann ")),
        (Owner("acme", "prod", "é"), Owner("acme", "prod", "e\u0301")),
        (Owner('a","prod', "prod", "c"), Owner("a", "prod", 'prod","c')),
        (Owner("a" * 128, "prod", "c"), Owner("a" * 127 + "b", "prod", "c")),
        (Owner("acme", "prod", "ann"), Owner("\uff41\uff43\uff4d\uff45", "prod", "ann")),
        (Owner("acme", "prod", "ann"), Owner("*", "prod", "ann")),
    ],
)
@pytest.mark.parametrize("end", [[], [("erase", 0, True)], [("erase", 1, False), ("say", 1, "m", "s")]])
def test_owners_that_look_alike_stay_apart(one: Owner, other: Owner, end: list[tuple[Any, ...]]) -> None:
    steps: list[tuple[Any, ...]] = [
        ("say", 0, "m", "s"), ("say", 1, "m", "s"), ("look", 0), ("look", 1), ("update", 0, "m"), ("forget", 1, "m"),
        ("know", 1, "a/b", "s"), *end,
    ]  # fmt: skip
    check_isolation([one, other], steps, partitions=1)


def test_undelivered_output_is_exported_with_its_owner(tmp_path: Path) -> None:
    one, other = Shadow(Owner("a/b", "prod", "c")), Shadow(Owner("a", "prod", "b/c"))
    assert one.owner.record_key == other.owner.record_key
    engine = Harness(tmp_path / "s")
    said = [shadow.say("x", f"secret {n}", "s") | {"receipt": True} for n, shadow in enumerate((one, other))]
    engine.run(LOG, *said, key=b"whatever the sender likes")
    for n, shadow in enumerate((one, other)):
        records = [*export(engine.directory, shadow.owner.tenant_id, shadow.owner.user_id)]
        pending = [record["output"]["memory_id"] for record in records if record["type"] == "pending_output"]
        assert pending == [f"secret {n}"]


@given(
    one=NAMES, other=NAMES, users=st.lists(NAMES, min_size=2, max_size=2), listed=st.booleans(), signed=st.booleans()
)
def test_credentials_of_other_tenants_or_users_are_refused(
    one: str, other: str, users: list[str], listed: bool, signed: bool
) -> None:
    senders = Senders()
    scope: dict[str, Any] = {"end_users": [users[0]]} if listed else {}
    if signed:
        senders.decide(*map(token_key, signing_keys()))
        headers = bearer(token(tenant_id=one, **scope))
    else:
        headers = with_key(senders.key(one, **scope))
    event = EVENT | {"tenant_id": other, "user_id": users[1]}
    is_let_in = not isinstance(senders.judge(headers, event), Refused)
    # A key of the tenant `*` is one of the deployment's own; a token that names it is of a tenant of that name.
    of_tenant = one == other or (one == "*" and not signed)
    assert is_let_in == (of_tenant and (not listed or users[0] == users[1]))
