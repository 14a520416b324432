"""Language and embedding models behind an API with OpenAI's protocol: connection, retries, and both kinds of calls."""

import asyncio
import logging
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import openai
import orjson

from recallflow.connectors.llm.policy import OPENAI_URL, Endpoint, Meter, Policy, TokenBudget, estimate_tokens
from recallflow.embedder import Matrix
from recallflow.errors import EmbedderError, ModelError, ModelFailure
from recallflow.events import EMBEDDED_BYTES
from recallflow.llm import FAILURES, Breaker, Completion, Cost, Embeddings, Prompt, Task
from recallflow.telemetry import model_call

NO_KEY = "none"  # OpenAI's client requires a key; a local server needs none


class CallFailed(ModelError):
    """Failure of one attempt, with its cost. `retry_after` is that header of the response."""

    def __init__(
        self,
        code: ModelFailure,
        problem: str,
        status: int | None = None,
        retry_after: str | None = None,
        spent: Cost = Cost(1),  # noqa: B008 it never changes
    ) -> None:
        super().__init__(code, problem)
        self.status, self.retry_after = status, retry_after
        self.spent: Cost = spent

    @property
    def fails_all_calls(self) -> bool:
        """Return whether every other call would fail too: the service is down, overloaded, or refuses key or model."""
        return self.code in ("timeout", "unavailable", "rate_limited") or self.status in (401, 403, 404)


async def _leave_errors_unread(response: Any) -> None:
    """Skip the body of an error response: it may quote the request, and have any length."""
    if response.status_code >= 300:
        await response.aclose()


def reported_tokens(answer: Mapping[str, Any], kind: str, estimate: int) -> int:
    """Return a number of tokens (`kind`: `prompt_tokens`, …) as the service reports it, or else the estimate."""
    usage = answer.get("usage")
    tokens = usage.get(kind) if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and tokens >= 0 else estimate


async def _read(response: Any, most_bytes: int) -> bytes:
    body = bytearray()
    try:
        async for piece in response.iter_bytes():
            body += piece
            if len(body) > most_bytes:
                break
    except Exception as error:  # noqa: BLE001 the transport's exceptions depend on the version of the client library
        raise CallFailed("unavailable", f"the connection was cut: {type(error).__name__}") from None
    if len(body) > most_bytes:
        raise CallFailed("malformed", f"the answer has more than {most_bytes:,} bytes")
    return bytes(body)


Answer = TypeVar("Answer", Completion, Embeddings)

PROBING_MAX_S = 86_400.0  # a call that waits for a failing service ends after a day, as it may itself be the cause
MALFORMED_MAX = 2  # a model that returns malformed JSON twice would return it again

_log = logging.getLogger(__name__)


