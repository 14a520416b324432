"""A language model, asked by chat completions whose answer has a JSON schema."""

from collections.abc import Mapping
from typing import Any

import jsonschema
import orjson

from recallflow.connectors.llm.connection import CHARACTERS_PER_TOKEN, CallFailed, Connection
from recallflow.connectors.llm.endpoint import Endpoint
from recallflow.llm import Completion, Prompt, Spent

MOST_BYTES = 1024 * 1024  # of a response


class OpenAiModel:
    """A `LanguageModel`. Use and close it on one event loop."""

    def __init__(self, model: str, endpoint: Endpoint) -> None:
        """Raises UsageError for a URL or a header that is none."""
        self.name = model
        self._connection = Connection(endpoint)
        # OpenAI's newer models take only the one name, many other servers only the other.
        self._most_tokens = "max_completion_tokens" if endpoint.is_openai else "max_tokens"

    async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:  # noqa: ARG002 budgets are by tenant
        return await self._attempt(prompt)

    async def close(self) -> None:
        await self._connection.close()

    async def _attempt(self, prompt: Prompt) -> Completion:
        schema = {"name": prompt.task, "strict": True, "schema": prompt.schema}
        asked: dict[str, Any] = {
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
            "response_format": {"type": "json_schema", "json_schema": schema},
            self._most_tokens: prompt.most_tokens,
        }
        chat = self._connection.client.chat.completions.with_streaming_response
        answer = await self._connection.ask(chat.create(model=self.name, **asked), MOST_BYTES)
        content = _content(answer, prompt)
        return Completion(_checked(content, prompt.schema), _spent(answer, prompt, content))


def _content(answer: Any, prompt: Prompt) -> str:
    """What the model wrote, all of it. Raises CallFailed."""
    try:
        choice = answer["choices"][0]
        ended, message = choice.get("finish_reason"), choice["message"]
        refusal, content = message.get("refusal"), message.get("content")
    except (LookupError, TypeError, AttributeError):
        raise CallFailed("malformed", "the answer is no chat completion") from None
    if refusal or ended == "content_filter":
        raise CallFailed("refused", "the model will not answer")
    if ended == "length":
        raise CallFailed("malformed", f"the answer was cut off after {prompt.most_tokens:,} tokens")
    if not isinstance(content, str):
        raise CallFailed("malformed", "the answer has no content")
    return content


def _checked(content: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Raises CallFailed, without a word of what the model wrote."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise CallFailed("malformed", "what the model wrote is not JSON") from None
    error = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
    if error is not None or not isinstance(value, dict):
        rule = error.validator if error is not None else "object"
        raise CallFailed("malformed", f"what the model wrote breaks its schema: {rule}")
    return value


def _spent(answer: Mapping[str, Any], prompt: Prompt, content: str) -> Spent:
    usage = answer.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    given, written = counts.get("prompt_tokens"), counts.get("completion_tokens")
    return Spent(
        1,
        given if isinstance(given, int) else len(prompt.system + prompt.user) // CHARACTERS_PER_TOKEN,
        written if isinstance(written, int) else len(content) // CHARACTERS_PER_TOKEN,
    )
