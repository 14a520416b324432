"""Episodes equal those of a session sorted by time and cut at the gaps; facts join them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recallflow.flows.embedded import Processed
from recallflow.operators.episodes import end, episode_id, join
from recallflow.owner import Owner
from recallflow.state import hot_owner, keys
from recallflow.state.graph_codec import encode_row
from recallflow.state.hot_owner import HotOwner
from recallflow.state.partition import Partition
from recallflow.state.rows import EpisodeRow, OwnerHead
from tests.groups import share
from tests.unit.operators.harness import MINUTE_MS, make_event, run_flow
from tests.unit.state.member import open_partition

GAP = 100
OWNER = Owner("acme", "prod", "ann")


def moment(number: int, at_ms: int, logged: bool = True) -> EpisodeRow:
    return EpisodeRow(number, f"ep_{number}", "s", at_ms, at_ms, logged=logged)


def span(number: int, start_ms: int, last_ms: int, ended_ms: int | None = None, of_facts: bool = False) -> EpisodeRow:
    return EpisodeRow(number, f"ep_{number}", "s", start_ms, last_ms, ended_ms, of_facts=of_facts)


def test_unlogged_time_keeps_the_span_out_of_the_hash() -> None:
    standing = [span(0, 0, 100), span(5, 300, 400)]
    assert not join(standing, moment(9, 50, logged=False), GAP).episode.logged
    assert not join(standing, moment(9, 200, logged=False), GAP).episode.logged
    assert not join([moment(0, 0, logged=False)], moment(9, 50), GAP).episode.logged


ENDED = span(0, 0, 100, ended_ms=150)


@pytest.mark.parametrize(
    ("standing", "at_ms", "changed"),
    [
        ([span(0, 0, 100, ended_ms=100)], 100, moment(9, 100)),
        ([ENDED, span(5, 160, 200)], 149, span(0, 0, 149, ended_ms=150)),
        ([ENDED, span(5, 160, 200)], 150, span(5, 150, 200)),
        ([span(0, 100, 100, ended_ms=100)], 20, span(0, 20, 100, ended_ms=100)),
        ([ENDED, span(5, 200, 300)], 140, span(0, 0, 140, ended_ms=150)),
        ([ENDED, span(5, 200, 300)], 170, span(5, 170, 300)),
    ],
    ids=["at the end", "late, before the end", "late, at the end", "before the start", "no bridge", "no bridge back"],
)
def test_message_around_an_explicit_end_joins_its_side(
    standing: list[EpisodeRow], at_ms: int, changed: EpisodeRow
) -> None:
    assert join(standing, moment(9, at_ms), GAP).changed == [changed]


@pytest.mark.parametrize(
    ("standing", "at_ms", "closed"),
    [
        ([span(0, 0, 50), span(5, 300, 400)], 420, span(5, 300, 400, ended_ms=420)),
        ([span(0, 0, 400)], 350, span(0, 0, 400, ended_ms=400)), ([span(0, 0, 100)], -1, None),
        ([span(0, 0, 100)], 0, span(0, 0, 100, ended_ms=100)), ([span(0, 0, 100)], 200, span(0, 0, 100, ended_ms=200)),
        ([span(0, 0, 100)], 201, None), ([span(0, 0, 100, ended_ms=110)], 120, None), ([], 120, None),
    ],
)  # fmt: skip
def test_end_closes_the_episode_that_is_open_then(
    standing: list[EpisodeRow], at_ms: int, closed: EpisodeRow | None
) -> None:
    assert end(standing, at_ms, GAP) == closed


def test_an_episode_id_tells_owners_sessions_and_openers_apart() -> None:
    named = [
        (owner, session, opener)
        for owner in (OWNER, Owner("acme", "prod", "an"), Owner("acm", "eprod", "ann"), Owner("acme", "test", "ann"))
        for session in ("s", "", None, "s1")
        for opener in ("m", "1m", "")
    ]
    assert len({episode_id(*name) for name in named}) == len(named)


def test_an_episode_id_is_the_same_in_every_release() -> None:
    # Ids are in responses and in what users keep of them: a change here breaks both.
    assert episode_id(OWNER, "s", "m1") == "ep_b921aae5ba95ac07"


class Chat:
    """One owner's sessions as the state partition keeps them: standing episodes in memory, all episodes on disk."""

    def __init__(self, partition: Partition, owner: Owner) -> None:
        self._partition, self._owner = partition, owner
        # Nothing is read of an owner without a head.
        partition.stage({keys.head(partition.keyring.owner(owner)): OwnerHead(owner, 0, 0).encode()})
        self._hot = HotOwner(partition, owner)
        self._records: dict[int, EpisodeRow] = {}
        self.said: list[tuple[str | None, int]] = []
        self._joined: list[int] = []

    def say(self, session: str | None, at_ms: int) -> None:
        number = len(self.said)
        name = episode_id(self._owner, session, f"m{number}")
        joined = join(self.standing(session), EpisodeRow(number, name, session, at_ms, at_ms), GAP)
        self.said.append((session, at_ms))
        self._joined.append(joined.episode.number)
        self._keep(session, joined.changed)

    def end(self, session: str | None, at_ms: int) -> None:
        ended = end(self.standing(session), at_ms, GAP)
        if ended is not None:
            self._keep(session, [ended])

    def standing(self, session: str | None) -> list[EpisodeRow]:
        return list(self._hot.episodes(session))

    def reread(self, session: str | None) -> list[EpisodeRow]:
        """The standing episodes as a process that starts now would find them."""
        self._partition.commit()
        return HotOwner(self._partition, self._owner).episodes(session)

    def episode_of(self, number: int) -> EpisodeRow:
        """The episode in which a message has ended up."""
        episode = self._records[self._joined[number]]
        while episode.merged_into is not None:
            episode = self._records[episode.merged_into]
        return episode

    def groups(self) -> dict[str, set[int]]:
        groups: dict[str, set[int]] = defaultdict(set)
        for number in range(len(self.said)):
            groups[self.episode_of(number).id].add(number)
        return groups

    def _keep(self, session: str | None, changed: list[EpisodeRow]) -> None:
        owner, name = self._hot.key, self._hot.session_name(session)
        self._records |= {episode.number: episode for episode in changed}
        self._partition.stage({keys.episode(owner, name, e.number): encode_row(e) for e in changed})
        self._hot.put_episodes(session, changed)


