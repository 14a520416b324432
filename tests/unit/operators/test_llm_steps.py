"""What a language model has a part in: which summaries are loaded, whether they are enough, and the smaller questions a
question is made of. Where it fails, nothing is lost; while it thinks, others are answered."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest

from recallflow.control import Category
from recallflow.decisions import History
from recallflow.errors import ModelFailure
from recallflow.llm import Prompt
from recallflow.operators.answers import asides
from recallflow.operators.answers import models as asking
from recallflow.operators.answers.models import Job, Models, Within
from recallflow.operators.recall.llm_steps import CONTEXT_TOKENS
from recallflow.operators.recall.respond import finish
from recallflow.operators.recall.said import Said, Wanted
from recallflow.operators.recall.stages import Found, Recalled
from recallflow.operators.step import Clocks
from recallflow.records import Position
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers
from tests.unit.operators.models import Clock, Language, failing

MakeEvent = Callable[..., dict[str, Any]]
Open = Callable[..., Harness]

DAY_MS = 86_400_000
SUMMARIES = {"diet": "Ana eats no meat.", "travel": "Ana moved to Porto in May.", "work": "Ana works at a bakery."}
SAID = {
    "m1": ("Ana works at the bakery in the old town", "work"),
    "m2": ("Ana moved to Porto in May", "travel"),
    "m3": ("Ana has not eaten meat since March", "diet"),
    "m4": ("The bakery was founded by Rui", "work"),
    "m5": ("Rui was born in Faro", None),
}
STEPS = {"select_categories": True, "check_sufficiency": True}
YES, NO = {"sufficient": True}, {"sufficient": False}


@pytest.fixture
def language() -> Language:
    return Language(
        select_categories={"categories": ["travel", "diet"]}, check_sufficiency=NO, rewrite={"questions": []}
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_engine(tmp_path: Path, language: Language, clock: Clock) -> Iterator[Open]:
    with ExitStack() as stack:

        def opened(folder: str = "state", timeout_s: float = 60.0, *, has_model: bool = True, **chosen: Any) -> Harness:
            models = stack.enter_context(Models(Within(language, timeout_s), now_s=clock)) if has_model else None
            engine = Harness(tmp_path / folder, models=models, **chosen)
            stack.callback(engine.stop)
            return engine

        yield opened


@pytest.fixture
def told(make_event: MakeEvent) -> list[dict[str, Any]]:
    memories = [
        make_event("memory", n, id=memory_id, content=text, **({} if category is None else {"category": category}))
        for n, (memory_id, (text, category)) in enumerate(SAID.items())
    ]
    return memories + [
        make_event("category.summary", 10, category=name, summary=text) for name, text in SUMMARIES.items()
    ]


def ask(make_event: MakeEvent, **fields: Any) -> dict[str, Any]:
    return make_event("recall", DAY_MS, **{"query": "Where does Ana live?", "k": 4} | fields)


def ids(response: dict[str, Any]) -> list[str]:
    return [memory["id"] for memory in response["memories"]]


def codes(response: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in response["warnings"]]


def plain(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The memories of an answer."""
    memories: list[dict[str, Any]] = response["memories"]
    return memories


# ── categories ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_selected_categories_limit_and_order_the_summaries_and_no_memory(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    engine = open_engine(one_log=True)
    usual, selected = answers(engine.run(MEMORIES, *told, ask(make_event), ask(make_event, select_categories=True)))
    assert [*selected["context"]["summaries"].items()] == [(name, SUMMARIES[name]) for name in ("travel", "diet")]
    assert selected["context"]["omitted"]["summaries"] == {"filters": 1, "budget": 0}
    assert ids(selected) == ids(usual)
    assert "context" not in usual
    assert (selected["computation_tier"], selected["sla_target_ms"], selected["status"]) == ("llm", 1_500, "ok")
    assert selected["routing_info"]["models"] == {
        "select_categories": {"model": "fake-llm", "took_ms": 0.0, "tokens": 110}
    }
    assert (language.tasks, language.tenants) == (["select_categories"], ["acme"])


