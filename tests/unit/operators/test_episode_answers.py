"""Answers in the mode `episode`: which episodes are chosen, their order and size, and their summaries."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.limits import WHOLE_EPISODES_MAX
from recallflow.operators.recall.ranking import rank
from recallflow.state.rows import Entry
from tests.groups import share
from tests.unit.operators.harness import DAY_MS, MINUTE_MS, ids, ids_of, make_entry, make_event, make_inputs, run_flow

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
        ("Какой длинный день.", "Мы решили перенести встречу на 9 число."),
        ("今天很累。", "我们决定3月去北京。"),
        ("今日は疲れました。", "旅行は4月に決めました。"),
    ],
)
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
    assert len(best_first.places) == sizes[0]
    entries = entries_of(WHOLE_EPISODES_MAX + 50)
    signal = [float(n % 7) for n in range(len(entries))]
    cut = rank(make_inputs("episode", entries, signal, k=1, whole_episodes=True, max_episodes=1))
    assert len(cut.places) == WHOLE_EPISODES_MAX
    assert cut.places.tolist() == sorted(cut.places.tolist())


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
        by_score = [(-score, at) for score, at in zip(ranking.scores.tolist(), ranking.places.tolist(), strict=True)]
        if len({*ranking.scores.tolist()}) == len({episodes[at] for _, at in by_score}):
            assert by_score == sorted(by_score), "within an episode the event time decides"
    scores = dict(zip(all_of_them.places.tolist(), all_of_them.scores.tolist(), strict=True))
    for at, score in zip(few.places.tolist(), few.scores.tolist(), strict=True):
        assert score == pytest.approx(scores[at])
    assert len(few.places) == min(k, count) or (whole and k <= len(few.places) <= count)
