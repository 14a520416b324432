"""Models behind an API with OpenAI's protocol.

The official client takes a second to import, so it is imported when a model is loaded.
"""

from typing import TYPE_CHECKING

from recallflow.connectors.llm.policy import Endpoint, Meter, Policy, Waits

if TYPE_CHECKING:
    from recallflow.connectors.llm.calls import OpenAiEmbeddings, OpenAiModel

__all__ = ["Endpoint", "Meter", "Policy", "Waits", "load_embedding_service", "load_language_model"]


def load_language_model(model: str, endpoint: Endpoint, policy: Policy | None = None) -> "OpenAiModel":
    """Return a `LanguageModel`, for use and close on one event loop. Raise UsageError for an invalid URL or header."""
    from recallflow.connectors.llm.calls import OpenAiModel

    return OpenAiModel(model, endpoint, policy or Policy())


def load_embedding_service(
    model: str, dimension: int, endpoint: Endpoint, policy: Policy | None = None
) -> "OpenAiEmbeddings":
    """Return an `EmbeddingService`, likewise."""
    from recallflow.connectors.llm.calls import OpenAiEmbeddings

    return OpenAiEmbeddings(model, dimension, endpoint, policy or Policy())
