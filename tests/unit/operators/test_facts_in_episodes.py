"""Facts of a session belong to its episodes, whenever they come."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallflow.operators.episodes import end, join
from recallflow.state.rows import EpisodeRow
from tests.groups import share
from tests.unit.operators.harness import make_event, run_flow
from tests.unit.operators.test_episodes import GAP, span

GAP_MINUTES = GAP / 60_000
LATER_MS = 5_000


def fact(number: int, at_ms: int) -> EpisodeRow:
    """The episode that a fact would open."""
    return span(number, at_ms, at_ms, of_facts=True)


APART, NEAR = ([span(0, 100, 200), later] for later in (span(5, 900, 1_000), span(5, 390, 400)))
ENDED = [span(0, 100, 200, ended_ms=210)]


@pytest.mark.parametrize(
    ("standing", "at_ms", "number"),
    [
        *((APART, at_ms, 0) for at_ms in (150, 250, 500, -500)),
        *((APART, at_ms, 5) for at_ms in (820, 1_000, 9_000)),
        (NEAR, 295, 0),  # in reach of both, which stay apart
        (ENDED, 230, 0),
        ([*ENDED, span(5, 240, 300)], 230, 5),
    ],
)
def test_fact_joins_an_episode_and_changes_none(standing: list[EpisodeRow], at_ms: int, number: int) -> None:
    joined = join(standing, fact(9, at_ms), GAP)
    assert (joined.episode.number, joined.changed) == (number, [])


def test_facts_wait_for_the_first_message_of_their_session() -> None:
    assert join([], fact(0, 500), GAP) == (fact(0, 500), [fact(0, 500)])
    waiting = span(0, 500, 9_000, of_facts=True)
    assert join([fact(0, 500)], fact(1, 9_000), GAP) == (waiting, [waiting])
    taken = span(0, 20_000, 20_000)
    assert join([waiting], span(7, 20_000, 20_000), GAP) == (taken, [taken])


def test_explicit_end_ignores_episodes_of_facts() -> None:
    assert end([fact(0, 500)], 510, GAP) is None


def asked(**fields: Any) -> dict[str, Any]:
    return make_event("recall", LATER_MS, query="kiln", mode="recency", k=50, **fields)


def episode_of(response: dict[str, Any]) -> dict[str, str | None]:
    return {memory["id"]: memory["episode_id"] for memory in response["memories"]}


def test_session_facts_are_listed_and_recalled_with_messages() -> None:
    events = [
        make_event("message", 0, id="m1", session_id="s", content="The kiln is cold."),
        make_event("memory", 20, id="near", session_id="s", content="The kiln needs a fuse."),
        make_event("memory", 4_000, id="late", session_id="s", content="The kiln was cold on Monday."),
        make_event("memory", 20, id="other", session_id="t", content="Tea is at four."),
        make_event("memory", 20, id="loose", content="The kiln is blue."),
        asked(),
        make_event("episodes.list", LATER_MS),
    ]
    recalled, listed = run_flow(events, episode_gap_minutes=GAP_MINUTES).responses
    found = episode_of(recalled)
    assert found["m1"] == found["near"] == found["late"] is not None
    assert found["other"] not in (None, found["m1"])
    assert found["loose"] is None
    assert {episode["id"]: episode["messages"] for episode in listed["episodes"]} == {found["m1"]: 3, found["other"]: 1}


def test_change_of_a_fact_leaves_its_episode_unchanged() -> None:
    events = [
        make_event("memory", 90, id="first", session_id="s", content="The kiln needs a fuse."),
        make_event("message", 0, id="m1", session_id="s", content="The kiln is cold."),
        make_event("message", 80, id="m2", session_id="s", content="The fuse is here."),
        make_event("memory.update", 300, memory_id="first", content="The kiln needs two fuses.", kind="task"),
        asked(),
        make_event("memory.forget", 400, memory_id="first"),
        asked(),
    ]
    before, after = map(episode_of, run_flow(events, episode_gap_minutes=GAP_MINUTES).responses)
    assert before["m1"] == before["first"] == before["m2"] is not None
    assert after == {name: before[name] for name in ("m1", "m2")}


TIMES = st.builds(lambda place, off: 50 * place + off, st.integers(0, 16), st.sampled_from([-1, 0, 0, 1]))
STEPS = st.tuples(st.sampled_from(["message", "memory", "memory", "episode.end", "forget"]), TIMES)


def scripted(script: list[tuple[str, int]]) -> list[dict[str, Any]]:
    events, known = list[dict[str, Any]](), list[str]()
    for number, (step, at_ms) in enumerate(script):
        if step in ("message", "memory"):
            known.append(f"m{number}")
            events.append(make_event(step, at_ms, id=known[-1], session_id="s", content=f"kiln {number}"))
        elif step == "episode.end":
            events.append(make_event(step, at_ms, session_id="s"))
        elif known:
            events.append(make_event("memory.forget", at_ms, memory_id=known.pop(at_ms % len(known))))
    return events


@settings(max_examples=share(0.2))
@given(script=st.lists(STEPS, min_size=2, max_size=14), cut=st.integers(2, 6))
@example(script=[("message", 0), ("memory", 400), ("forget", 1), ("message", 450), ("message", 20)], cut=2)
@example(script=[("memory", 400), ("forget", 0), ("message", 450), ("memory", 0)], cut=2)
def test_restart_and_past_find_facts_in_place(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int]], cut: int
) -> None:
    events = scripted(script)
    # Lines of a file came in at their event time: by then all of them had.
    questions = [asked(), asked(as_of={"ingestion_time": LATER_MS})]
    now, then = map(episode_of, run_flow([*events, *questions], episode_gap_minutes=GAP_MINUTES).responses)
    assert now == then
    state_dir: Path = tmp_path_factory.mktemp("cut") / "state"
    for start in range(0, len(events), cut):
        run_flow(events[start : start + cut], state_dir, episode_gap_minutes=GAP_MINUTES)
    (again,) = run_flow(questions[:1], state_dir, episode_gap_minutes=GAP_MINUTES).responses
    assert episode_of(again) == now


MEMBERS = st.lists(st.tuples(st.sampled_from(["message", "memory"]), TIMES), min_size=1, max_size=14)


@settings(max_examples=share(0.3))
@given(members=MEMBERS)
@example(members=[("memory", 750), ("message", 0)])
def test_facts_join_episodes_and_leave_messages_grouped(members: list[tuple[str, int]]) -> None:
    events = scripted(members)
    said = [event for event in events if event["type"] == "message"]
    with_facts, without = (
        episode_of(run_flow([*some, asked()], episode_gap_minutes=GAP_MINUTES).responses[0]) for some in (events, said)
    )

    def groups(found: dict[str, str | None]) -> set[frozenset[str]]:
        names = [event["id"] for event in said]
        return {frozenset(one for one in names if found[one] == found[name]) for name in names}

    assert groups(with_facts) == groups(without)
    of_messages = {with_facts[event["id"]] for event in said}
    assert None not in with_facts.values()
    assert not said or {*with_facts.values()} == of_messages
    assert said or len({*with_facts.values()}) == 1
