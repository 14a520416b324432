"""The second pass: a reranker orders the best candidates, holds nobody up, and is done without where it fails."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from recallflow.breaker import FAILURES, LEFT_ALONE_S
from recallflow.operators.answers import scoring
from recallflow.operators.answers.models import Models, Within
from recallflow.operators.recall import moment
from recallflow.operators.recall.rerank import BEST
from recallflow.operators.step import Clocks
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers

MakeEvent = Callable[..., dict[str, Any]]
Scores = Callable[[str], float]
Open = Callable[..., Harness]

DAY_MS = 86_400_000
SAID = [f"the crate number {n} is stored in shelf {n % 7}" for n in range(40)]


class Fake:
    """Scores what it is given by `score`, which may raise; calls wait while the gate is shut."""

    name = "fake"

    def __init__(self, score: Scores = lambda text: float(text.rsplit(" ", 1)[-1])) -> None:
        self.scores: Callable[[Sequence[str]], Sequence[float]] = lambda texts: [*map(score, texts)]
        self.given: list[list[str]] = []
        self.hangs = False

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:  # noqa: ARG002
        self.given.append([*texts])
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return self.scores(texts)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def open_engine(tmp_path: Path, fake: Fake, clock: Clock) -> Iterator[Open]:
    with ExitStack() as stack:

        def opened(folder: str = "state", timeout_s: float = 60.0, **chosen: Any) -> Harness:
            models = stack.enter_context(Models(reranker=Within(fake, timeout_s), now_s=clock))
            engine = Harness(tmp_path / folder, models=models, **chosen)
            stack.callback(engine.stop)
            return engine

        yield opened


@pytest.fixture
def told(make_event: MakeEvent) -> list[dict[str, Any]]:
    return [make_event("memory", n, id=f"m{n}", content=text) for n, text in enumerate(SAID)]


def ask(make_event: MakeEvent, **fields: Any) -> dict[str, Any]:
    return make_event("recall", DAY_MS, **{"query": "Which crate is in which shelf?", "k": 4} | fields)


def ids(response: dict[str, Any]) -> list[str]:
    return [memory["id"] for memory in response["memories"]]


def codes(response: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in response["warnings"]]


# ── order ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_best_candidates_are_ordered_by_the_reranker(
    open_engine: Open, fake: Fake, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event)))
    (given,) = fake.given
    assert len(given) == BEST
    assert [memory["rerank_score"] for memory in response["memories"]] == sorted(fake.scores(given))[:-5:-1]
    assert response["routing_info"]["rerank"] == {"model": "fake", "candidates": BEST, "took_ms": 0.0}
    assert (response["status"], response["computation_tier"], codes(response)) == ("ok", "llm", [])
    assert [memory["rank"] for memory in response["memories"]] == [1, 2, 3, 4]
    assert {memory["why"][0]["code"] for memory in response["memories"]} == {"reranked"}
    assert all(memory["explanation"] for memory in response["memories"])


def test_only_what_was_returned_counts_as_used(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event)))
    gets = [make_event("memory.get", DAY_MS, memory_id=f"m{n}") for n in range(len(SAID))]
    used = [got["versions"][0]["id"] for got in answers(engine.run(MEMORIES, *gets)) if got["usage"]["count"]]
    assert sorted(used) == sorted(ids(response))


@pytest.mark.parametrize("mode", ["recency", "episode", "entity_focused", "decayed"])
def test_what_says_itself_how_it_is_ordered_is_not_reranked(
    open_engine: Open, fake: Fake, told: list[dict[str, Any]], make_event: MakeEvent, mode: str
) -> None:
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event, mode=mode)))
    assert (fake.given, "rerank" in response["routing_info"]) == ([], False)


def test_a_question_without_time_for_it_goes_without(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, fake: Fake, clock: Clock
) -> None:
    def slow(texts: Sequence[str]) -> Sequence[float]:
        clock.now_s += 0.5
        return [0.0 for _ in texts]

    fake.scores = slow
    engine = open_engine(one_log=True, clocks=Clocks(timer=clock, now_ms=lambda: 0))
    first, second = answers(engine.run(MEMORIES, *told, ask(make_event), ask(make_event, sla_target_ms=100)))
    assert (first["routing_info"]["stages_ms"]["models"], first["processing_time_ms"]) == (500, 500)
    assert (codes(second), second["status"]) == (["deadline"], "degraded")
    assert len(fake.given) == 1


# ── nobody waits ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_others_are_answered_meanwhile(
    open_engine: Open, fake: Fake, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    both = engine.run(QUERIES, ask(make_event, id="slow"), ask(make_event, id="quick", mode="recency"))
    assert [answer["query_id"] for answer in answers(both)] == ["quick"]
    (late,) = answers(engine.complete())
    assert (late["query_id"], len(fake.given)) == ("slow", 1)
    assert late["memories"][0]["rerank_score"] == 6


def test_what_is_forgotten_meanwhile_is_in_no_answer(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, ask(make_event))
    gone = [f"m{n}" for n in range(40) if n % 7 == 6]
    engine.run(MEMORIES, *(make_event("memory.forget", DAY_MS, memory_id=memory_id) for memory_id in gone))
    (response,) = answers(engine.complete())
    assert len(response["memories"]) == 4
    assert not {*ids(response)} & {*gone}


def test_a_question_that_is_with_the_reranker_survives_a_kill_and_is_answered_once(
    open_engine: Open, fake: Fake, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    engine = open_engine()
    engine.run(MEMORIES, *told)
    assert answers(engine.run(QUERIES, ask(make_event, id="q"))) == []
    snapshot = engine.snapshot()
    engine.kill(snapshot)
    again = engine.advance_to_end()
    found = answers([*again, *engine.complete(2)])  # the completion of the killed run belongs to nobody
    assert [response["query_id"] for response in found] == ["q"]
    assert len(fake.given) == 2
    assert engine.snapshot().held == ()


def test_the_past_of_a_large_owner_is_reranked_too(
    open_engine: Open, told: list[dict[str, Any]], make_event: MakeEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moment, "AT_ONCE", 1)
    monkeypatch.setattr("recallflow.operators.answers.waiting.AT_ONCE", 1)
    engine = open_engine()
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, ask(make_event, as_of={"ingestion_time": "1970-01-01T00:00:00.020Z"}))
    assert answers(engine.advance_to_end()) == []
    engine.complete()
    (response,) = answers(engine.advance_to_end())
    assert response["memories"][0]["rerank_score"] == 6
    assert all(int(memory_id[1:]) <= 20 for memory_id in ids(response))


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def crash(_: Sequence[str]) -> Sequence[float]:
    raise OSError("connection refused")


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        (crash, "connection refused"),
        (lambda texts: texts[:1] and [1.0], "1 numbers for 30 texts"),
        (lambda texts: [float("nan")] * len(texts), "or some that are none"),
    ],
)
def test_an_answer_goes_without_a_reranker_that_fails(
    open_engine: Open,
    fake: Fake,
    told: list[dict[str, Any]],
    make_event: MakeEvent,
    scores: Callable[[Sequence[str]], Sequence[float]],
    says: str,
) -> None:
    fake.scores = scores
    engine = open_engine(one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event)))
    assert (response["status"], codes(response)) == ("degraded", ["rerank_failed"])
    assert says in response["warnings"][0]["detail"]
    assert response["routing_info"]["rerank"]["candidates"] == BEST
    assert all("rerank_score" not in memory for memory in response["memories"])


def test_failing_changes_nothing_else(
    tmp_path: Path, open_engine: Open, fake: Fake, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    plain = Harness(tmp_path / "plain", one_log=True)
    (wanted,) = answers(plain.run(MEMORIES, *told, ask(make_event)))
    plain.stop()
    fake.scores = crash
    (response,) = answers(open_engine("failing", one_log=True).run(MEMORIES, *told, ask(make_event)))
    assert response["memories"] == wanted["memories"]


def test_a_reranker_that_hangs_is_given_up(
    open_engine: Open, fake: Fake, told: list[dict[str, Any]], make_event: MakeEvent
) -> None:
    fake.hangs = True
    engine = open_engine(timeout_s=0.0, one_log=True)
    (response,) = answers(engine.run(MEMORIES, *told, ask(make_event)))
    assert codes(response) == ["rerank_failed"]
    assert "no result within 0 s" in response["warnings"][0]["detail"]


def test_one_that_fails_over_and_over_is_left_alone_for_a_while(
    open_engine: Open, fake: Fake, told: list[dict[str, Any]], make_event: MakeEvent, clock: Clock
) -> None:
    working, fake.scores = fake.scores, crash
    engine = open_engine(one_log=True)
    asked = [ask(make_event, id=f"q{n}") for n in range(FAILURES + 2)]
    responses = answers(engine.run(MEMORIES, *told, *asked))
    assert len(fake.given) == FAILURES
    assert "is left alone" in responses[-1]["warnings"][0]["detail"]
    clock.now_s += LEFT_ALONE_S
    fake.scores = working
    (healed,) = answers(engine.run(MEMORIES, ask(make_event, id="later")))
    assert (healed["status"], healed["memories"][0]["rerank_score"]) == ("ok", 6)


def test_too_many_questions_at_once_go_without(
    open_engine: Open, fake: Fake, told: list[dict[str, Any]], make_event: MakeEvent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "AT_ONCE", 1)
    fake.hangs = True
    engine = open_engine()
    engine.run(MEMORIES, *told)
    engine.run(QUERIES, *(ask(make_event, id=f"q{n}") for n in range(3)))
    refused = answers(engine.complete(2))
    assert [codes(response) for response in refused] == [["rerank_failed"]] * 2
    assert len(fake.given) == 1
