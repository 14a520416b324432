"""Summaries of episodes and categories, given or made from the memories."""

from typing import Any

import pytest

from recallflow.control import Category, ControlHistory
from recallflow.operators.episodes import episode_id
from recallflow.operators.summaries import category_of
from recallflow.owner import Owner
from recallflow.state.rows import MemoryRow
from tests.unit.operators.harness import MINUTE_MS, make_event, run_flow
from tests.unit.operators.test_apply import codes, forget, message, outcomes, update
from tests.unit.operators.test_derived import do, of

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
    "event",
    [said("late"), said("early", timestamp=30_000), forget(memory_id="b"), update("b", content="Porto it is")],
    ids=["another message", "a late message", "forgotten", "edited"],
)
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
        ({"event_time": MINUTE_MS + 1}, True),
        ({"event_time": MINUTE_MS - 1}, False),
        ({"ingestion_time": MINUTE_MS}, False),
    ],
)
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
        "preference": "Ida likes a red hull.",
        "winter": "Told by somebody.",
    }
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
        "Harbour": "The boat lies at pier 12.",
        "pier": "The boat was sold to Nils.",
    }