class ServiceModel:
    """Model behind an API: its connection, and calls with retries. Use and close it on one event loop."""

    def __init__(self, model: str, endpoint: Endpoint, policy: Policy | None = None) -> None:
        """Raise UsageError for an invalid URL or header."""
        self.name = model
        self.meter = Meter(model)
        # No redirects or proxies: texts of memories go to the configured address only.
        url, headers, hooks = endpoint.url, endpoint.named_headers, {"response": [_leave_errors_unread]}
        client = openai.DefaultAsyncHttpxClient(follow_redirects=False, event_hooks=hooks)
        self._client = openai.AsyncOpenAI(
            api_key=endpoint.key or NO_KEY, base_url=url, default_headers=headers, timeout=endpoint.timeout_s,
            http_client=client, max_retries=0,  # our policy retries
        )  # fmt: skip
        self._timeout_s = endpoint.timeout_s
        self._policy = policy = policy or Policy()
        self._breaker = Breaker(policy.timing.now_s)
        self._budget = TokenBudget(policy.daily_token_limit, policy.timing.epoch_s, policy.spending_file)
        self._calls_in_flight = 0
        self._slots: AbstractAsyncContextManager[object] = nullcontext()
        if policy.waits_for_breaker == "always" and policy.capacity is not None:
            self._slots = asyncio.Semaphore(policy.capacity)
        self._is_rate_limited = False  # whether the last failure of the service was a rate limit

    async def _call(
        self, tenant_id: str, task: Task, tokens: int, attempt: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, Cost]:
        """Return the first successful result of `attempt`, and the cost of all attempts. `tokens` is the estimated
        cost of one. Raise ModelError."""
        async with self._slots:
            with model_call("embeddings" if task == "embed" else "chat", self.name) as span:
                try:
                    answer, spent = await self._call_in_budget(tenant_id, task, tokens, attempt)
                except asyncio.CancelledError:
                    self.meter.fail(task, "timeout")  # the caller stopped waiting
                    raise
                except (ModelError, EmbedderError) as error:
                    self.meter.fail(task, error.code if isinstance(error, ModelError) else "malformed")
                    raise
                span.set_attribute("gen_ai.usage.input_tokens", spent.prompt_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", spent.completion_tokens)
                span.set_attributes({"recallflow.task": task, "recallflow.attempts": spent.calls})
                return answer, spent

    async def _call_in_budget(
        self, tenant_id: str, task: Task, tokens: int, attempt: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, Cost]:
        capacity = self._policy.capacity
        if capacity is not None and self._calls_in_flight >= capacity:
            raise ModelError("busy", f"{capacity:,} calls are in progress, which is the limit")
        reserved = self._budget.reserve(tenant_id, tokens)
        spent = Cost()

        def spend(cost: Cost) -> None:
            nonlocal spent
            spent = spent.plus(cost)
            self.meter.spend(tenant_id, task, cost)

        self._calls_in_flight += 1
        try:
            return await self._try(attempt, spend), spent
        except ModelError as error:
            error.spent = spent
            raise
        finally:
            self._calls_in_flight -= 1
            self._budget.settle(reserved, spent.tokens)

    async def close(self) -> None:
        self._budget.write()
        await self._client.close()

    async def _ask(self, opened: AbstractAsyncContextManager[Any], most_bytes: int) -> Any:
        """Return the JSON of the response that `opened` opens. Raise CallFailed."""
        try:
            # The client's own timeout limits only the time between two bytes.
            async with asyncio.timeout(self._timeout_s), opened as response:
                return orjson.loads(await _read(response, most_bytes))
        except orjson.JSONDecodeError:
            raise CallFailed("malformed", "the answer is not JSON") from None
        except (TimeoutError, openai.APITimeoutError):
            raise CallFailed("timeout", f"no answer within {self._timeout_s:g} s") from None
        except openai.APIStatusError as error:
            status = error.status_code
            is_temporary = status in (408, 409) or status >= 500
            code: ModelFailure = "rate_limited" if status == 429 else "unavailable" if is_temporary else "rejected"
            retry_after = error.response.headers.get("retry-after")
            raise CallFailed(code, f"the service answered {status}", status, retry_after) from None
        except openai.APIConnectionError as error:
            cause = type(error.__cause__ or error).__name__
            raise CallFailed("unavailable", f"the service cannot be reached: {cause}") from None

    async def _try(self, attempt: Callable[[], Awaitable[Answer]], spend: Callable[[Cost], None]) -> Answer:
        """Repeat an attempt until it succeeds or the policy permits no more. Report each cost. Raise ModelError."""
        failures = malformed = 0
        policy, timing = self._policy, self._policy.timing
        began_s = timing.now_s()
        while True:
            is_probe = await self._wait_for_breaker()
            try:
                answer = await self._attempt_once(attempt)
            except CallFailed as error:
                spend(error.spent)
                # While the service is down, waiting calls probe it without using up attempts, so an outage of hours
                # loses nothing.
                if timing.now_s() - began_s < PROBING_MAX_S:
                    if is_probe and policy.waits_for_breaker == "always" and error.fails_all_calls:
                        continue
                    if policy.waits_for_breaker == "rate limits" and error.code == "rate_limited":
                        await timing.sleep(policy.wait_s(1, error.retry_after))
                        continue
                failures += 1
                malformed += error.code == "malformed"
                may_succeed = error.code in ("timeout", "unavailable", "rate_limited", "malformed")
                if not may_succeed or failures >= policy.attempts or malformed >= MALFORMED_MAX:
                    raise
                await timing.sleep(policy.wait_s(failures, error.retry_after))
            except BaseException:  # even after a cancellation, the service was called and may charge for it
                spend(Cost(1))
                raise
            else:
                spend(answer.spent)
                return answer

    async def _wait_for_breaker(self) -> bool:
        """Wait until the circuit breaker permits a call. Return whether the call is a probe. Raise ModelError if the
        policy does not wait."""
        while (left_s := self._breaker.begin()) > 0:
            waits = self._policy.waits_for_breaker
            if waits == "never" or (waits == "rate limits" and not self._is_rate_limited):
                problem = f"the service failed {FAILURES} times in a row, and is not called for a while"
                raise ModelError("left_alone", problem)
            await self._policy.timing.sleep(left_s)
        return self._breaker.is_open

    async def _attempt_once(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the result of an attempt, and report its outcome to the breaker."""
        try:
            answer = await attempt()
        except CallFailed as error:
            if error.fails_all_calls:
                self._is_rate_limited = error.code == "rate_limited"
                self._report_failure(str(error), error.retry_after)
            else:
                self._report_success()
            raise
        except BaseException as error:  # reported too, because the attempt may be a probe, for which the breaker waits
            is_cancelled = isinstance(error, asyncio.CancelledError)
            self._report_failure("timeout: no answer in time" if is_cancelled else type(error).__name__, None)
            raise
        self._report_success()
        return answer

    def _report_failure(self, problem: str, retry_after: str | None) -> None:
        was_open = self._breaker.is_open
        self._breaker.failed(self._policy.requested_delay_s(retry_after))
        self.meter.breaker_open = self._breaker.is_open
        if self._breaker.is_open and not was_open:
            _log.warning("model %s is not called for a while: %s", self.name, problem)

    def _report_success(self) -> None:
        if self._breaker.is_open:
            _log.warning("model %s answers again", self.name)
        self._breaker.succeeded()
        self.meter.breaker_open = False


# Markdown block that models without a JSON mode put around JSON. If a model stopped early, the end is missing.
_FENCED = re.compile(r"```[A-Za-z0-9]*[ \t]*\r?\n(.*?)(?:\r?\n[ \t]*```|\Z)", re.DOTALL)
_TRUTH_WORDS = {"yes": True, "true": True, "no": False, "false": False}


def read_answer(content: str, schema: Mapping[str, Any]) -> object:
    """Return the value in a model's output, unchecked.

    Besides JSON, these are accepted: JSON in one fenced block; and for a schema with one field, the value of the field
    alone, if it is a list or a truth value (true, false, YES or NO). Raise ValueError for all other text."""
    blocks = _FENCED.findall(content)
    text = (blocks[0] if len(blocks) == 1 else content).strip()
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    ((only_field, field_schema),) = properties.items() if len(properties) == 1 else [("", {})]
    kind = field_schema.get("type")
    truth = _TRUTH_WORDS.get(text.strip("*.!\"' ").lower())
    if kind == "boolean" and truth is not None:
        return {only_field: truth}
    value: object = orjson.loads(text)
    return {only_field: value} if kind == "array" and isinstance(value, list) else value


ANSWER_BYTES_MAX = 1024 * 1024


class OpenAiModel(ServiceModel):
    """`LanguageModel` over chat completions with a JSON schema."""

    def __init__(self, model: str, endpoint: Endpoint, policy: Policy | None = None) -> None:
        super().__init__(model, endpoint, policy)
        # This access makes the client import its resources: now, and not during the first question.
        self._create = self._client.chat.completions.with_streaming_response.create
        # OpenAI's newer models accept only `max_completion_tokens`, many other servers only `max_tokens`.
        is_openai = urlsplit(endpoint.url).hostname == urlsplit(OPENAI_URL).hostname
        self._limit_name = "max_completion_tokens" if is_openai else "max_tokens"

    async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:
        tokens = estimate_tokens(prompt.system, prompt.user) + prompt.max_tokens
        answer, spent = await self._call(tenant_id, prompt.task, tokens, lambda: self._attempt(prompt))
        return answer._replace(spent=spent)

    async def _attempt(self, prompt: Prompt) -> Completion:
        schema = {"name": prompt.task, "strict": True, "schema": prompt.schema}
        request: dict[str, Any] = {
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
            "response_format": {"type": "json_schema", "json_schema": schema},
            self._limit_name: prompt.max_tokens,
        }
        answer = await self._ask(self._create(model=self.name, **request), ANSWER_BYTES_MAX)
        try:
            choice = answer["choices"][0]
            message, finish_reason = choice["message"], choice.get("finish_reason")
            refusal, content = message.get("refusal"), message.get("content") or ""
            prompt_tokens = reported_tokens(answer, "prompt_tokens", estimate_tokens(prompt.system, prompt.user))
            spent = Cost(1, prompt_tokens, reported_tokens(answer, "completion_tokens", estimate_tokens(content)))
        except (LookupError, TypeError, AttributeError):
            raise CallFailed("malformed", "the answer is no chat completion") from None
        if refusal or finish_reason == "content_filter":
            raise CallFailed("refused", "the model refused to answer", spent=spent)
        if finish_reason == "length":
            problem = f"the answer was cut off after {prompt.max_tokens:,} tokens"
            raise CallFailed("malformed", problem, spent=spent)
        return Completion(_checked(content, prompt.schema, spent), spent)


def _checked(content: str, schema: Mapping[str, Any], spent: Cost) -> dict[str, Any]:
    """Return the checked output. Raise CallFailed, which never quotes the output."""
    import jsonschema  # embedding services do not need it

    try:
        value = read_answer(content, schema)
    except ValueError:
        raise CallFailed("malformed", "the model's output is not JSON", spent=spent) from None
    error = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
    if error is not None or not isinstance(value, dict):
        rule = error.validator if error is not None else "object"
        raise CallFailed("malformed", f"the model's output violates its schema: {rule}", spent=spent)
    return value


BATCH_TEXTS = 256
BATCH_BYTES = 512 * 1024  # services take 300,000 tokens a call
FLOAT_BYTES = 32  # upper limit of a float in decimal digits
ENVELOPE_BYTES = 64 * 1024  # size of an answer without its floats
RESIZABLE = "text-embedding-3"  # prefix of the models that return vectors of a requested dimension


class OpenAiEmbeddings(ServiceModel):
    """`EmbeddingService`."""

    def __init__(self, model: str, dimension: int, endpoint: Endpoint, policy: Policy | None = None) -> None:
        super().__init__(model, endpoint, policy)
        self.dimension = dimension
        self._create = self._client.embeddings.with_streaming_response.create
        is_resizable = model.rpartition("/")[2].startswith(RESIZABLE)
        self._options: dict[str, Any] = {"dimensions": dimension} if is_resizable else {}
        self._has_returned_dimension = False  # once it has, another dimension is an error of the service, not of us

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embeddings:
        """Return the vectors. A blank text gets the zero vector, and is not sent."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        total = Cost()
        for batch in _batches([(row, text) for row, text in enumerate(texts) if text.strip()]):
            rows, batch_texts = zip(*batch, strict=True)
            tokens, attempt = estimate_tokens(*batch_texts), partial(self._attempt, [*batch_texts])
            answer, spent = await self._call(tenant_id, "embed", tokens, attempt)
            vectors[[*rows]] = answer.vectors
            total = total.plus(spent)
        return Embeddings(vectors, total)

    async def _attempt(self, texts: list[str]) -> Embeddings:
        # Many servers ignore the encoding, and answer with numbers.
        opened = self._create(model=self.name, input=texts, encoding_format="base64", **self._options)
        most_bytes = len(texts) * (self.dimension * FLOAT_BYTES + 1024) + ENVELOPE_BYTES
        answer = await self._ask(opened, most_bytes)
        try:
            items = sorted((item["index"], item["embedding"]) for item in answer["data"])
            rows = [_floats(embedding) for _, embedding in items]
            is_complete = [index for index, _ in items] == [*range(len(texts))]
            spent = Cost(1, reported_tokens(answer, "prompt_tokens", estimate_tokens(*texts)))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise CallFailed("malformed", "the answer has no embeddings") from None
        if not is_complete:
            raise CallFailed("malformed", f"the answer has {len(rows)} embeddings for {len(texts)} texts", spent=spent)
        return Embeddings(self._normalised(rows, spent), spent)

    def _normalised(self, rows: list[Any], spent: Cost) -> Matrix:
        """Return normalised vectors. Raise CallFailed for an invalid vector, and EmbedderError if the service has only
        returned vectors of another dimension: then the settings are wrong."""
        sizes = {row.size for row in rows}
        self._has_returned_dimension |= self.dimension in sizes
        if sizes != {self.dimension}:
            if self._has_returned_dimension or len(sizes) > 1:
                problem = f"the answer has embeddings of other sizes than {self.dimension}"
                raise CallFailed("malformed", problem, spent=spent)
            problem = f"returns vectors of {sizes.pop():,} floats, but embedding.dimension is {self.dimension}"
            raise EmbedderError(f"{self.name} {problem}: change it, or configure another model")
        matrix = np.stack(rows)
        with np.errstate(all="ignore"):  # invalid numbers are reported below
            norms = np.sqrt((matrix * matrix).sum(axis=1, keepdims=True))
        if not np.isfinite(norms).all() or not norms.all():
            raise CallFailed("malformed", "the answer has embeddings that are zero or not finite", spent=spent)
        vectors: Matrix = (matrix / norms).astype(np.float32)
        return vectors


def _floats(embedding: Any) -> Any:
    """Return the floats of an embedding. Raise ValueError or TypeError for other values."""
    if isinstance(embedding, str):
        row = np.frombuffer(b64decode(embedding, validate=True), "<f4").astype(np.float64)
    else:
        row = np.array(embedding, np.float64)
    if row.ndim != 1 or not row.size:
        raise ValueError
    return row


def _batches(texts: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Yield pairs of row and text in batches up to the limits of a call. Long texts are cut."""
    batch: list[tuple[int, str]] = []
    size_bytes = 0
    for row, text in texts:
        encoded = text.encode()[:EMBEDDED_BYTES]
        if batch and (len(batch) == BATCH_TEXTS or size_bytes + len(encoded) > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append((row, encoded.decode(errors="ignore")))
        size_bytes += len(encoded)
    if batch:
        yield batch
