"""Steps of a query that ask a language model: category selection, the sufficiency check, and rewriting. Where the model
fails, the answer is the usual one; meanwhile, other queries are answered. Each asynchronous call has one result."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, get_args

import pytest

from recallflow.control import Category, ControlHistory
from recallflow.errors import ModelFailure
from recallflow.operators.answers import models as asking
from recallflow.operators.answers import parked_queries
from recallflow.operators.answers.models import Models, TimedModel
from recallflow.operators.async_call import AsyncCall, CallCompletion, CallError, Completions, Runtime
from recallflow.operators.recall.compose import ResponseAndEffects, finish
from recallflow.operators.step import Clocks
from tests.unit.operators.harness import DAY_MS, MEMORIES, QUERIES, Harness, answers, codes, ids, make_event
from tests.unit.operators.models import Clock, Language, failing

Open = Callable[..., Harness]

SUMMARIES = {"diet": "Ana eats no meat.", "travel": "Ana moved to Porto in May.", "work": "Ana works at a bakery."}
SAID = {
    "m1": ("Ana works at the bakery in the old town", "work"), "m2": ("Ana moved to Porto in May", "travel"),
    "m3": ("Ana has not eaten meat since March", "diet"), "m4": ("The bakery was founded by Rui", "work"),
    "m5": ("Rui was born in Faro", None),
}  # fmt: skip
TOLD = [
    *(make_event("memory", n, id=one, content=SAID[one][0], category=SAID[one][1]) for n, one in enumerate(SAID)),
    *(make_event("category.summary", 10, category=name, summary=text) for name, text in SUMMARIES.items()),
]
STEPS = {"select_categories": True, "check_sufficiency": True}
YES, NO = {"sufficient": True}, {"sufficient": False}


@pytest.fixture
def language() -> Language:
    selected = {"categories": ["travel", "diet"]}
    return Language(select_categories=selected, check_sufficiency=NO, rewrite={"questions": []})


@pytest.fixture
def open_engine(open_harness: Open, language: Language, clock: Clock) -> Open:
    """Open an engine with a language model; with `told`, the memories are in it."""

    def opened(*, told: bool = False, timeout_s: float = 60.0, has_model: bool = True, **chosen: Any) -> Harness:
        models = Models(TimedModel(language, timeout_s), now_s=clock) if has_model else None
        engine = open_harness(models=models, **chosen)
        if told:
            engine.run(MEMORIES, *TOLD)
        return engine

    return opened


@pytest.fixture
def answered(open_engine: Open) -> Callable[..., list[dict[str, Any]]]:
    """Return the answers to queries on a log of the memories and these, which ends."""
    return lambda *asked, **chosen: answers(open_engine(one_log=True, **chosen).run(MEMORIES, *TOLD, *asked))


Answered = Callable[..., list[dict[str, Any]]]


def ask(**fields: Any) -> dict[str, Any]:
    return make_event("recall", DAY_MS, **{"query": "Where does Ana live?", "k": 4} | fields)


def test_selected_categories_limit_and_order_the_summaries_and_no_memory(
    answered: Answered, language: Language
) -> None:
    usual, selected = answered(ask(), ask(select_categories=True))
    assert [*selected["context"]["summaries"].items()] == [(name, SUMMARIES[name]) for name in ("travel", "diet")]
    assert selected["context"]["omitted"]["summaries"] == {"filters": 1, "budget": 0}
    assert ids(selected) == ids(usual)
    assert "context" not in usual
    assert (selected["computation_tier"], selected["sla_target_ms"], selected["status"]) == ("llm", 1_500, "ok")
    told = {"model": "fake-llm", "took_ms": 0.0, "tokens": 110}
    assert selected["routing_info"]["models"] == {"select_categories": told}
    assert (language.tasks, language.tenants) == (["select_categories"], ["acme"])


def test_offered_categories_have_summaries_and_descriptions(answered: Answered, language: Language) -> None:
    decisions = ControlHistory()
    for at_ms, (name, removed) in enumerate({"work": False, "diet": False, "hobbies": False, "travel": True}.items()):
        event = Category(type="category", tenant_id="acme", name=name, description=f"all about {name}", removed=removed)
        decisions.add(at_ms, event)
    answered(ask(select_categories=True), rules={"decisions": decisions})
    offered = [{"name": name, "about": f"all about {name}"} for name in ("diet", "work")]
    assert language.shown("select_categories")["categories"] == offered


def test_without_operator_categories_those_with_summaries_are_offered(answered: Answered, language: Language) -> None:
    answered(ask(select_categories=True))
    assert language.shown("select_categories")["categories"] == [
        {"name": name, "about": SUMMARIES[name]} for name in sorted(SUMMARIES)
    ]
    (filtered,) = answered(ask(select_categories=True, filters={"categories": ["work", "travel"]}))
    assert [one["name"] for one in language.shown("select_categories")["categories"]] == ["work", "travel"]
    assert [*filtered["context"]["summaries"]] == ["travel"]


@pytest.mark.parametrize(("said", "loaded"), [(["secrets", "travel", "travel"], ["travel"]), ([], [])])
def test_a_name_that_was_not_offered_is_nothing(
    answered: Answered, language: Language, said: list[str], loaded: list[str]
) -> None:
    language.says["select_categories"] = {"categories": said}
    (response,) = answered(ask(select_categories=True))
    assert ([*response["context"]["summaries"]], bool(response["memories"])) == (loaded, True)


def test_sufficient_summaries_cut_the_answer_to_their_categories(open_engine: Open, language: Language) -> None:
    language.says["check_sufficiency"] = YES
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *TOLD, ask(**STEPS)))
    context = response["context"]
    assert (response["sufficient"], response["memories"], response["status"]) == (True, [], "ok")
    assert [*context["summaries"]] == ["travel", "diet"]
    assert (context["relevant_items"], context["graph_context"]) == ([], [])
    assert language.tasks == ["check_sufficiency", "select_categories"]
    assert language.shown("check_sufficiency")["summaries"] == SUMMARIES
    gets = [make_event("memory.get", DAY_MS, memory_id=memory_id) for memory_id in SAID]
    assert {got["usage"]["count"] for got in answers(engine.run(MEMORIES, *gets))} == {0}


@pytest.mark.parametrize(("selected", "fields"), [([], {}), (["travel"], {"max_tokens": 3})])
def test_hidden_summaries_replace_no_memory(
    answered: Answered, language: Language, selected: list[str], fields: dict[str, Any]
) -> None:
    language.says |= {"check_sufficiency": YES, "select_categories": {"categories": selected}}
    (response,) = answered(ask(**STEPS, **fields))
    assert (response["sufficient"], bool(response["memories"])) == (False, True)


def test_verdict_on_summaries_that_changed_meanwhile_is_ignored(open_engine: Open, language: Language) -> None:
    language.says["check_sufficiency"] = YES
    engine = open_engine(told=True)
    assert answers(engine.run(QUERIES, ask(check_sufficiency=True))) == []
    engine.run(MEMORIES, make_event("category.summary", DAY_MS, category="travel", summary="Ana left Porto."))
    (response,) = answers(engine.complete())
    assert (response["sufficient"], bool(response["memories"])) == (False, True)
    assert response["context"]["summaries"]["travel"] == "Ana left Porto."


def test_failed_model_loads_all_categories_and_keeps_memories(answered: Answered) -> None:
    usual, without = answered(ask(max_tokens=2_000), ask(**STEPS, rewrite=True), has_model=False)
    assert (without["status"], codes(without)) == ("degraded", ["llm_off"])
    assert all(step in without["warnings"][0]["detail"] for step in (*STEPS, "rewrite"))
    assert {*without["context"]["summaries"]} == {*SUMMARIES}
    assert (without["sufficient"], ids(without)) == (False, ids(usual))


@pytest.mark.parametrize("failure", get_args(ModelFailure))
def test_a_failing_step_loses_nothing_says_why_and_quotes_nothing(
    answered: Answered, language: Language, failure: str
) -> None:
    language.says = dict.fromkeys(("select_categories", "check_sufficiency", "rewrite"), failing(failure))
    usual, failed = answered(ask(max_tokens=2_000), ask(**STEPS, rewrite=True))
    assert (failed["status"], codes(failed)) == ("degraded", ["llm_failed"] * 3)
    assert "1234" not in str(failed)
    assert {*failed["context"]["summaries"]} == {*SUMMARIES}
    assert (failed["sufficient"], ids(failed)) == (False, ids(usual))
    assert {one["failure"] for one in failed["routing_info"]["models"].values()} == {failure}


def test_query_without_time_for_the_model_skips_it(answered: Answered, language: Language, clock: Clock) -> None:
    def think() -> None:
        clock.now_s += 0.5

    language.meanwhile = think
    asked = ask(select_categories=True)
    clocks = Clocks(timer=clock, now_ms=lambda: 0)
    first, second = answered(asked, asked | {"sla_target_ms": 100}, clocks=clocks)
    # The call is under way while candidates are found: whichever stage it ends in has its time.
    assert (first["processing_time_ms"], sum(first["routing_info"]["stages_ms"].values())) == (500, 500)
    assert (codes(second), len(language.asked)) == (["deadline"], 1)
    assert {*second["context"]["summaries"]} == {*SUMMARIES}


@pytest.mark.parametrize("kept", [0, parked_queries.COMPOSED_MAX])
def test_kept_candidates_are_those_of_later(
    open_engine: Open, answered: Answered, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(parked_queries, "COMPOSED_MAX", kept)
    engine = open_engine(told=True)
    engine.run(QUERIES, ask(max_tokens=2_000, select_categories=True))
    engine.run(MEMORIES, make_event("memory", DAY_MS, content="I live here", user_id="bob"))
    (meanwhile,) = answers(engine.complete())
    (after,) = answered(ask(max_tokens=2_000, select_categories=True))
    assert (meanwhile["memories"], meanwhile["context"]) == (after["memories"], after["context"])
    assert meanwhile["applied"] == ["memories:0:8"]


def test_parked_query_survives_a_kill_and_is_answered_once(open_engine: Open, language: Language) -> None:
    engine = open_engine(told=True)
    assert answers(engine.run(QUERIES, ask(id="q", **STEPS))) == []
    snapshot = engine.mark()
    engine.kill(snapshot)
    again = engine.advance_to_end()
    found = answers([*again, *engine.complete(2)])  # the completion of the killed run is dropped
    assert [response["query_id"] for response in found] == ["q"]
    assert len(language.asked) == 4
    assert engine.mark().unfinished == []


def test_queries_over_the_concurrency_limit_skip_the_model(
    open_engine: Open, language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "QUERIES_MAX", 1)
    language.hangs = {"select_categories"}
    engine = open_engine(told=True)
    engine.run(QUERIES, *(ask(id=f"q{n}", select_categories=True) for n in range(2)))
    (refused,) = answers(engine.complete())
    assert refused["routing_info"]["models"]["select_categories"]["failure"] == "busy"
    assert (len(language.asked), refused["computation_tier"]) == (1, "standard")


def test_internal_error_at_kept_candidates_searches_again(open_engine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(told=True)
    engine.run(QUERIES, ask(select_categories=True))
    finished: list[bool] = []

    def broken_once(*given: Any) -> ResponseAndEffects:
        finished.append(True)
        if len(finished) == 1:
            raise ZeroDivisionError
        return finish(*given)

    monkeypatch.setattr("recallflow.operators.recall.pipeline.finish", broken_once)
    (response,) = answers(engine.complete())
    assert (response["status"], len(finished), [*response["context"]["summaries"]]) == ("ok", 2, ["travel", "diet"])


Fn = Callable[[int], Awaitable[Any]]


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(Completions(), capacity=4) as made:
        yield made


def submit(runtime: Runtime, fn: Fn, *numbers: int) -> list[AsyncCall[int, Any]]:
    calls = [AsyncCall(number, fn, CallCompletion("k", number)) for number in numbers]
    runtime.submit(calls)
    return calls


def results(runtime: Runtime, fn: Fn, *numbers: int) -> list[Any]:
    calls = submit(runtime, fn, *numbers)
    runtime.wait(calls)
    return [call.result for call in calls]


async def hang(_: int) -> None:
    await asyncio.Event().wait()


def test_capacity_is_reached_and_never_exceeded(runtime: Runtime) -> None:
    under_way = most = 0
    full = asyncio.Event()

    async def call(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == runtime.capacity:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        under_way -= 1
        return number

    assert results(runtime, call, *range(50)) == [*range(50)]
    assert most == runtime.capacity
    assert sorted(one.call for one in runtime.completions.pop_all()) == [*range(50)]


def test_waiting_calls_begin_in_the_order_of_submission() -> None:
    order: list[int] = []

    async def call(number: int) -> None:
        order.append(number)
        await asyncio.sleep(0)

    with Runtime(Completions(), capacity=1) as runtime:
        results(runtime, call, *range(9))
    assert order == [*range(9)]


def test_a_call_without_a_result_in_time_is_a_failure() -> None:
    with Runtime(Completions(), timeout_s=0) as runtime:
        assert results(runtime, hang, 1) == [CallError("TimeoutError")]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ValueError("odd"), "ValueError"), (asyncio.CancelledError(), "asyncio.exceptions.CancelledError")],
)
def test_an_error_is_the_result_of_its_item(runtime: Runtime, error: BaseException, kind: str) -> None:
    async def odd(number: int) -> int:
        if number % 2:
            raise error
        return number

    assert results(runtime, odd, 1, 2) == [CallError(kind), 2]


def test_cancelled_calls_make_room_for_others() -> None:
    begun: list[int] = []

    async def note(number: int) -> None:
        begun.append(number)
        await asyncio.Event().wait()

    async def succeed(number: int) -> int:
        return number

    with Runtime(Completions(), capacity=2) as runtime:
        calls = submit(runtime, note, 1, 2, 3)
        runtime.cancel(calls)
        more = submit(runtime, note, 4)
        runtime.cancel(more)
        assert results(runtime, succeed, 5) == [5]
    assert 3 not in begun


def test_closing_cancels_open_calls_and_refuses_new_ones() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def call(_: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    runtime = Runtime(Completions())
    calls = submit(runtime, call, 1)
    assert begun.wait(10)
    runtime.close()
    assert cancelled.is_set()
    assert calls[0].result is None
    with pytest.raises(RuntimeError, match="closed"):
        runtime.wait(calls)
    with pytest.raises(RuntimeError, match="closed"):
        runtime.submit(calls)
