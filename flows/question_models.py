"""The models that are asked about questions, as settings name them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from recallflow.connectors.llm import Meter
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.flows.model_settings import ModelSettings
from recallflow.flows.settings import Settings
from recallflow.llm import RemoteEmbedder
from recallflow.operators.answers.models import Models, Within
from recallflow.records import Position

SPENDING = "questions.spent"  # in the state directory


@runtime_checkable
class _Metered(Protocol):
    @property
    def meter(self) -> Meter:
        """What calls cost whom."""


class QuestionModels(NamedTuple):
    """`asked`: None where there are none; `meters`: of those whose calls cost."""

    asked: Models | None = None
    meters: tuple[Meter, ...] = ()


@contextmanager
def open_question_models(
    engine: Settings,
    chosen: ModelSettings,
    embedder: Embedder,
    decisions: History | None = None,
    spending: Path | None = None,
    around: Callable[[Position], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> Iterator[QuestionModels]:
    """Those that are asked about questions; closed in the end. `decisions`, `spending`: see `load_model`; `around`: see
    `Models`. Raises UsageError for what cannot be an address."""
    model, reranker = chosen.llm.load_model("question", decisions, spending), engine.load_reranker()
    service = embedder.service if isinstance(embedder, RemoteEmbedder) else None
    if model is None and service is None and reranker is None:
        yield QuestionModels()
        return
    language = None if model is None else Within(model, chosen.llm.query_timeout_ms / 1000)
    embeddings = None if service is None else Within(service, chosen.embedding.query_timeout_ms / 1000)
    best = None if reranker is None else Within(reranker, engine.rerank_timeout_ms / 1000)
    asked = Models(language, embeddings, best, around=around)
    try:
        with asked:
            yield QuestionModels(asked, tuple(one.meter for one in (model, service) if isinstance(one, _Metered)))
    finally:
        if model is not None:
            asked.runtime.run(model.close())
