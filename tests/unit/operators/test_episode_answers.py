"""Answers in the mode `episode`, through the whole flow: conversations in the order they were said, and their list."""

from typing import Any

import pytest

from tests.unit.operators.harness import make_event, run_flow

MINUTE_MS, DAY_MS = 60_000, 86_400_000

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


def ids(response: dict[str, Any]) -> list[str]:
    return [memory["id"] for memory in response["memories"]]


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


def test_what_was_left_out_of_an_episode_is_told() -> None:
    question = "What happened to the pottery kiln?"
    short, one, whole, filtered = run_flow(
        [
            *told(),
            asked(question, k=2, max_episodes=1),
            asked(question, max_episodes=1),
            asked(question, k=1, whole_episodes=True),
            asked(question, filters={"created_before": DAY_MS + 2 * MINUTE_MS}),
        ]
    ).responses
    assert [(e["size"], e["members_returned"]) for e in short["episodes"]] == [(5, 2)]
    assert ids(short) == sorted(ids(short), key=[name for name, _ in WORKSHOP].index)
    assert "kiln" in ids(short)
    assert ids(one) == ids(whole) == [name for name, _ in WORKSHOP]
    assert [(e["size"], e["members_returned"]) for e in filtered["episodes"]] == [(5, 2)]


def test_facts_of_the_session_are_members() -> None:
    fact = make_event("memory", 3 * DAY_MS, id="fact", session_id="workshop", content="Ida owns a kiln.")
    question = asked("What happened to the pottery kiln?", max_episodes=1)
    (found,) = run_flow([*told(), fact, question]).responses
    assert ids(found) == [*(name for name, _ in WORKSHOP), "fact"]
    assert found["episodes"][0]["size"] == found["episodes"][0]["members_returned"] == 6


def test_key_entities_bring_their_conversation_to_the_front() -> None:
    urn = "urn:plant:squill"
    noted = make_event(
        "memory", 2 * DAY_MS, id="squill", session_id="garden", content="Blue.",
        entities=[{"name": "Squill", "urn": urn}],
    )  # fmt: skip
    question = "What happened to the pottery kiln?"
    by_words, by_urn, by_name = run_flow(
        [
            *told(),
            noted,
            asked(question),
            asked(question, entity_urns=[urn], weights={"mentions": 2}),
            asked("And Squill?"),
        ]
    ).responses
    assert [e["session_id"] for e in by_words["episodes"]] == ["workshop", "garden"]
    assert [e["session_id"] for e in by_urn["episodes"]] == ["garden", "workshop"]
    assert [e["session_id"] for e in by_name["episodes"]] == ["garden", "workshop"]
    assert by_urn["memories"][0]["score"] >= by_urn["memories"][-1]["score"]


@pytest.mark.parametrize("fields", [{"max_episodes": 0}, {"max_episodes": 51}, {"max_episodes": 2, "mode": "hybrid"}])
def test_fields_of_episodes_have_bounds_and_belong_to_their_mode(fields: dict[str, Any]) -> None:
    (found,) = run_flow([asked("kiln") | fields]).responses
    assert [field["field"] for field in found["error"]["fields"]] == ["max_episodes"]


def test_an_owner_without_memories_has_no_episodes() -> None:
    (found,) = run_flow([asked("kiln")]).responses
    assert (found["memories"], found["episodes"]) == ([], [])


def test_other_modes_list_no_episodes() -> None:
    (found,) = run_flow([*told(), asked("kiln") | {"mode": "hybrid"}]).responses
    assert "episodes" not in found


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


def test_long_conversation_is_summarised_by_its_rare_words() -> None:
    said = ["Sounds good to me, see you around then."] * 40 + ["Greta sold the sawmill in Tampere for 90,000."]
    events = [
        make_event("message", n * MINUTE_MS, session_id="s", content=text, id=f"m{n}") for n, text in enumerate(said)
    ]
    (listed,) = run_flow([*events, make_event("episodes.list", DAY_MS)]).responses
    assert "Tampere" in listed["episodes"][0]["summary"]