def test_those_are_offered_that_have_a_summary_with_what_the_operator_says_of_them(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    decisions = History()
    for at_ms, (name, removed) in enumerate({"work": False, "diet": False, "hobbies": False, "travel": True}.items()):
        event = Category(type="category", tenant_id="acme", name=name, description=f"all about {name}", removed=removed)
        decisions.add(at_ms, event)
    engine = open_engine(one_log=True, rules={"decisions": decisions})
    engine.run(MEMORIES, *told, ask(make_event, select_categories=True))
    offered = [{"name": name, "about": f"all about {name}"} for name in ("diet", "work")]
    assert language.shown("select_categories")["categories"] == offered


def test_without_an_operators_categories_those_at_hand_are_offered_as_the_filters_have_them(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    engine = open_engine(one_log=True)
    asked = (
        ask(make_event, select_categories=True),
        ask(make_event, select_categories=True, filters={"categories": ["work", "travel"]}),
    )
    engine.run(MEMORIES, *told, asked[0])
    assert language.shown("select_categories")["categories"] == [
        {"name": name, "about": SUMMARIES[name]} for name in sorted(SUMMARIES)
    ]
    (filtered,) = answers(engine.run(MEMORIES, asked[1]))
    assert [one["name"] for one in language.shown("select_categories")["categories"]] == ["work", "travel"]
    assert [*filtered["context"]["summaries"]] == ["travel"]


def test_a_name_that_was_not_offered_is_nothing(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    language.says["select_categories"] = {"categories": ["secrets", "travel", "travel"]}
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event, select_categories=True)))
    assert [*response["context"]["summaries"]] == ["travel"]


def test_where_no_category_helps_none_is_loaded(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    language.says["select_categories"] = {"categories": []}
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event, select_categories=True)))
    assert (response["context"]["summaries"], bool(response["memories"])) == ({}, True)


def test_a_context_that_nobody_gave_a_budget_has_one(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    long = make_event("category.summary", 11, category="long", summary="word " * CONTEXT_TOKENS)
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, long, ask(make_event, check_sufficiency=True)))
    assert response["context"]["omitted"]["summaries"] == {"filters": 0, "budget": 1}


# ── are summaries enough? ─────────────────────────────────────────────────────────────────────────────────────────


def test_where_summaries_are_enough_the_answer_is_cut_to_those_selected(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    language.says["check_sufficiency"] = YES
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event, **STEPS)))
    context = response["context"]
    assert (response["sufficient"], response["memories"], response["status"]) == (True, [], "ok")
    assert [*context["summaries"]] == ["travel", "diet"]
    assert (context["relevant_items"], context["graph_context"]) == ([], [])
    assert language.tasks == ["check_sufficiency", "select_categories"]
    assert language.shown("check_sufficiency")["summaries"] == SUMMARIES
    gets = [make_event("memory.get", DAY_MS, memory_id=memory_id) for memory_id in SAID]
    assert {got["usage"]["count"] for got in answers(engine.run(MEMORIES, *gets))} == {0}


