"""Language model over chat completions with a JSON schema."""

import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import orjson

from recallflow.connectors.llm.calls import ModelCalls
from recallflow.connectors.llm.connection import CallFailed, ModelConnection
from recallflow.connectors.llm.policy import Endpoint, Meter, Policy, counted, estimate_tokens
from recallflow.llm import Completion, Prompt, Spent

# Markdown block that models without a JSON mode put around JSON. Its end may be missing where a model stopped early.
_FENCED = re.compile(r"```[A-Za-z0-9]*[ \t]*\r?\n(.*?)(?:\r?\n[ \t]*```|\Z)", re.DOTALL)
_WORDS = {"yes": True, "true": True, "no": False, "false": False}


def read_answer(content: str, schema: Mapping[str, Any]) -> object:
    """Return the value in a model's output, unchecked.

    Three further forms are accepted: JSON in one fenced block, and for a schema with one field its bare value, as a
    list or as a truth value (JSON, YES or NO). Raise ValueError for other text that is not JSON.
    """
    blocks = _FENCED.findall(content)
    text = (blocks[0] if len(blocks) == 1 else content).strip()
    field, kind = _only_field(schema)
    word = _WORDS.get(text.strip("*.!\"' ").lower())
    if kind == "boolean" and word is not None:
        return {field: word}
    value: object = orjson.loads(text)
    return {field: value} if kind == "array" and isinstance(value, list) else value


def _only_field(schema: Mapping[str, Any]) -> tuple[str, object]:
    """Return name and type of the only field of a schema's object; empty values for other schemas."""
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    if len(properties) != 1:
        return "", None
    ((name, inner),) = properties.items()
    return name, inner.get("type")


MOST_BYTES = 1024 * 1024  # of a response


class OpenAiModel:
    """`LanguageModel`. Use and close it on one event loop."""

    def __init__(self, model: str, endpoint: Endpoint, policy: Policy) -> None:
        """Raise UsageError for an invalid URL or header."""
        self.name = model
        self._connection = ModelConnection(endpoint)
        # The client imports the resources at this access: now, and not during the first question.
        self._create = self._connection.client.chat.completions.with_streaming_response.create
        self._calls = ModelCalls(model, policy)
        # OpenAI's newer models accept one name only, many other servers the other.
        self._most_tokens = "max_completion_tokens" if endpoint.is_openai else "max_tokens"

    @property
    def meter(self) -> Meter:
        return self._calls.meter

    async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:
        tokens = estimate_tokens(prompt.system, prompt.user) + prompt.most_tokens
        answer, spent = await self._calls.call(tenant_id, prompt.task, tokens, lambda: self._attempt(prompt))
        return answer._replace(spent=spent)

    async def close(self) -> None:
        self._calls.close()
        await self._connection.close()

    async def _attempt(self, prompt: Prompt) -> Completion:
        schema = {"name": prompt.task, "strict": True, "schema": prompt.schema}
        asked: dict[str, Any] = {
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
            "response_format": {"type": "json_schema", "json_schema": schema},
            self._most_tokens: prompt.most_tokens,
        }
        answer = await self._connection.ask(self._create(model=self.name, **asked), MOST_BYTES)
        try:
            choice = answer["choices"][0]
            message, ended = choice["message"], choice.get("finish_reason")
            refusal, content = message.get("refusal"), message.get("content") or ""
            spent = _spent(answer, prompt, content)
        except (LookupError, TypeError, AttributeError):
            raise CallFailed("malformed", "the answer is no chat completion") from None
        if refusal or ended == "content_filter":
            raise CallFailed("refused", "the model will not answer", spent=spent)
        if ended == "length":
            problem = f"the answer was cut off after {prompt.most_tokens:,} tokens"
            raise CallFailed("malformed", problem, spent=spent)
        return Completion(_checked(content, prompt.schema, spent), spent)


def _checked(content: str, schema: Mapping[str, Any], spent: Spent) -> dict[str, Any]:
    """Return the checked output. Raise CallFailed, which never quotes it."""
    try:
        value = read_answer(content, schema)
    except ValueError:
        raise CallFailed("malformed", "what the model wrote is not JSON", spent=spent) from None
    error = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
    if error is not None or not isinstance(value, dict):
        rule = error.validator if error is not None else "object"
        raise CallFailed("malformed", f"what the model wrote breaks its schema: {rule}", spent=spent)
    return value


def _spent(answer: Mapping[str, Any], prompt: Prompt, content: str) -> Spent:
    given = counted(answer, "prompt_tokens", estimate_tokens(prompt.system, prompt.user))
    return Spent(1, given, counted(answer, "completion_tokens", estimate_tokens(content)))
