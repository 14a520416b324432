"""Models behind an API over real HTTP: requests, faults, retries, pauses and budgets, with time set by the test."""

import asyncio
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.llm.calls import CallFailed, OpenAiEmbeddings, OpenAiModel, _checked, read_answer
from recallflow.connectors.llm.policy import DAY_S, MOST_WAIT_S, Endpoint, Policy, Reservation, RetryTiming, TokenBudget
from recallflow.errors import ModelError, ModelFailure
from recallflow.llm import FAILURES, OPEN_S, Completion, Cost, Embeddings, Prompt
from recallflow.operators.enrichment.prompt_frame import NUMBER, TEXT, TRUTH, fields, listed
from tests.llm_server import Fault, Kind, LlmServer, Now

T = TypeVar("T")
NOON_S = 1_800_014_400.0  # Friday, 15 January 2027, 12:00 UTC
SCHEMA = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
PROMPT = Prompt("classify", "v1", "Judge.", "Ana lives in Porto", SCHEMA, 50)
RESERVED = (len("Judge.") + len("Ana lives in Porto")) // 4 + 50
SPENT = 13  # of a call that is answered, as the server counts


class Time:
    """A clock that advances by sleeping, times `pace`; `drawn` replaces random numbers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s: list[float] = []
        self.drawn = 1.0
        self.pace = 1.0

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(round(seconds, 3))
        self.now_s += seconds * self.pace
        await asyncio.sleep(0)

    @property
    def timing(self) -> RetryTiming:
        return RetryTiming(lambda: self.now_s, lambda: NOON_S + self.now_s, self.sleep, lambda: self.drawn)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def model(llm_server: LlmServer, time: Time) -> Iterator["Model"]:
    with asyncio.Runner() as runner:
        made = Model(runner, llm_server, time)
        yield made
        made.close()


class Model:
    """A model by the policy that a test gives, used on one loop."""

    def __init__(self, runner: asyncio.Runner, server: LlmServer, time: Time) -> None:
        self._runner, self._server, self._time = runner, server, time
        self._loaded: list[OpenAiModel] = []

    def load(self, **policy: Any) -> OpenAiModel:
        found = OpenAiModel("m-1", Endpoint(self._server.url, "k"), Policy(timing=self._time.timing, **policy))
        self._loaded.append(found)
        return found

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def ask(self, model: OpenAiModel, tenant: str = "acme", prompt: Prompt = PROMPT) -> str:
        """`ok`, or the code of why not."""
        return self.run(code_of(model, tenant, prompt))

    def ask_ten(self, model: OpenAiModel) -> list[str]:
        async def gathered() -> list[str]:
            return await asyncio.gather(*(code_of(model) for _ in range(10)))

        return self.run(gathered())

    def close(self) -> None:
        for model in self._loaded:
            self.run(model.close())


async def code_of(model: OpenAiModel, tenant: str = "acme", prompt: Prompt = PROMPT) -> str:
    try:
        await model.complete(tenant, prompt)
    except ModelError as error:
        return error.code
    return "ok"


@pytest.mark.parametrize(
    ("fault", "code", "calls"),
    [
        (Fault("status", status=307), "rejected", 1), (Fault("status", status=408), "unavailable", 3),
        (Fault("status", status=409), "unavailable", 3), (Fault("status", status=429), "rate_limited", 3),
        (Fault("status", status=500), "unavailable", 3), (Fault("status", status=503), "unavailable", 3),
        (Fault("status", status=529), "unavailable", 3), (Fault("cut"), "unavailable", 3),
        (Fault("cut_midway"), "unavailable", 3), (Fault("huge"), "malformed", 2), (Fault("not_json"), "malformed", 2),
        (Fault("invalid_json"), "malformed", 2), (Fault("off_schema"), "malformed", 2),
        (Fault("length"), "malformed", 2), (Fault("refusal"), "refused", 1),
        (Fault("status", status=400), "rejected", 1), (Fault("status", status=401), "rejected", 1),
        (Fault("status", status=403), "rejected", 1), (Fault("status", status=404), "rejected", 1),
        (Fault("status", status=422), "rejected", 1),
    ],
    ids=str,
)  # fmt: skip
def test_passing_fault_is_retried(
    llm_server: LlmServer, model: Model, fault: Fault, code: ModelFailure, calls: int
) -> None:
    llm_server.fail(fault, times=None)
    asked = model.load(attempts=3)
    assert (model.ask(asked), llm_server.calls) == (code, {"classify": calls})
    assert asked.meter.failures == {("classify", code): 1}
    llm_server.heal()
    assert model.ask(asked) == "ok"
    once = model.load()
    llm_server.fail(fault)
    assert (model.ask(once), llm_server.calls["classify"]) == (code, calls + 2)


def test_a_timeout_is_tried_again(llm_server: LlmServer, model: Model, time: Time) -> None:
    llm_server.fail("hang")
    slow = OpenAiModel("m-1", Endpoint(llm_server.url, timeout_s=1), Policy(2, timing=time.timing))
    assert (model.ask(slow), llm_server.calls["classify"]) == ("ok", 2)
    model.run(slow.close())


def test_waits_double_with_random_shares(llm_server: LlmServer, model: Model, time: Time) -> None:
    llm_server.fail("cut", times=8)
    time.drawn = 0.5
    assert (model.ask(model.load(attempts=5)), time.slept_s) == ("unavailable", [0.25, 0.5, 1, 2])
    time.drawn = 0.0
    assert (model.ask(model.load(attempts=5)), time.slept_s[4:]) == ("ok", [0, 0, 0])


@pytest.mark.parametrize(
    ("retry_after", "waits_s"),
    [
        ("7", 7), ("1.5", 1.5), ("Fri, 15 Jan 2027 12:00:20 GMT", 20), ("Fri, 15 Jan 2027 11:00:00 GMT", 0.5),
        ("86400", MOST_WAIT_S), ("-5", 0.5), ("nan", 0.5), ("inf", MOST_WAIT_S), ("soon", 0.5), ("", 0.5),
        ("Fri, 99 Jan 2027 11:00:00 GMT", 0.5),
    ],
)  # fmt: skip
def test_retry_after_is_obeyed_within_bounds(
    llm_server: LlmServer, model: Model, time: Time, retry_after: str, waits_s: float
) -> None:
    llm_server.fail(Fault("status", status=429, retry_after=retry_after))
    assert (model.ask(model.load(attempts=2)), time.slept_s) == ("ok", [waits_s])


@pytest.mark.parametrize("status", [500, 429, 401, 403, 404])
def test_failing_service_is_left_alone(
    llm_server: LlmServer, model: Model, time: Time, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    llm_server.fail(Fault("status", status=status), times=None)
    asked = model.load()
    codes = [model.ask(asked) for _ in range(20)]
    assert (codes[FAILURES:], llm_server.calls["classify"]) == (["left_alone"] * 15, FAILURES)
    time.now_s += OPEN_S
    assert [model.ask(asked), model.ask(asked)] == [codes[0], "left_alone"]
    time.now_s += OPEN_S
    llm_server.heal()
    assert ([model.ask(asked), model.ask(asked)], time.slept_s) == (["ok", "ok"], [])
    assert [line.getMessage() for line in caplog.records if line.name.startswith("recallflow")] == [
        f"model m-1 is not called for a while: {codes[0]}: the service answered {status}", "model m-1 answers again",
    ]  # fmt: skip


@pytest.mark.parametrize("fault", ["refusal", "off_schema", "not_json", Fault("status", status=400)], ids=str)
def test_a_service_that_answers_is_not_left_alone(llm_server: LlmServer, model: Model, fault: Any) -> None:
    llm_server.fail(fault, times=2 * FAILURES)
    asked = model.load()
    assert "left_alone" not in [model.ask(asked) for _ in range(2 * FAILURES)]
    assert llm_server.calls["classify"] == 2 * FAILURES


def test_abandoned_calls_count_as_failures(llm_server: LlmServer, model: Model) -> None:
    def gone(count: int, now: Now) -> bool:
        return now.hung_up == count

    async def given_up(asked: OpenAiModel) -> None:
        for n in range(FAILURES):
            task = asyncio.create_task(asked.complete("acme", PROMPT))
            await asyncio.to_thread(llm_server.wait_for, lambda now: now.held == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(llm_server.wait_for, partial(gone, n + 1))

    llm_server.fail("hang", times=None)
    asked = model.load()
    model.run(given_up(asked))
    assert model.ask(asked) == "left_alone"
    assert asked.meter.failures == {("classify", "timeout"): FAILURES, ("classify", "left_alone"): 1}
    assert asked.meter.spent == {("acme", "classify"): Cost(FAILURES)}


@pytest.mark.parametrize("fault", ["cut", Fault("status", status=503), Fault("status", status=401)], ids=str)
def test_long_outage_loses_no_waiting_call(llm_server: LlmServer, model: Model, time: Time, fault: Any) -> None:
    time.pace = 10

    async def twenty(asked: OpenAiModel) -> list[str]:
        first = [await code_of(asked) for _ in range(FAILURES)]
        down = len(llm_server.requests)
        waiting = asyncio.gather(*(code_of(asked) for _ in range(20)))
        while time.now_s < 4 * 3_600:
            await asyncio.sleep(0)
        tried = len(llm_server.requests) - down
        assert 0 < tried <= time.now_s / OPEN_S + 1
        llm_server.heal()
        return first + await waiting

    llm_server.fail(fault, times=None)
    codes = model.run(twenty(model.load(attempts=1, waits_for_breaker="always")))
    assert "ok" not in codes[:FAILURES]
    assert codes[FAILURES:] == ["ok"] * 20


def test_poisonous_call_fails_in_the_end(llm_server: LlmServer, model: Model) -> None:
    asked = model.load(attempts=3, waits_for_breaker="always")

    async def story() -> tuple[list[str], set[str]]:
        poisoned = PROMPT._replace(task="extract")
        bad = asyncio.gather(*(code_of(asked, prompt=poisoned) for _ in range(6)))
        good = set()
        while not bad.done():
            good.add(await code_of(asked))
        return await bad, good

    llm_server.fail(Fault("status", task="extract"), times=None)
    assert model.run(story()) == (["unavailable"] * 6, {"ok"})


def test_call_waits_at_most_a_day(llm_server: LlmServer, model: Model, time: Time) -> None:
    llm_server.fail("cut", times=None)
    asked = model.load(attempts=1, waits_for_breaker="always")
    assert [model.ask(asked) for _ in range(FAILURES)] == ["unavailable"] * FAILURES
    time.pace = 1_000
    assert model.ask(asked) == "unavailable"
    assert time.now_s == pytest.approx(9 * 1_000 * OPEN_S)


def test_batch_waits_for_rate_limits_only(llm_server: LlmServer, model: Model) -> None:
    llm_server.fail(Fault("status", status=429, retry_after="1"), times=40)
    asked = model.load(attempts=2, waits_for_breaker="rate limits")
    assert model.ask_ten(asked) == ["ok"] * 10
    llm_server.fail("cut", times=None)
    assert set(model.ask_ten(asked)) <= {"unavailable", "left_alone"}


def test_question_beyond_capacity_is_refused_as_busy(llm_server: LlmServer, model: Model) -> None:
    async def three(asked: OpenAiModel) -> list[str]:
        first = [asyncio.create_task(code_of(asked)) for _ in range(2)]
        await asyncio.to_thread(llm_server.wait_for, lambda now: now.held == 2)
        third = await code_of(asked)
        llm_server.heal()
        return [third, *[await task for task in first]]

    llm_server.fail("hang", times=None)
    assert model.run(three(model.load(capacity=2))) == ["busy", "ok", "ok"]


def test_tenant_limit_stops_no_other(llm_server: LlmServer, model: Model, time: Time) -> None:
    limits = {"acme": RESERVED + 2 * SPENT, "free": None}
    asked = model.load(daily_token_limit=limits.get)
    assert [model.ask(asked) for _ in range(5)] == ["ok"] * 3 + ["over_budget"] * 2
    assert (llm_server.calls["classify"], [model.ask(asked, "free") for _ in range(5)]) == (3, ["ok"] * 5)
    limits["acme"] = RESERVED + 3 * SPENT
    assert [model.ask(asked) for _ in range(2)] == ["ok", "over_budget"]
    time.now_s += 12 * 3_600 - 1
    assert model.ask(asked) == "over_budget"
    time.now_s += 1  # midnight in UTC
    assert (model.ask(asked), asked.meter.failures) == ("ok", {("classify", "over_budget"): 4})


def test_failed_call_returns_its_reservation(llm_server: LlmServer, model: Model) -> None:
    asked = model.load(daily_token_limit=lambda _: RESERVED + SPENT)
    llm_server.fail("cut", Fault("status", status=500), "refusal")
    codes = [model.ask(asked) for _ in range(5)]
    assert codes == ["unavailable", "unavailable", "refused", "ok", "over_budget"]


def test_restart_keeps_spending(model: Model, time: Time, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen: dict[str, Any] = {"daily_token_limit": lambda _: RESERVED, "spending_file": tmp_path / "spending.json"}
    assert model.ask(model.load(**chosen)) == "ok"  # and is not closed
    again = model.load(**chosen)
    assert (model.ask(again), model.ask(again, "other")) == ("over_budget", "ok")
    time.now_s += 86_400
    assert model.ask(model.load(**chosen)) == "ok"
    (tmp_path / "spending.json").write_text('{"day": "x"}')
    assert model.ask(model.load(**chosen)) == "ok"
    assert "spending.json cannot be read" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["spending.json"]


def test_unwritable_count_fails_no_call(model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert model.ask(model.load(spending_file=tmp_path / "gone" / "spending.json")) == "ok"
    assert "spending.json cannot be written" in caplog.text


def test_killed_call_counts_as_its_reservation(llm_server: LlmServer, model: Model, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"daily_token_limit": lambda _: 2 * RESERVED - 1, "spending_file": tmp_path / "spent.json"}
    first = model.load(**chosen)

    async def story() -> str:
        llm_server.fail("hang")
        task = asyncio.create_task(code_of(first))
        await asyncio.to_thread(llm_server.wait_for, lambda now: now.held == 1)
        assert await code_of(first, "other") == "ok"
        code = await code_of(model.load(**chosen))  # as after a kill
        llm_server.heal()
        await task
        return code

    assert model.run(story()) == "over_budget"


def test_calls_and_tokens_are_metered_by_tenant_and_task(llm_server: LlmServer, model: Model, time: Time) -> None:
    asked = model.load(attempts=3)
    llm_server.fail("cut", "invalid_json")
    assert model.ask(asked) == "ok"  # the third time; what was malformed was written, and costs
    assert model.ask(asked, "globex", PROMPT._replace(task="extract")) == "ok"
    assert asked.meter.spent == {("acme", "classify"): Cost(3, 12, 14), ("globex", "extract"): Cost(1, 6, 7)}

    async def embedded() -> Cost:
        service = OpenAiEmbeddings("e-1", 64, Endpoint(llm_server.url), Policy(5, timing=time.timing))
        llm_server.fail("nan", "cut")
        found = await service.embed("acme", ["two words"])
        await service.close()
        assert service.meter.spent == {("acme", "embed"): found.spent}
        return found.spent

    assert model.run(embedded()) == Cost(3, 4, 0)


def test_tenants_beyond_so_many_are_metered_together(model: Model) -> None:
    asked = model.load()
    for n in range(103):
        asked.meter.spend(f"t{n}", "classify", Cost(1, 2, 3))
    asked.meter.spend("t0", "classify", Cost(1, 2, 3))
    spent = asked.meter.spent
    assert (len(spent), spent["other", "classify"], spent["t0", "classify"]) == (101, Cost(3, 6, 9), Cost(2, 4, 6))


@pytest.mark.parametrize(
    "fault", ["status", "cut", "cut_midway", "huge", "not_json", "off_schema", "refusal", "length"]
)
def test_errors_and_logs_contain_no_secrets_or_text(
    llm_server: LlmServer, model: Model, time: Time, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    llm_server.answer("classify", {"yes": "Ana lives in Porto"})
    llm_server.fail(fault, times=None)
    endpoint = Endpoint(llm_server.url, "sk-secret", ("X-Team: hidden",))
    asked = OpenAiModel("m-1", endpoint, Policy(6, waits_for_breaker="never", timing=time.timing))

    async def failing() -> str:
        with pytest.raises(ModelError) as raised:
            await asked.complete("acme", PROMPT)
        await asked.close()
        return "".join(format_exception(raised.value))

    shown = model.run(failing()) + caplog.text
    for hidden in ("sk-secret", "hidden", "Porto", "Judge"):
        assert hidden not in shown


SECRET, PORTO = "sk-very-secret", "Ana lives in Porto"
RELATION = {
    "type": "object",
    "properties": {"relation": {"type": "string", "enum": ["agrees", "contradicts"]}, "confidence": {"type": "number"}},
    "required": ["relation", "confidence"], "additionalProperties": False,
}  # fmt: skip
RELATION_PROMPT = Prompt("classify", "v1", "Judge.", PORTO, RELATION, 50)


def complete(server: LlmServer, timeout_s: float = 30.0, prompt: Prompt = RELATION_PROMPT) -> Completion:
    async def asked() -> Completion:
        model = OpenAiModel("m-1", Endpoint(server.url, SECRET, ("X-Team: memory",), timeout_s))
        try:
            return await model.complete("acme", prompt)
        finally:
            await model.close()

    return asyncio.run(asked())


def embed(server: LlmServer, *texts: str, model: str = "e-1", dimension: int = 64) -> Embeddings:
    async def asked() -> Embeddings:
        service = OpenAiEmbeddings(model, dimension, Endpoint(server.url, SECRET))
        try:
            return await service.embed("acme", texts)
        finally:
            await service.close()

    return asyncio.run(asked())


def test_a_language_model_is_asked_for_the_prompts_schema(llm_server: LlmServer) -> None:
    llm_server.answer("classify", {"relation": "contradicts", "confidence": 0.9})
    answer = complete(llm_server)
    assert answer.value == {"relation": "contradicts", "confidence": 0.9}
    (asked,) = llm_server.requests
    assert (asked.system, asked.user, asked.schema, asked.body["model"]) == ("Judge.", PORTO, RELATION, "m-1")
    assert asked.body["response_format"]["json_schema"]["strict"] is True
    assert asked.body["max_tokens"] == 50
    assert (asked.headers["authorization"], asked.headers["x-team"]) == (f"Bearer {SECRET}", "memory")
    assert answer.spent == Cost(1, 6, 17)


@pytest.mark.parametrize(
    ("fault", "reason", "timeout_s"),
    [("hang", "timeout", 0.2), ("slow", "timeout", 0.2), ("endless_error", "unavailable", 30.0)],
)
def test_failed_call_closes_its_connection(llm_server: LlmServer, fault: Kind, reason: str, timeout_s: float) -> None:
    llm_server.fail(fault)
    with pytest.raises(ModelError, match=reason):
        complete(llm_server, timeout_s)
    llm_server.wait_for(lambda now: now.hung_up == 1)


def test_vectors_are_normalised_and_in_the_order_of_their_texts(llm_server: LlmServer) -> None:
    llm_server.vectors["b"] = [3.0, 4.0]
    found = embed(llm_server, "a", "b", " ", "a").vectors
    assert (str(found.dtype), found.shape) == ("float32", (4, 64))
    assert found[1][:2].tolist() == pytest.approx([0.6, 0.8])
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1, 0, 1])
    assert (found[0] == found[3]).all()
    assert [asked.texts for asked in llm_server.requests] == [["a", "b", "a"]]


def test_a_server_may_answer_with_numbers(llm_server: LlmServer) -> None:
    packed = embed(llm_server, "Ana lives in Porto", "nuts").vectors
    llm_server.packs = False
    assert (embed(llm_server, "Ana lives in Porto", "nuts").vectors == packed).all()


def test_dimension_is_sent_to_models_that_take_it(llm_server: LlmServer) -> None:
    assert embed(llm_server, "a", model="openai/text-embedding-3-small", dimension=32).vectors.shape == (1, 32)
    embed(llm_server, "a")
    assert [asked.body.get("dimensions") for asked in llm_server.requests] == [32, None]


def test_many_texts_and_long_ones_go_in_several_calls(llm_server: LlmServer) -> None:
    texts = [f"text {n}" for n in range(300)] + ["é" * 10_000] * 80
    found = embed(llm_server, *texts)
    assert found.vectors.shape == (380, 64)
    sizes = [len(asked.texts) for asked in llm_server.requests]
    assert (sum(sizes), max(sizes), found.spent.calls) == (380, 256, len(sizes))
    assert all(sum(len(text.encode()) for text in asked.texts) <= 512 * 1024 for asked in llm_server.requests)
    assert max(len(text) for asked in llm_server.requests for text in asked.texts) == 4_000
    assert (found.vectors[299] == embed(llm_server, "text 299").vectors[0]).all()
    assert found.spent.prompt_tokens == 2 * 300 + 80


@pytest.mark.processes
def test_commands_without_models_do_not_import_the_client() -> None:
    script = "import sys, recallflow.cli, recallflow.flows.kafka, recallflow.flows.enrich; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "recallflow.connectors.llm" in loaded
    assert not {"openai", "jsonschema"} & {*loaded}


LIMITS = {"acme": 100, "globex": 30, "free": None}
TENANTS = st.sampled_from([*LIMITS])


@given(st.lists(st.tuples(TENANTS, st.integers(0, 60), st.floats(0, 1), st.integers(0, 3), st.booleans())))
def test_no_tenant_spends_more_than_its_limit_in_a_day(calls: list[tuple[str, int, float, int, bool]]) -> None:
    """Calls reserve tokens and use a part of them; some end at once, others later, even the next day."""
    now_s = 0.0
    budget = TokenBudget(LIMITS.get, lambda: now_s)
    spent: Counter[tuple[int, str]] = Counter()
    under_way: list[tuple[Reservation, int]] = []
    for tenant, tokens, share, ending, midnight in calls:
        if midnight:
            now_s += DAY_S
            under_way.clear()  # killed
        day = int(now_s // DAY_S)
        held = sum(reserved.tokens for reserved, _ in under_way if reserved.tenant_id == tenant)
        limit = LIMITS[tenant]
        fits = limit is None or spent[day, tenant] + held + tokens <= limit
        if fits:
            under_way.append((budget.reserve(tenant, tokens), int(tokens * share)))
        else:
            with pytest.raises(ModelError, match="over_budget"):
                budget.reserve(tenant, tokens)
        for reserved, cost in under_way[:ending]:
            budget.settle(reserved, cost)
            spent[day, reserved.tenant_id] += cost
        del under_way[:ending]
        assert all(limit is None or spent[day, name] <= limit for name, limit in LIMITS.items())


def test_call_over_midnight_costs_its_last_day() -> None:
    now_s = DAY_S - 1.0
    budget = TokenBudget(lambda _: 100, lambda: now_s)
    reserved = budget.reserve("acme", 60)
    now_s += 2
    budget.settle(reserved, 50)
    assert budget.reserve("acme", 50).tokens == 50
    with pytest.raises(ModelError, match="over_budget"):
        budget.reserve("acme", 1)


TRUE_OR_FALSE = fields(sufficient=TRUTH)
LIST = fields(questions=listed(TEXT))
TWO = fields(questions=listed(TEXT), confidence=NUMBER)

FENCES: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: f"```json\n{text}\n```",
    lambda text: f"```\r\n{text}\r\n```\n",
    lambda text: f"Here is the answer:\n\n```JSON\n{text}\n```\nI hope that helps.",
    lambda text: f"```json\n{text}",
]


@given(st.lists(st.text()), st.booleans(), st.sampled_from(FENCES))
def test_value_is_read_bare_and_in_a_fence(texts: list[str], truth: bool, fence: Callable[[str], str]) -> None:
    whole = {"questions": texts}
    for written in (whole, texts):
        assert read_answer(fence(json.dumps(written)), LIST) == whole
    for word in (json.dumps({"sufficient": truth}), json.dumps(truth), "YES" if truth else "no."):
        assert read_answer(fence(word), TRUE_OR_FALSE) == {"sufficient": truth}


@pytest.mark.parametrize(
    ("content", "schema"),
    [
        ("YES", LIST), ('["a"]', TRUE_OR_FALSE), ('["a"]', TWO), ("yes, and no", TRUE_OR_FALSE),
        ("maybe", TRUE_OR_FALSE), ("[1]", LIST), ('```json\n["a"]\n```\n```json\n["b"]\n```', LIST),
        ('["a"] is the answer', LIST), ("", LIST),
    ],
)  # fmt: skip
def test_other_answer_breaks_the_schema(content: str, schema: dict[str, object]) -> None:
    with pytest.raises(CallFailed) as failed:
        _checked(content, schema, Cost())
    assert failed.value.code == "malformed"