@pytest.fixture(scope="module")
def new_chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Chat]]:
    users = count()
    with open_partition(tmp_path_factory.mktemp("state")) as partition:
        yield lambda: Chat(partition, Owner("acme", "prod", f"user {next(users)}"))


def cut_at_gaps(said: Sequence[tuple[str | None, int]]) -> list[list[int]]:
    """Return message numbers by session and time, cut at the gaps: the definition of episodes."""
    order = sorted(range(len(said)), key=lambda n: (str(said[n][0]), said[n][1], n))
    groups = [order[:1]]
    for before, number in pairwise(order):
        same_session = said[before][0] == said[number][0]
        if same_session and said[number][1] - said[before][1] <= GAP:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


# Few places, so that many differences are the gap, one more and one less than it, or nothing.
TIMES = st.builds(lambda place, off: 50 * place + off, st.integers(-2, 16), st.sampled_from([-1, 0, 0, 1]))
SESSIONS = st.sampled_from(["a", "b", None])
MESSAGES = st.lists(st.tuples(SESSIONS, TIMES), min_size=1, max_size=30)


@settings(max_examples=share(4))
@given(said=MESSAGES)
def test_episodes_are_those_of_sorted_time(new_chat: Callable[[], Chat], said: list[tuple[str | None, int]]) -> None:
    chat = new_chat()
    for session, at_ms in said:
        chat.say(session, at_ms)
    expected = {frozenset(group) for group in cut_at_gaps(said)}
    assert set(map(frozenset, chat.groups().values())) == expected
    for group in expected:
        episode = chat.episode_of(min(group))
        times = [said[number][1] for number in group]
        assert (episode.start_ms, episode.last_ms) == (min(times), max(times))
        assert episode.number == min(group), "an episode is named after the first of its messages to arrive"


@settings(max_examples=share(4))
@given(
    script=st.lists(st.tuples(st.sampled_from(["say", "say", "say", "end"]), SESSIONS, TIMES), min_size=1, max_size=30)
)
def test_in_time_order_an_episode_ends_with_the_gap(
    new_chat: Callable[[], Chat], script: list[tuple[str, str | None, int]]
) -> None:
    chat = new_chat()
    expected: list[set[int]] = []
    latest: dict[str | None, tuple[int, set[int]]] = {}
    for action, session, at_ms in sorted(script, key=lambda step: step[2]):
        last_ms, current = latest.pop(session, (at_ms, set()))
        if at_ms - last_ms > GAP:
            current = set()
        if action == "end":
            chat.end(session, at_ms)
            continue
        if not current:
            expected.append(current)
        current.add(len(chat.said))
        latest[session] = (at_ms, current)
        chat.say(session, at_ms)
    assert sorted(map(sorted, chat.groups().values())) == sorted(map(sorted, expected))


