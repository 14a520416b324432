"""Degraded answers and steps dropped at a deadline: each answer names the missing part."""

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from recallflow.connectors.embedders import load_embedder
from recallflow.embedder import Kind, Matrix
from recallflow.errors import EmbedderError
from recallflow.operators.recall.deadline import TARGET_MS, Step, StepCosts, tier_of
from recallflow.operators.redaction import REDACTED
from recallflow.operators.step import Clocks
from recallflow.responses import Tier
from recallflow.state import keys
from tests.unit.operators.harness import MEMORIES, Harness, answers, codes, explained, ids, make_event

Ask = Callable[..., dict[str, Any]]

SAID = {
    "ferry": "The ferry to Porto leaves at nine", "violin": "Ann plays the violin in a quartet",
    "kettle": "The kettle is broken again", "bike": "Bo sold his red bike",
}  # fmt: skip


class Model:
    """Spelling vectors under another name, as of a model that can fail."""

    name = "model"
    kind: Kind = "contextual"

    def __init__(self) -> None:
        self._hashing = load_embedder("hash")
        self.dimension = self._hashing.dimension
        self.error: Exception | None = None
        self.gives = self.dimension
        self.takes_s = 0.0
        self.clock_s = 0.0
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> Matrix:
        self.clock_s += self.takes_s
        self.asked += texts
        if self.error is not None:
            raise self.error
        return self._hashing.embed(texts)[:, : self.gives]

    def timer(self) -> float:
        return self.clock_s