def test_where_they_are_not_the_answer_is_the_usual_one(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    engine = open_engine(one_log=True)
    usual, checked = answers(
        engine.run(MEMORIES, *told, ask(make_event), ask(make_event, check_sufficiency=True, max_tokens=500))
    )
    assert (checked["sufficient"], checked["status"], ids(checked)) == (False, "ok", ids(usual))
    assert {*checked["context"]["summaries"]} == {*SUMMARIES}


@pytest.mark.parametrize("chosen", [{"select_categories": {"categories": []}}, {"max_tokens": 3}])
def test_what_is_enough_is_shown_or_the_memories_stay(
    open_engine: Open,
    told: list[dict[str, Any]],
    make_event: MakeEvent,
    language: Language,
    chosen: dict[str, Any],
) -> None:
    """No category was selected; or the budget has no room for the summaries."""
    language.says["check_sufficiency"] = YES
    if "select_categories" in chosen:
        language.says |= chosen
    engine = open_engine(one_log=True)
    asked = ask(make_event, **STEPS, **({} if "select_categories" in chosen else chosen))
    (response,) = answers(engine.run(MEMORIES, *told, asked))
    assert (response["sufficient"], bool(response["memories"])) == (False, True)


def test_without_summaries_nothing_is_asked(open_engine: Open, make_event: MakeEvent, language: Language) -> None:
    engine = open_engine(one_log=True)
    said = make_event("message", 0, content="I live in Porto", role="user")
    (response,) = answers(engine.run(MEMORIES, said, ask(make_event, k=1, **STEPS)))
    assert (language.asked, codes(response), response["status"]) == ([], ["llm_skipped"], "ok")
    assert (response["sufficient"], len(response["memories"])) == (False, 1)
    assert response["computation_tier"] == "standard"


def test_a_verdict_on_summaries_that_changed_meanwhile_is_none(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    language.says["check_sufficiency"] = YES
    engine = open_engine()
    engine.run(MEMORIES, *told)
    assert answers(engine.run(QUERIES, ask(make_event, check_sufficiency=True))) == []
    engine.run(MEMORIES, make_event("category.summary", DAY_MS, category="travel", summary="Ana left Porto."))
    (response,) = answers(engine.complete())
    assert (response["sufficient"], bool(response["memories"])) == (False, True)
    assert response["context"]["summaries"]["travel"] == "Ana left Porto."


# ── without a model, and with one that fails ──────────────────────────────────────────────────────────────────────


def test_without_a_model_all_categories_are_loaded_and_the_memories_stay(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    engine = open_engine(one_log=True, has_model=False)
    usual, without = answers(
        engine.run(MEMORIES, *told, ask(make_event, max_tokens=2_000), ask(make_event, **STEPS, rewrite=True))
    )
    assert (without["status"], codes(without)) == ("degraded", ["llm_off"])
    assert all(step in without["warnings"][0]["detail"] for step in (*STEPS, "rewrite"))
    assert {*without["context"]["summaries"]} == {*SUMMARIES}
    assert (without["sufficient"], ids(without)) == (False, ids(usual))


@pytest.mark.parametrize("failure", get_args(ModelFailure))
def test_a_failing_step_loses_nothing_says_why_and_quotes_nothing(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language, failure: str
) -> None:
    language.says = dict.fromkeys(("select_categories", "check_sufficiency", "rewrite"), failing(failure))
    engine = open_engine(one_log=True)
    usual, failed = answers(
        engine.run(MEMORIES, *told, ask(make_event, max_tokens=2_000), ask(make_event, **STEPS, rewrite=True))
    )
    assert failed["status"] == "degraded"
    assert codes(failed) == ["llm_failed"] * 3
    assert all(f": {failure};" in warning["detail"] for warning in failed["warnings"])
    assert "1234" not in str(failed)
    assert {*failed["context"]["summaries"]} == {*SUMMARIES}
    assert (failed["sufficient"], ids(failed)) == (False, ids(usual))
    assert {one["failure"] for one in failed["routing_info"]["models"].values()} == {failure}


def test_one_step_may_fail_alone(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    language.says["check_sufficiency"] = failing("malformed")
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event, **STEPS)))
    assert codes(response) == ["llm_failed"]
    assert [*response["context"]["summaries"]] == ["travel", "diet"]


def test_a_model_that_hangs_is_given_up(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    language.hangs = {"select_categories"}
    engine = open_engine(timeout_s=0.0, one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event, **STEPS)))
    assert "select_categories: timeout" in response["warnings"][0]["detail"]
    assert bool(response["memories"])


def test_a_client_that_fails_itself_does_no_more_than_a_model_that_does(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    language.says["select_categories"] = ZeroDivisionError("my card is 1234")
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event, select_categories=True)))
    assert (codes(response), "1234" in str(response)) == (["llm_failed"], False)


def test_a_query_without_time_for_the_model_goes_without_it(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language, clock: Clock
) -> None:
    def think() -> None:
        clock.now_s += 0.5

    language.meanwhile = think
    engine = open_engine(one_log=True, clocks=Clocks(timer=clock, now_ms=lambda: 0))
    asked = ask(make_event, select_categories=True)
    first, second = answers(engine.run(MEMORIES, *told, asked, asked | {"sla_target_ms": 100}))
    # The call is under way while what can be found is found: whichever stage it ends in has its time.
    assert (first["processing_time_ms"], sum(first["routing_info"]["stages_ms"].values())) == (500, 500)
    assert (codes(second), len(language.asked)) == (["deadline"], 1)
    assert second["warnings"][0]["detail"] == "went without llm to be done within 100 ms"
    assert {*second["context"]["summaries"]} == {*SUMMARIES}


# ── nobody waits, and nothing is lost ─────────────────────────────────────────────────────────────────────────────


