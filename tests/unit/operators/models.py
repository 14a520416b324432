"""Models for tests with given answers, which may hang until released."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson

from recallflow.embedder import Kind, Matrix
from recallflow.errors import EmbedderError, ModelError
from recallflow.llm import Completion, Cost, Embeddings, Prompt


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Language:
    """Answers by task; an answer that is an error is raised, a function is called. A task that `hangs` never ends;
    `meanwhile` happens while it thinks."""

    name, spent = "fake-llm", Cost(1, 100, 10)

    def __init__(self, **says: Any) -> None:
        self.says = says
        self.asked: list[Prompt] = []
        self.tenants: list[str] = []
        self.hangs: set[str] = set()
        self.meanwhile: Callable[[], None] = lambda: None

    async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:
        self.asked.append(prompt)
        self.tenants.append(tenant_id)
        if prompt.task in self.hangs:
            await asyncio.get_running_loop().create_future()
        self.meanwhile()
        said = self.says[prompt.task]
        said = said(prompt) if callable(said) else said
        if isinstance(said, Exception):
            raise said
        return Completion({**said}, self.spent)

    @property
    def tasks(self) -> list[str]:
        return sorted(prompt.task for prompt in self.asked)

    def shown(self, task: str) -> dict[str, Any]:
        prompt = [one for one in self.asked if one.task == task][-1]
        shown: dict[str, Any] = orjson.loads(prompt.user.split("<data>")[1].split("</data>")[0])
        return shown


class Reranker:
    """Scores texts by `scores`, which may raise; a call that `hangs` never ends."""

    name = "fake"

    def __init__(self, score: Callable[[str], float] = lambda text: float(text.rsplit(" ", 1)[-1])) -> None:
        self.scores: Callable[[Sequence[str]], Sequence[float]] = lambda texts: [*map(score, texts)]
        self.given: list[list[str]] = []
        self.hangs = False

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:  # noqa: ARG002
        self.given.append([*texts])
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return self.scores(texts)


class Service:
    """An embedding service whose vectors count letters. `failure`: the exception that it raises."""

    name, dimension = "letters", 26

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.failure: Exception | None = None
        self.hangs = False

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embeddings:  # noqa: ARG002
        self.asked.append([*texts])
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.failure is not None:
            raise self.failure
        return Embeddings(letters(texts), Cost(1, 5, 0))


class Remote:
    """An embedder whose model is behind an API, without a local copy."""

    name, dimension = Service.name, Service.dimension
    kind: Kind = "contextual"

    def __init__(self) -> None:
        self.service = Service()

    def embed(self, texts: Sequence[str]) -> Matrix:  # noqa: ARG002
        raise EmbedderError("there is no copy of the model here")


def letters(texts: Sequence[str]) -> Matrix:
    counts = [[text.lower().count(chr(ord("a") + n)) + 1e-3 for n in range(26)] for text in texts]
    matrix = np.array(counts, np.float32)
    found: Matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return found


def failing(code: Any) -> ModelError:
    return ModelError(code, "what is wrong, quoting: my card is 1234")
