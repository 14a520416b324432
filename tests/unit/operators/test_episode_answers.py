"""Episodes in answers and lists, and their summaries."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.control import Category, ControlHistory
from recallflow.limits import WHOLE_EPISODES_MAX
from recallflow.operators.episodes import episode_id
from recallflow.operators.recall.ranking import rank
from recallflow.operators.summaries import category_of
from recallflow.owner import Owner
from recallflow.state.rows import Entry, MemoryRow
from tests.groups import share
from tests.unit.operators.harness import DAY_MS, MINUTE_MS, ids, ids_of, make_entry, make_event, make_inputs, run_flow
from tests.unit.operators.test_apply import codes, forget, message, outcomes, update
from tests.unit.operators.test_derived import do, of

WORKSHOP = [
    ("hello", "Hi there."), ("kiln", "The pottery kiln cracked during firing."), ("snack", "Any biscuits left?"),
    ("fix", "We agreed to order 40 new bricks from Delft."), ("tired", "I had a long day."),
]  # fmt: skip
GARDEN = [("bye", "Hi there."), ("bulbs", "The bulbs want shade."), ("rain", "It may rain.")]


def told() -> list[dict[str, Any]]:
    return [
        make_event("message", day * DAY_MS + at * MINUTE_MS, id=name, session_id=session, name="Ida", content=text)
        for day, session, said in ((1, "workshop", WORKSHOP), (2, "garden", GARDEN))
        for at, (name, text) in enumerate(said)
    ]


def asked(query: str, **fields: Any) -> dict[str, Any]:
    return make_event("recall", 9 * DAY_MS, query=query, mode="episode", **fields)


def test_a_conversation_is_answered_whole_and_in_order_and_listed() -> None:
    question = asked("What happened to the pottery kiln?")
    (found,) = run_flow([*told(), question]).responses
    assert ids(found) == [name for name, _ in (*WORKSHOP, *GARDEN)]
    assert found["status"] == "ok"
    first, second = found["episodes"]
    assert (first["session_id"], first["size"], first["members_returned"]) == ("workshop", 5, 5)
    assert (first["start"], first["end"]) == ("1970-01-02T00:00:00Z", "1970-01-02T00:04:00Z")
    assert {memory["episode_id"] for memory in found["memories"][:5]} == {first["id"]}
    assert 1 >= first["relevance"] > second["relevance"] >= 0
    scores = [memory["score"] for memory in found["memories"]]
    assert scores == sorted(scores, reverse=True)


def test_key_entities_bring_their_conversation_to_the_front() -> None:
    urn = "urn:plant:squill"
    noted = make_event(
        "memory", 2 * DAY_MS, id="squill", session_id="garden", content="Blue.",
        entities=[{"name": "Squill", "urn": urn}],
    )  # fmt: skip
    question = "What happened to the pottery kiln?"
    by_words, by_urn, by_name = run_flow(
        [
            *told(), noted, asked(question), asked(question, entity_urns=[urn], weights={"mentions": 2}),
            asked("And Squill?"),
        ]
    ).responses  # fmt: skip
    assert [e["session_id"] for e in by_words["episodes"]] == ["workshop", "garden"]
    assert [e["session_id"] for e in by_urn["episodes"]] == ["garden", "workshop"]
    assert [e["session_id"] for e in by_name["episodes"]] == ["garden", "workshop"]
    assert by_urn["memories"][0]["score"] >= by_urn["memories"][-1]["score"]


@pytest.mark.parametrize("fields", [{"max_episodes": 0}, {"max_episodes": 51}, {"max_episodes": 2, "mode": "hybrid"}])
def test_fields_of_episodes_have_bounds_and_belong_to_their_mode(fields: dict[str, Any]) -> None:
    (found,) = run_flow([asked("kiln") | fields]).responses
    assert [field["field"] for field in found["error"]["fields"]] == ["max_episodes"]


def test_summary_holds_names_numbers_and_decisions() -> None:
    (found, listed) = run_flow([*told(), asked("kiln"), make_event("episodes.list", 9 * DAY_MS)]).responses
    expected = "Ida: The pottery kiln cracked during firing. Ida: We agreed to order 40 new bricks from Delft."
    assert found["episodes"][0]["summary"] == expected
    assert listed["episodes"][1]["summary"] == expected


@pytest.mark.parametrize(
    ("small", "telling"),
    [
        ("Das war ein langer Tag.", "Wir haben beschlossen, das Fest auf 14 Uhr zu verlegen."),
        ("Je suis très fatiguée.", "Nous avons décidé de louer la salle pour 300 euros."),
        ("Какой длинный день.", "Мы решили перенести встречу на 9 число."), ("今天很累。", "我们决定3月去北京。"),
        ("今日は疲れました。", "旅行は4月に決めました。"),
    ],
)  # fmt: skip
def test_a_summary_is_chosen_in_the_texts_own_language(small: str, telling: str) -> None:
    said = [small, telling, small.replace(".", "!").replace("。", "！")]
    events = [make_event("message", n * MINUTE_MS, session_id="s", content=text) for n, text in enumerate(said)]
    (listed,) = run_flow([*events, make_event("episodes.list", DAY_MS)]).responses
    assert listed["episodes"][0]["summary"] == f"user: {telling}"


def entries_of(*sizes: int) -> list[Entry]:
    starts = np.cumsum([0, *sizes]).tolist()
    return [
        make_entry(seq, episode=start, created_ms=seq)
        for start, size in zip(starts, sizes, strict=False)
        for seq in range(start, start + size)
    ]


def test_score_is_the_share_of_the_best_evidence() -> None:
    asked = make_inputs("episode", entries_of(1, 2), [0, 1, 1], relevance=[0.1, 0.4, 0.2])
    ranking = rank(asked)
    odds = np.array([2 * np.e, 1.0])
    shares = 0.4 * odds / odds.sum()
    np.testing.assert_allclose(ranking.scores, [shares[0], shares[0], shares[1]])
    np.testing.assert_allclose(ranking.factors["relevance"], ranking.scores)
    assert ranking.factors["mentions"].tolist() == [0, 0, 0]


def test_mentions_of_entities_raise_the_whole_episode() -> None:
    entries, signal = entries_of(2, 2), [1, 0, 0.5, 0]
    asked = make_inputs("episode", entries, signal, proximity=[0.5, 0, 0, 1], entity_urns=["urn:x:y"])
    ranking = rank(asked)
    assert ids_of(asked, ranking) == ["m2", "m3", "m0", "m1"], "one hop away is no mention"
    assert ranking.factors["mentions"].tolist() == [0.5, 0.5, 0, 0]
    unmoved = make_inputs("episode", entries, signal, proximity=[0.5, 0, 0, 1], weights={"mentions": 0})
    assert ids_of(unmoved, rank(unmoved)) == ["m0", "m1", "m2", "m3"]


def test_among_equal_members_the_nearer_centroid_decides() -> None:
    vectors = {0: (1, 0), 1: (0, 1)}
    asked = make_inputs("episode", entries_of(1, 1), [0, 0], vectors=vectors, asked=(0, 1))
    assert ids_of(asked, rank(asked)) == ["m1", "m0"]
    blind = make_inputs("episode", entries_of(1, 1), [0, 0], vectors=vectors)
    assert ids_of(blind, rank(blind)) == ["m0", "m1"]


def test_whole_episodes_have_a_bound() -> None:
    sizes = WHOLE_EPISODES_MAX - 1, WHOLE_EPISODES_MAX
    entries = entries_of(*sizes)
    signal = [1.0] * sizes[0] + [0.0] * sizes[1]
    best_first = rank(make_inputs("episode", entries, signal, k=50, whole_episodes=True))
    assert len(best_first.positions) == sizes[0]
    entries = entries_of(WHOLE_EPISODES_MAX + 50)
    signal = [float(n % 7) for n in range(len(entries))]
    cut = rank(make_inputs("episode", entries, signal, k=1, whole_episodes=True, max_episodes=1))
    assert len(cut.positions) == WHOLE_EPISODES_MAX
    assert cut.positions.tolist() == sorted(cut.positions.tolist())


SIGNALS = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@settings(max_examples=share(2))
@given(signal=SIGNALS, data=st.data(), k=st.integers(1, 12), whole=st.booleans())
def test_episode_scores_agree_with_their_explanation(
    signal: list[float], data: st.DataObject, k: int, whole: bool
) -> None:
    count = len(signal)
    episodes = sorted(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    near = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=count, max_size=count))
    entries = [make_entry(n, episode=episode, created_ms=n // 2) for n, episode in enumerate(episodes)]
    few, all_of_them = (
        rank(make_inputs("episode", entries, signal, proximity=near, k=some, whole_episodes=whole and some == k))
        for some in (k, count)
    )
    for ranking in (few, all_of_them):
        explained = sum(ranking.weights[name] * values for name, values in ranking.factors.items())
        np.testing.assert_allclose(ranking.scores, explained)
        assert (np.diff(ranking.scores) <= 0).all()
        by_score = [(-score, at) for score, at in zip(ranking.scores.tolist(), ranking.positions.tolist(), strict=True)]
        if len({*ranking.scores.tolist()}) == len({episodes[at] for _, at in by_score}):
            assert by_score == sorted(by_score), "within an episode the event time decides"
    scores = dict(zip(all_of_them.positions.tolist(), all_of_them.scores.tolist(), strict=True))
    for at, score in zip(few.positions.tolist(), few.scores.tolist(), strict=True):
        assert score == pytest.approx(scores[at])
    assert len(few.positions) == min(k, count) or (whole and k <= len(few.positions) <= count)


Event = tuple[str, dict[str, Any]]

TOLD = "Ann plans a trip"


def said(memory_id: str, content: str = "We go to Lisbon in May", **fields: Any) -> Event:
    return message(memory_id, content, session_id="s", **fields)


def summary(opener: str = "a", *sources: str, text: str = TOLD, **fields: Any) -> Event:
    derived = of(sources[0], None, *sources[1:]) if sources else {}
    named = episode_id(Owner("acme", "prod", "ann"), "s", opener)
    return "episode.summary", {"episode_id": named, "summary": text, "session_id": "s", **derived, **fields}


LISTED: Event = ("episodes.list", {"session_id": "s"})
ASKED: Event = ("recall", {"query": "Lisbon", "mode": "episode"})


def summaries(response: dict[str, Any]) -> list[str]:
    return [one["summary"] for one in response["episodes"]]


@pytest.mark.parametrize("asked", [LISTED, ASKED], ids=["listed", "ranked"])
@pytest.mark.parametrize("sources", [(), ("a",), ("a", "b")], ids=["told", "of one", "of both"])
def test_given_summary_is_shown_instead_of_sentences(asked: Event, sources: tuple[str, ...]) -> None:
    done = do(said("a"), said("b", "Good"), asked, summary("a", *(sources or ())), asked)
    expected = "outdated" if sources == ("a",) else "updated"  # made before the last message came
    assert outcomes(done)[2:] == [expected]
    extractive, now = map(summaries, done.responses)
    assert now == (extractive if expected == "outdated" else [TOLD])


@pytest.mark.parametrize("asked", [LISTED, ASKED], ids=["listed", "ranked"])
@pytest.mark.parametrize(
    "event", [said("late"), said("early", timestamp=30_000), forget(memory_id="b"), update("b", content="Porto it is")],
    ids=["another message", "a late message", "forgotten", "edited"],
)  # fmt: skip
def test_summary_is_dropped_when_the_episode_changes(asked: Event, event: Event) -> None:
    done = do(said("a"), said("b"), summary("a", "a", "b"), asked, event, asked)
    first, second = map(summaries, done.responses)
    assert first == [TOLD]
    assert len(second) == 1
    assert TOLD not in second


@pytest.mark.parametrize(
    "event",
    [update("b", tags=["a"]), ("episode.end", {"session_id": "s"}), ("memory", {"content": "x", "session_id": "s"})],
    ids=["tagged", "ended", "a fact"],
)
def test_summary_stays_while_messages_are_unchanged(event: Event) -> None:
    done = do(said("a"), said("b"), summary("a", "a", "b"), event, LISTED)
    assert summaries(done.responses[0]) == [TOLD]


def test_summary_of_an_unknown_episode_is_refused_or_outdated() -> None:
    done = do(
        said("a"), summary("nobody"), summary("nobody", "a"), message("other", "x", session_id="t"),
        summary("a", "other"),
    )  # fmt: skip
    assert codes(done) == [("not_found", ["episode_id"])]
    assert outcomes(done) == ["created", "outdated", "created", "outdated"]


@pytest.mark.parametrize(
    ("as_of", "shown"),
    [
        ({"event_time": MINUTE_MS + 1}, True), ({"event_time": MINUTE_MS - 1}, False),
        ({"ingestion_time": MINUTE_MS}, False),
    ],
)  # fmt: skip
def test_past_answer_shows_a_summary_only_if_complete_then(as_of: dict[str, int], shown: bool) -> None:
    kind, fields = ASKED
    done = do(said("a"), said("b"), summary("a", "a", "b"), (kind, fields | {"as_of": as_of}))
    assert (summaries(done.responses[0]) == [TOLD]) == shown


OF_TENANT = {"boats": "Boats", "rule": "Rule", "fact": "Fact"}


@pytest.mark.parametrize(
    ("fields", "known", "category"),
    [
        ({"category": "home", "topics": ["boats"], "tags": ["sea"], "kind": "rule"}, {}, "home"),
        ({"topics": ["boats", "oars"], "tags": ["sea"], "kind": "rule"}, {}, "boats"),
        ({"tags": ["sea", "salt"], "kind": "rule"}, {}, "sea"), ({"kind": "rule"}, {}, "rule"),
        ({"kind": "fact"}, {}, None), ({"kind": "message"}, {}, None),
        ({"category": "home", "topics": ["boats"]}, OF_TENANT, "home"),
        ({"topics": ["oars", "BOATS"]}, OF_TENANT, "Boats"),
        ({"topics": ["oars"], "tags": ["sea", "boats"]}, OF_TENANT, "Boats"),
        ({"topics": ["oars"], "kind": "rule"}, OF_TENANT, "Rule"),
        ({"topics": ["oars"], "kind": "preference"}, OF_TENANT, "oars"), ({"kind": "fact"}, OF_TENANT, None),
    ],
)  # fmt: skip
def test_category_is_given_or_found(fields: dict[str, Any], known: dict[str, str], category: str | None) -> None:
    assert category_of(MemoryRow("m", 0, 0, 0, "tea", 0, 0, **fields), known) == category


def category_summaries(told: list[dict[str, Any]], **fields: Any) -> dict[str, str]:
    (found,) = run_flow([*told, make_event("recall", 9_000, query="boat", max_tokens=2_000, **fields)]).responses
    context: dict[str, str] = found["context"]["summaries"]
    return context


def test_without_a_model_categories_are_summed_up() -> None:
    told = [
        make_event("memory", 1_000, category="harbour", content="We agreed to sell the boat to Nils for 7,000."),
        make_event("memory", 2_000, category="harbour", content="It was nice."),
        make_event("memory", 3_000, topics=["harbour"], content="The boat lies at pier 12."),
        make_event("memory", 4_000, tags=["winter"], content="The boat comes out in November."),
        make_event("memory", 5_000, kind="preference", content="Ida likes a red hull."),
        make_event("message", 6_000, content="The boat is wet."),
        make_event("category.summary", 7_000, category="winter", summary="Told by somebody."),
    ]
    assert category_summaries(told) == {
        "harbour": "We agreed to sell the boat to Nils for 7,000. The boat lies at pier 12.",
        "preference": "Ida likes a red hull.", "winter": "Told by somebody.",
    }  # fmt: skip
    assert [*category_summaries(told, filters={"categories": ["harbour"]})] == ["harbour"]
    private = {"created_before": 2_500}
    assert category_summaries(told, filters=private)["harbour"].count("boat") == 1


def test_a_context_sums_up_by_the_tenants_categories() -> None:
    told = [
        make_event("memory", 1_000, topics=["pier", "harbour"], content="The boat lies at pier 12."),
        make_event("memory", 2_000, topics=["pier"], content="The boat was sold to Nils."),
        make_event("recall", 9_000, query="boat", max_tokens=2_000),
    ]
    decisions = ControlHistory()
    for at_ms, name, removed in ((0, "Harbour", False), (0, "pier", False), (1, "pier", True)):
        event = Category(type="category", tenant_id="acme", name=name, description="Boats.", removed=removed)
        decisions.add(at_ms, event)
    (found,) = run_flow(told, decisions=decisions).responses
    assert found["context"]["summaries"] == {
        "Harbour": "The boat lies at pier 12.", "pier": "The boat was sold to Nils.",
    }  # fmt: skip
