"""Models behind an API that speaks OpenAI's protocol.

The official client takes a second to import, so that nothing here does before a model is loaded.
"""

from typing import TYPE_CHECKING

from recallflow.connectors.llm.policy import Endpoint, Meter, Policy, Waits

if TYPE_CHECKING:
    from recallflow.connectors.llm.chat import OpenAiModel
    from recallflow.connectors.llm.embeddings import OpenAiEmbeddings

__all__ = ["Endpoint", "Meter", "Policy", "Waits", "load_embedding_service", "load_language_model"]


def load_language_model(model: str, endpoint: Endpoint, policy: Policy | None = None) -> "OpenAiModel":
    """A `LanguageModel`, to be used and closed on one event loop. Raises UsageError for a URL or a header that is
    none."""
    from recallflow.connectors.llm.chat import OpenAiModel

    return OpenAiModel(model, endpoint, policy or Policy())


def load_embedding_service(
    model: str, dimension: int, endpoint: Endpoint, policy: Policy | None = None
) -> "OpenAiEmbeddings":
    """An `EmbeddingService`, likewise."""
    from recallflow.connectors.llm.embeddings import OpenAiEmbeddings

    return OpenAiEmbeddings(model, dimension, endpoint, policy or Policy())
