"""The models that are asked about questions, as settings name them."""

from collections.abc import Iterator
from contextlib import contextmanager

from recallflow.connectors.llm import Endpoint, Policy, load_language_model
from recallflow.embedder import Embedder
from recallflow.flows.model_settings import ModelSettings
from recallflow.flows.settings import Settings
from recallflow.llm import LanguageModel, RemoteEmbedder
from recallflow.operators.answers.models import Models, Within


@contextmanager
def open_question_models(engine: Settings, models: ModelSettings, embedder: Embedder) -> Iterator[Models | None]:
    """Those that are asked about questions, None where there are none; closed in the end. Raises UsageError for what
    cannot be an address."""
    llm, embedding, reranker = models.llm, models.embedding, engine.load_reranker()
    opened, language = None, None
    if llm.model is not None:
        timeout_s = llm.query_timeout_ms / 1000
        policy = Policy(capacity=llm.capacity, limit=lambda _: llm.tokens_per_day)
        opened = load_language_model(llm.model, Endpoint(llm.base_url, llm.key, llm.headers, timeout_s), policy)
        language = Within[LanguageModel](opened, timeout_s)
    embeddings = None
    if isinstance(embedder, RemoteEmbedder):
        embeddings = Within(embedder.service, embedding.query_timeout_ms / 1000)
    if language is None and embeddings is None and reranker is None:
        yield None
        return
    asked = Models(
        language, embeddings, None if reranker is None else Within(reranker, engine.rerank_timeout_ms / 1000)
    )
    try:
        with asked:
            yield asked
    finally:
        if opened is not None:
            asked.runtime.run(opened.close())