class Engine(Harness):
    def ask(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        return answers(self.run(MEMORIES, *events))


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def make_engine(tmp_path: Path, model: Model) -> Callable[..., Engine]:
    clocks = Clocks(timer=model.timer, now_ms=lambda: 0)
    record = {"append_ms": 0, "key": b"acme/ann"}
    return lambda fallback=None: Engine(
        tmp_path / "s", model, one_log=True, clocks=clocks, fallback=fallback, record=record
    )


@pytest.fixture
def engine(make_engine: Callable[..., Engine]) -> Engine:
    """An engine that falls back to hash vectors, and knows four messages."""
    engine = make_engine(load_embedder("hash"))
    engine.ask(*told())
    return engine


@pytest.fixture
def ask(engine: Engine) -> Ask:
    return lambda query, /, **fields: engine.ask(make_event("recall", 900_000, query=query, **fields))[0]


def told() -> list[dict[str, Any]]:
    return [
        make_event("message", 60_000 * n, id=name, session_id=name, name="Ann", content=text)
        for n, (name, text) in enumerate(SAID.items())
    ]


@pytest.mark.parametrize("error", [EmbedderError("gone"), RuntimeError("violin"), OSError(5, "violin")])
def test_failed_model_falls_back_to_hash_vectors(ask: Ask, model: Model, error: Exception) -> None:
    model.error = error
    response = ask("Who plays the violin?", mode="relevance")
    assert (response["status"], codes(response), ids(response)[0]) == ("degraded", ["embedding_fallback"], "violin")
    assert "hash-384" in response["warnings"][0]["detail"]
    assert "violin" not in response["warnings"][0]["detail"]
    assert response["computation_tier"] == "standard"


def test_recency_asks_no_model_and_so_does_not_notice(ask: Ask, model: Model) -> None:
    model.error = RuntimeError()
    response = ask("Who plays the violin?", mode="recency")
    assert (response["status"], codes(response)) == ("ok", [])
    assert response["computation_tier"] == "fast"


def test_query_near_its_deadline_skips_vectors_and_reports_it(ask: Ask, model: Model) -> None:
    model.takes_s = 0.02
    first = ask("Who plays the violin?", sla_target_ms=50)
    assert (first["status"], first["computation_tier"], first["sla_met"]) == ("ok", "standard", True)
    tight = ask("Whose violin?", sla_target_ms=10)
    assert (tight["status"], codes(tight)) == ("degraded", ["deadline"])
    assert (tight["computation_tier"], tight["sla_target_ms"], tight["sla_met"]) == ("fast", 10, True)
    assert ids(tight)[0] == "violin"
    assert "Whose violin?" not in model.asked


def test_without_a_target_nothing_is_dropped_however_long_it_takes(ask: Ask, model: Model) -> None:
    model.takes_s = 5.0
    for question in ("Who plays the violin?", "Whose violin?"):
        slow = ask(question)
        assert (slow["status"], slow["computation_tier"]) == ("ok", "standard")
        assert (slow["sla_target_ms"], slow["sla_met"], slow["processing_time_ms"]) == (50, False, 5_000)


def test_undecryptable_text_is_redacted_and_ranked_last(ask: Ask, lose: Callable[[bytes, str], None]) -> None:
    before = ask("Who plays the violin?", mode="relevance")
    assert ids(before)[0] == "violin"
    lose(keys.ROW, "violin")
    response = ask("Who plays the violin?", mode="relevance")
    assert (response["status"], codes(response)) == ("degraded", ["decryption_failed"])
    assert ids(response) == [*ids(before)[1:], "violin"]
    last = response["memories"][-1]
    assert (last["content"], last["summary"], last["rank"]) == (REDACTED, REDACTED, 4)
    sealed = [{"code": "sealed", "text": "fits, but its text cannot be opened to show where"}]
    known = before["memories"][0] | {"content": REDACTED, "summary": REDACTED, "rank": 4, "why": sealed}
    assert last == known
    assert [memory["rank"] for memory in response["memories"]] == [1, 2, 3, 4]
    assert explained(response) == explained(before)


def test_lookups_redact_too(engine: Engine, lose: Callable[[bytes, str], None]) -> None:
    engine.ask(make_event("memory.update", 0, memory_id="violin", content="Ann sold her viola"))
    lose(keys.ROW, "violin in")
    asked = [make_event(kind, 900_000, memory_id="violin") for kind in ("memory.history", "memory.get")]
    history, latest = engine.ask(*asked)
    assert history["versions"][0] == {"id": "violin", "seq": 1, "version": 0, "content": REDACTED, "summary": REDACTED}
    assert history["versions"][1]["content"] == "Ann sold her viola"
    assert (history["status"], codes(history)) == ("degraded", ["decryption_failed"])
    assert (latest["status"], latest["versions"][0]["content"]) == ("ok", "Ann sold her viola")


def test_episode_summary_skips_unreadable_texts(engine: Engine, lose: Callable[[bytes, str], None]) -> None:
    lose(keys.ROW, "violin")
    (listed,) = engine.ask(make_event("episodes.list", 900_000))
    summaries = {episode["session_id"]: episode["summary"] for episode in listed["episodes"]}
    assert (summaries["violin"], summaries["kettle"]) == ("", "Ann: The kettle is broken again")


def test_undecryptable_rules_and_summaries_are_not_in_the_context(
    engine: Engine, ask: Ask, lose: Callable[[bytes, str], None]
) -> None:
    engine.ask(
        make_event("memory", 0, id="r", layer="rule", content="Never ring the alarm"),
        make_event("memory", 0, id="q", layer="rule", content="Never shout"),
        make_event("category.summary", 0, category="work", summary="They ship"),
    )
    lose(keys.ROW, "alarm")
    response = ask("Who plays the violin?", k=1, max_tokens=500)
    assert response["context"]["relevant_items"][0]["id"] == "q"
    assert codes(response) == ["decryption_failed"]
    assert response["context"]["summaries"] == {"work": "They ship"}
    lose(keys.CATEGORY_SUMMARY, "They")
    response = ask("Who plays the violin?", k=1, max_tokens=500)
    assert (response["context"]["summaries"], codes(response)) == ({}, ["decryption_failed"])


def test_a_question_of_function_words_is_answered_by_its_vector(ask: Ask) -> None:
    response = ask("What is that?", mode="relevance")
    assert (response["status"], codes(response)) == ("ok", ["no_content_words"])
    assert len(ids(response)) == 4
    assert response["computation_tier"] == "standard"
    assert codes(ask("What is that?", mode="recency")) == []


@pytest.mark.parametrize(("k", "warned"), [(3, []), (4, []), (5, ["k_exceeds_memories"])])
def test_k_beyond_the_memories_is_a_warning(ask: Ask, k: int, warned: list[str]) -> None:
    response = ask("Who plays the violin?", k=k)
    assert (response["status"], codes(response), len(ids(response))) == ("ok", warned, min(k, 4))


def test_rows_that_are_gone_are_counted(ask: Ask, engine: Engine) -> None:
    partition = engine.directory.partition(0)
    (row,) = [
        key for key, value in partition.scan(keys.OWNERS) if keys.split(key)[1] == keys.ROW and b"quartet" in value
    ]
    partition.stage({row: None})
    partition.commit()
    response = ask("Who plays the violin?")
    assert (response["status"], codes(response)) == ("degraded", ["rows_missing"])
    assert "violin" not in ids(response)
    assert len(ids(response)) == 3


def test_warns_while_the_log_is_not_read_to_its_end(tmp_path: Path) -> None:
    behind = "7 memory records remain"
    engine = Engine(tmp_path / "s", one_log=True, behind=lambda _: behind)
    engine.ask(*(make_event("memory", at, id=f"m{at}", content=f"Bike {at}") for at in range(2)))
    asked = make_event("recall", 99, query="bike")
    (found,) = engine.ask(asked)
    assert (found["status"], codes(found), len(ids(found))) == ("degraded", ["catching_up"], 2)
    assert found["warnings"][0]["detail"] == behind
    behind = ""
    (found,) = engine.ask(asked)
    assert (found["status"], codes(found)) == ("ok", [])


def costs(**ms: float) -> StepCosts:
    known = StepCosts()
    for step, took_ms in ms.items():
        known.add(step, took_ms)
    return known


@pytest.mark.parametrize(
    ("ran", "tier"),
    [
        ([], "fast"), (["dense"], "standard"), (["graph"], "graph"), (["dense", "graph"], "graph"),
        (["dense", "proximity"], "graph"), (["boosts"], "graph"), (["llm", "dense"], "llm"),
        (["dense", "graph", "llm"], "llm"),
    ],
)  # fmt: skip
def test_the_tier_is_that_of_the_costliest_step_that_ran(ran: Collection[Step], tier: Tier) -> None:
    assert tier_of(ran) == tier


def test_the_targets_are_the_contract() -> None:
    assert dict(TARGET_MS) == {"fast": 10, "standard": 50, "graph": 100, "llm": 1_500}


@pytest.mark.parametrize(
    ("elapsed_ms", "dropped"),
    [
        (0, []),  # 100 left, less 10 for the rest: 90 for 5 + 30 + 55
        (1, ["llm"]),  # 89: without the LLM it is 35
        (55, ["llm"]),  # 35
        (56, ["llm", "graph"]),  # 34: without the graph it is 5
        (85, ["llm", "graph"]),  # 5
        (86, ["llm", "graph", "dense"]),  # 4
        (500, ["llm", "graph", "dense"]),
    ],
)
def test_steps_are_dropped_in_order_until_the_others_fit(elapsed_ms: float, dropped: list[Step]) -> None:
    left_ms = 100 - elapsed_ms + 1e-6  # a hair of time on top, as sums of floats are not exact
    assert costs(dense=5, graph=30, llm=55, rest=10).drop_steps(["dense", "graph", "llm"], left_ms) == dropped


def test_a_step_that_never_ran_is_tried() -> None:
    assert StepCosts().drop_steps(["dense", "graph", "llm"], 1) == []


def test_a_cost_is_a_running_mean() -> None:
    known = costs(dense=10)
    assert known.expected_ms("dense") == 10
    known.add("dense", 20)  # 10 + 0.2 · 10
    assert known.expected_ms("dense") == pytest.approx(12)
    known.add("dense", 2)  # 12 - 0.2 · 10
    assert known.expected_ms("dense") == pytest.approx(10)
    assert known.expected_ms("graph") == 0


def test_slow_step_is_tried_again_after_a_while() -> None:
    known = costs(dense=1_000)
    drops = 0
    while known.drop_steps(["dense"], 50):
        drops += 1
    assert drops == math.ceil(math.log(50 / 1_000, 0.9))