def test_others_are_answered_while_a_model_hangs(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    language.hangs = {"select_categories"}
    engine = open_engine()
    engine.run(MEMORIES, *told)
    both = engine.run(QUERIES, ask(make_event, id="slow", **STEPS), ask(make_event, id="quick"))
    assert [answer["query_id"] for answer in answers(both)] == ["quick"]
    assert answers(engine.run(QUERIES, ask(make_event, id="later")))


def test_what_is_forgotten_meanwhile_is_in_no_answer(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, ask(make_event, **STEPS))
    engine.run(MEMORIES, make_event("memory.forget", DAY_MS, memory_id="m2"))
    (response,) = answers(engine.complete())
    assert "m2" not in ids(response)
    assert response["applied"] == ["memories:0:8"]


@pytest.mark.parametrize("kept", [0, asides.KEPT])
def test_what_was_found_meanwhile_is_what_would_be_found_after(
    open_engine: Open,
    told: list[dict[str, Any]],
    make_event: MakeEvent,
    monkeypatch: pytest.MonkeyPatch,
    kept: int,
) -> None:
    """Another owner's event between is none of its business; nor is how much is kept."""
    monkeypatch.setattr(asides, "KEPT", kept)
    engine = open_engine()
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, ask(make_event, max_tokens=2_000, select_categories=True))
    engine.run(MEMORIES, make_event("memory", DAY_MS, content="I live here", user_id="bob"))
    (meanwhile,) = answers(engine.complete())
    other = open_engine("other", one_log=True)
    (after,) = answers(other.run(MEMORIES, *told, ask(make_event, max_tokens=2_000, select_categories=True)))
    assert (meanwhile["memories"], meanwhile["context"]) == (after["memories"], after["context"])
    assert meanwhile["applied"] == ["memories:0:8"]


def test_a_question_that_is_with_models_survives_a_kill_and_is_answered_once(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, language: Language
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    assert answers(engine.run(QUERIES, ask(make_event, id="q", **STEPS))) == []
    snapshot = engine.snapshot()
    engine.kill(snapshot)
    again = engine.advance_to_end()
    found = answers([*again, *engine.complete(2)])  # the completion of the killed run belongs to nobody
    assert [response["query_id"] for response in found] == ["q"]
    assert len(language.asked) == 4
    assert engine.snapshot().held == ()


def test_what_it_returned_counts_as_used_once(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, ask(make_event, **STEPS))
    (response,) = answers(engine.complete())
    gets = [make_event("memory.get", DAY_MS, memory_id=memory_id) for memory_id in SAID]
    used = {got["versions"][0]["id"]: got["usage"]["count"] for got in answers(engine.run(QUERIES, *gets))}
    assert used == {memory_id: int(memory_id in ids(response)) for memory_id in SAID}


def test_too_many_questions_at_once_go_without(
    open_engine: Open,
    told: list[dict[str, Any]],
    make_event: MakeEvent,
    language: Language,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "AT_ONCE", 1)
    language.hangs = {"select_categories"}
    engine = open_engine()
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, *(ask(make_event, id=f"q{n}", select_categories=True) for n in range(2)))
    (refused,) = answers(engine.complete())
    assert "select_categories: busy" in refused["warnings"][0]["detail"]
    assert (len(language.asked), refused["computation_tier"]) == (1, "standard")


def test_the_first_of_two_questions_at_the_same_moment_is_not_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "AT_ONCE", 1)
    prompt = Prompt("select_categories", "1", "", "<data>{}</data>", {})

    async def both(models: Models) -> list[str | None]:
        wanted = Wanted({"select_categories": prompt})
        jobs = [Job("acme", wanted, Position(QUERIES, 0, number)) for number in range(2)]
        answered = await asyncio.gather(*(models.ask(job) for job in jobs))
        return [one.ended["select_categories"].failure for one in answered]

    with Models(Within(Language(select_categories={"categories": []}), 5.0)) as models:
        assert asyncio.run(both(models)) == [None, "busy"]


def test_where_our_own_code_fails_at_what_was_found_all_is_looked_up_again(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, ask(make_event, select_categories=True))
    finished: list[bool] = []

    def broken_once(found: Found, said: Said, rewritten: list[str]) -> Recalled:
        finished.append(True)
        if len(finished) == 1:
            raise ZeroDivisionError
        return finish(found, said, rewritten)

    monkeypatch.setattr("recallflow.operators.recall.pipeline.finish", broken_once)
    (response,) = answers(engine.complete())
    assert (response["status"], len(finished), [*response["context"]["summaries"]]) == ("ok", 2, ["travel", "diet"])
