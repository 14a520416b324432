"""Caches of question vectors and candidates, and reports of failed models."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from recallflow.embedder import Kind, Matrix
from recallflow.errors import EmbedderError
from recallflow.llm import Embeddings
from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.shared import TTL_S, CandidatesCache, QuestionVector, QuestionVectors
from recallflow.state.index import Conversation, OwnerIndex
from tests.unit.operators.harness import make_entry
from tests.unit.operators.models import Clock


class Model:
    name = "model"
    dimension = 3
    kind: Kind = "contextual"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: BaseException | None = None
        self.answer: Matrix | None = None

    def embed(self, texts: Sequence[str]) -> Matrix:
        self.asked += texts
        if self.error is not None:
            raise self.error
        if self.answer is not None:
            return self.answer
        return np.array([[len(text), 0, 0] for text in texts], np.float32)


def code_of(found: QuestionVector) -> str:
    assert found.vector is None
    assert found.problem is not None
    return found.problem.code


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def vectors(model: Model, clock: Clock) -> QuestionVectors:
    return QuestionVectors(model, None, clock, size=2)


def test_the_model_is_asked_once_for_a_text(vectors: QuestionVectors, model: Model) -> None:
    first, again = vectors.embed("tea?"), vectors.embed("tea?")
    assert (first.cached, again.cached, model.asked) == (False, True, ["tea?"])
    assert first.vector is not None
    assert first.vector.tolist() == [4, 0, 0]
    assert again.vector is first.vector


def test_the_least_recently_used_goes_first(vectors: QuestionVectors) -> None:
    for text in ("a", "b", "a", "c"):
        vectors.embed(text)
    assert [vectors.cached(text) is not None for text in ("a", "b", "c")] == [True, False, True]


def test_vector_is_cached_for_an_hour(vectors: QuestionVectors, model: Model, clock: Clock) -> None:
    vectors.embed("tea?")
    clock.now_s += TTL_S
    assert vectors.embed("tea?").cached
    clock.now_s += 0.5  # use does not make it younger
    assert not vectors.embed("tea?").cached
    assert model.asked == ["tea?"] * 2
    assert vectors.embed("tea?").cached


@pytest.mark.parametrize("error", [EmbedderError("no model"), RuntimeError("tea?"), KeyError("tea?")])
def test_failed_model_is_reported_and_asked_again(
    vectors: QuestionVectors, model: Model, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    model.error = error
    failed = vectors.embed("tea?")
    assert code_of(failed) == "embedding_fallback"
    assert failed.problem is not None
    assert type(error).__name__ in failed.problem.detail
    assert "tea?" not in failed.problem.detail + caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    model.error = None
    assert vectors.embed("tea?").vector is not None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        *((np.ones(shape), "wrong_dimension") for shape in ((1, 4), (1, 2), (2, 3), (0, 3), (3,))),
        ([[1, np.nan, 0]], "embedding_fallback"), ([[1, np.inf, 0]], "embedding_fallback"),
    ],
)  # fmt: skip
def test_unusable_vector_is_reported(vectors: QuestionVectors, model: Model, given: Any, code: str) -> None:
    model.answer = np.array(given, np.float32)
    assert code_of(vectors.embed("tea?")) == code
    if model.answer.ndim == 2 and len(model.answer) == 1:
        assert code_of(vectors.receive("tea?", model.answer[0], 20.0)) == code  # from a service
    assert vectors.cached("tea?") is None


def test_memory_error_stops_the_flow(vectors: QuestionVectors, model: Model) -> None:
    model.error = MemoryError()
    with pytest.raises(MemoryError):
        vectors.embed("tea?")


class Service:
    name, dimension = "model", 3

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embeddings:
        raise AssertionError(tenant_id, texts)


class Remote(Model):
    """`error` is the error of the local copy."""

    service = Service()


@pytest.fixture
def remote(clock: Clock) -> tuple[QuestionVectors, Remote]:
    model = Remote()
    return QuestionVectors(model, Model(), clock), model


def test_received_vector_is_served_for_an_hour(remote: tuple[QuestionVectors, Remote], clock: Clock) -> None:
    vectors, model = remote
    received = vectors.receive("tea?", np.array([0, 1, 0], np.float32), 80.0)
    assert received.vector is not None
    assert (received.vector.tolist(), received.took_ms, received.problem) == ([0, 1, 0], 80.0, None)
    clock.now_s += TTL_S
    again = vectors.embed("tea?")
    assert (again.cached, again.vector is received.vector) == (True, True)
    clock.now_s += 0.5
    assert vectors.cached("tea?") is None
    assert model.asked == []


def test_failed_service_is_replaced_by_a_local_model(remote: tuple[QuestionVectors, Remote]) -> None:
    vectors, model = remote
    received = vectors.receive("tea?", "timeout", 1_500.0)
    assert received.vector is not None
    assert (received.vector.tolist(), received.took_ms, received.problem) == ([4, 0, 0], 1_500.0, None)
    assert model.asked == ["tea?"]
    assert vectors.embed("tea?").cached


def test_failed_service_without_a_copy_is_reported(
    remote: tuple[QuestionVectors, Remote], caplog: pytest.LogCaptureFixture
) -> None:
    vectors, model = remote
    model.error = EmbedderError("no copy of the model")
    received = vectors.receive("tea?", "rate_limited", 20.0)
    assert code_of(received) == "embedding_fallback"
    assert received.problem is not None
    assert "rate_limited" in received.problem.detail
    assert "tea?" not in received.problem.detail + caplog.text
    assert vectors.cached("tea?") is None


def columns(size: int = 10) -> Columns:
    return Columns({"dense": np.zeros(size)}, {"dense": 1.0})


@pytest.fixture
def index() -> OwnerIndex:
    index = OwnerIndex("model", 2)
    index.add([make_entry(n) for n in range(3)], {})
    return index


def other() -> Conversation:
    return OwnerIndex("model", 2).conversation


def test_any_change_of_the_memories_ends_it(index: OwnerIndex) -> None:
    cache = CandidatesCache()
    cache.put(index.conversation, "tea?", columns())
    index.add([make_entry(9)], {})
    assert cache.get(index.conversation, "tea?") is None
    cache.put(index.conversation, "tea?", columns())
    index.remove(1)
    assert cache.get(index.conversation, "tea?") is None


def test_an_address_used_again_brings_nothing_back() -> None:
    cache, seen, again = CandidatesCache(), set[int](), 0
    while again < 3:
        conversation = other()
        again += id(conversation) in seen
        assert cache.get(conversation, "tea?") is None
        cache.put(conversation, "tea?", columns())
        seen.add(id(conversation))
        del conversation


def test_the_least_recently_used_goes_first_and_the_bytes_hold(index: OwnerIndex) -> None:
    cache, conversation = CandidatesCache(budget_bytes=3_310), index.conversation
    for text in ("a", "b"):
        cache.put(conversation, text, columns())
    assert cache.total_bytes > 2 * (1_000 + columns().values["dense"].nbytes)  # texts and objects count as well
    cache.get(conversation, "a")
    cache.put(conversation, "c", columns(140))
    assert [cache.get(conversation, text) is not None for text in ("a", "b", "c")] == [True, False, True]
    held = cache.total_bytes
    assert held <= 3_310
    cache.put(conversation, "c", columns(5))
    assert cache.total_bytes == held - 135 * 8
    held = cache.total_bytes
    cache.put(conversation, "large", columns(400))  # nothing goes for what cannot be kept
    assert cache.get(conversation, "large") is None
    assert cache.total_bytes == held