@settings(max_examples=share(4))
@given(script=st.lists(st.tuples(st.sampled_from(["say", "say", "say", "end"]), TIMES), min_size=1, max_size=20))
# Both episodes begin at 100; the one that ended there came first in time and second in number.
@example(script=[("say", 250), ("say", 100), ("end", 100), ("say", 180), ("say", 100), ("say", 120)])
def test_explicit_ends_in_any_order_keep_episodes_apart(
    new_chat: Callable[[], Chat], script: list[tuple[str, int]]
) -> None:
    chat = new_chat()
    for action, at_ms in script:
        (chat.say if action == "say" else chat.end)("s", at_ms)
        standing = chat.standing("s")
        assert standing == chat.reread("s"), "a restart here would go on with other episodes"
        for earlier, later in pairwise(standing):
            assert earlier.last_ms <= later.start_ms
            if earlier.ended_ms is None:
                assert later.start_ms - earlier.last_ms > GAP
            else:
                assert earlier.ended_ms <= later.start_ms
    for number, (_, at_ms) in enumerate(chat.said):
        episode = chat.episode_of(number)
        assert episode.start_ms <= at_ms <= episode.last_ms


def listed(processed: Processed) -> list[dict[str, Any]]:
    assert processed.rejected == []
    episodes: list[dict[str, Any]] = processed.responses[-1]["episodes"]
    return episodes


@settings(max_examples=share(0.2))
@given(
    script=st.lists(st.tuples(st.sampled_from(["say", "say", "say", "end"]), TIMES), min_size=2, max_size=12).filter(
        lambda script: "say" in dict(script)
    ),
    cut=st.integers(1, 5),
)
@example(script=[("say", 250), ("say", 100), ("end", 100), ("say", 180), ("say", 100), ("say", 120)], cut=1)
def test_episodes_do_not_depend_on_runs(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int]], cut: int
) -> None:
    gap_minutes = GAP / MINUTE_MS
    events = [
        make_event("message", at_ms, id=f"m{n}", session_id="s", content=f"hello {n}")
        if action == "say"
        else make_event("episode.end", at_ms, session_id="s")
        for n, (action, at_ms) in enumerate(script)
    ]
    question = make_event("episodes.list", 900)
    at_once = run_flow([*events, question], episode_gap_minutes=gap_minutes)
    state_dir = tmp_path_factory.mktemp("cut") / "state"
    for start in range(0, len(events), cut):
        run_flow(events[start : start + cut], state_dir, episode_gap_minutes=gap_minutes)
    assert listed(run_flow([question], state_dir, episode_gap_minutes=gap_minutes)) == listed(at_once)


def test_message_sorts_only_changed_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_at_once: list[int] = []
    sort = hot_owner._current_episodes

    def watched(found: Iterable[EpisodeRow]) -> list[EpisodeRow]:
        some = [*found]
        sorted_at_once.append(len(some))
        return sort(some)

    monkeypatch.setattr(hot_owner, "_current_episodes", watched)
    hour_ms, count, standing = 3_600_000, 500, list[EpisodeRow]()
    hours = [*range(0, count, 2), *range(count - 1, 0, -2)]  # every other one comes late
    for number, hour in enumerate(hours):
        opened = EpisodeRow(number, f"e{number}", None, hour * hour_ms, hour * hour_ms)
        standing = hot_owner.with_changes(standing, join(standing, opened, 60_000).changed)
    assert [episode.start_ms for episode in standing] == [hour * hour_ms for hour in range(count)]
    assert max(sorted_at_once) <= 2


GAP_MINUTES = GAP / 60_000
LATER_MS = 5_000


def fact(number: int, at_ms: int) -> EpisodeRow:
    return span(number, at_ms, at_ms, of_facts=True)


APART, NEAR = ([span(0, 100, 200), later] for later in (span(5, 900, 1_000), span(5, 390, 400)))
ENDED_SPANS = [span(0, 100, 200, ended_ms=210)]


@pytest.mark.parametrize(
    ("standing", "at_ms", "number"),
    [
        *((APART, at_ms, 0) for at_ms in (150, 250, 500, -500)),
        *((APART, at_ms, 5) for at_ms in (820, 1_000, 9_000)),
        (NEAR, 295, 0),  # in reach of both, which stay apart
        (ENDED_SPANS, 230, 0),
        ([*ENDED_SPANS, span(5, 240, 300)], 230, 5),
    ],
)
def test_fact_joins_an_episode_and_changes_none(standing: list[EpisodeRow], at_ms: int, number: int) -> None:
    joined = join(standing, fact(9, at_ms), GAP)
    assert (joined.episode.number, joined.changed) == (number, [])


def asked(**fields: Any) -> dict[str, Any]:
    return make_event("recall", LATER_MS, query="kiln", mode="recency", k=50, **fields)


def episode_of(response: dict[str, Any]) -> dict[str, str | None]:
    return {memory["id"]: memory["episode_id"] for memory in response["memories"]}


FACT_TIMES = st.builds(lambda place, off: 50 * place + off, st.integers(0, 16), st.sampled_from([-1, 0, 0, 1]))
STEPS = st.tuples(st.sampled_from(["message", "memory", "memory", "episode.end", "forget"]), FACT_TIMES)


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


MEMBERS = st.lists(st.tuples(st.sampled_from(["message", "memory"]), FACT_TIMES), min_size=1, max_size=14)


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
