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

NO_KEY = "none"  # the client requires a key, a local server does not


class CallFailed(ModelError):
    """Failure of one attempt, with its cost. `retry_after` is the service's header."""

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
    def of_service(self) -> bool:
        """Return whether every call would fail: the service is down, overloaded, or refuses key or model."""
        return self.code in ("timeout", "unavailable", "rate_limited") or self.status in (401, 403, 404)


async def _leave_errors_unread(response: Any) -> None:
    """Skip the body of an error, which may quote the request and have any length."""
    if response.status_code >= 300:
        await response.aclose()


def reported_tokens(answer: Mapping[str, Any], kind: str, estimate: int) -> int:
    """Return the number of tokens that a service reports; the estimate if it reports none."""
    usage = answer.get("usage")
    tokens = usage.get(kind) if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and tokens >= 0 else estimate


async def _read(response: Any, most_bytes: int) -> bytes:
    body = bytearray()
    pieces = response.iter_bytes()
    while True:
        try:
            piece = await anext(pieces, None)
        except Exception as error:  # noqa: BLE001 the transport's exceptions depend on the version of the client library
            raise CallFailed("unavailable", f"the connection was cut: {type(error).__name__}") from None
        if piece is None:
            return bytes(body)
        body += piece
        if len(body) > most_bytes:
            raise CallFailed("malformed", f"the answer has more than {most_bytes:,} bytes")


Answer = TypeVar("Answer", Completion, Embeddings)

WAITS_MOST_S = 86_400.0
MALFORMED_MOST = 2  # a model that returns malformed JSON twice repeats it

_log = logging.getLogger(__name__)


class ServiceModel:
    """Model behind an API: its connection, and calls with retries. Use and close it on one event loop."""

    def __init__(self, model: str, endpoint: Endpoint, policy: Policy | None = None) -> None:
        """Raise UsageError for an invalid URL or header."""
        self.name = model
        self.meter = Meter(model)
        self._client = openai.AsyncOpenAI(
            api_key=endpoint.key or NO_KEY,
            base_url=endpoint.url,
            default_headers=endpoint.named_headers,
            timeout=endpoint.timeout_s,
            max_retries=0,  # our policy retries
            # No redirects or proxies: texts of memories go to the configured address only.
            http_client=openai.DefaultAsyncHttpxClient(
                follow_redirects=False, event_hooks={"response": [_leave_errors_unread]}
            ),
        )
        self._timeout_s = endpoint.timeout_s
        self._policy = policy = policy or Policy()
        self._breaker = Breaker(policy.timing.now_s)
        self._budget = TokenBudget(policy.daily_token_limit, policy.timing.epoch_s, policy.spending_file)
        self._under_way = 0
        self._turns: AbstractAsyncContextManager[object] = nullcontext()
        if policy.waits_while_open == "always" and policy.capacity is not None:
            self._turns = asyncio.Semaphore(policy.capacity)
        self._is_limited = False  # whether the last failure was a rate limit

    async def _call(
        self, tenant_id: str, task: Task, tokens: int, attempt: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, Cost]:
        """Return the result of an attempt, and the cost of all. `tokens` is its estimated cost. Raise ModelError."""
        async with self._turns:
            with model_call("embeddings" if task == "embed" else "chat", self.meter.model) as span:
                answer, spent = await self._counted(tenant_id, task, tokens, attempt)
                span.set_attribute("gen_ai.usage.input_tokens", spent.prompt_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", spent.completion_tokens)
                span.set_attributes({"recallflow.task": task, "recallflow.attempts": spent.calls})
                return answer, spent

    async def _counted(
        self, tenant_id: str, task: Task, tokens: int, attempt: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, Cost]:
        try:
            capacity = self._policy.capacity
            if capacity is not None and self._under_way >= capacity:
                raise ModelError("busy", f"{capacity:,} calls are under way already")  # noqa: TRY301
            reserved = self._budget.reserve(tenant_id, tokens)
            spent = Cost()

            def spend(cost: Cost) -> None:
                nonlocal spent
                spent = spent.plus(cost)
                self.meter.spend(tenant_id, task, cost)

            self._under_way += 1
            try:
                return await self._try(attempt, spend), spent
            except ModelError as error:
                error.spent = spent
                raise
            finally:
                self._under_way -= 1
                self._budget.settle(reserved, spent.tokens)
        except asyncio.CancelledError:
            self.meter.fail(task, "timeout")  # the caller stopped waiting
            raise
        except (ModelError, EmbedderError) as error:
            self.meter.fail(task, error.code if isinstance(error, ModelError) else "malformed")
            raise

    async def close(self) -> None:
        self._budget.write()
        await self._client.close()

    async def _ask(self, opened: AbstractAsyncContextManager[Any], most_bytes: int) -> Any:
        """Return the JSON of a response that a method of the client opens. Raise CallFailed."""
        try:
            # The client's own timeout applies between two bytes only.
            async with asyncio.timeout(self._timeout_s), opened as response:
                return orjson.loads(await _read(response, most_bytes))
        except orjson.JSONDecodeError:
            raise CallFailed("malformed", "the answer is not JSON") from None
        except (TimeoutError, openai.APITimeoutError):
            raise CallFailed("timeout", f"no answer within {self._timeout_s:g} s") from None
        except openai.APIStatusError as error:
            status = error.status_code
            is_away = status in (408, 409) or status >= 500
            code: ModelFailure = "rate_limited" if status == 429 else "unavailable" if is_away else "rejected"
            retry_after = error.response.headers.get("retry-after")
            raise CallFailed(code, f"the service answered {status}", status, retry_after) from None
        except openai.APIConnectionError as error:
            cause = type(error.__cause__ or error).__name__
            raise CallFailed("unavailable", f"it cannot be reached: {cause}") from None

    async def _try(self, attempt: Callable[[], Awaitable[Answer]], spend: Callable[[Cost], None]) -> Answer:
        failures = malformed = 0
        began_s = self._policy.timing.now_s()
        while True:
            is_trial = await self._turn()
            try:
                answer = await self._guarded(attempt)
            except CallFailed as error:
                spend(error.spent)
                # While the service is down, waiting calls probe it without using up attempts, so an outage of hours
                # loses nothing. This ends after a day, because the call itself may cause the failure.
                waited_s = self._policy.timing.now_s() - began_s
                if waited_s < WAITS_MOST_S:
                    if is_trial and self._policy.waits_while_open == "always" and error.of_service:
                        continue
                    if self._policy.waits_while_open == "rate limits" and error.code == "rate_limited":
                        await self._policy.timing.sleep(self._policy.wait_s(1, error.retry_after))
                        continue
                failures += 1
                malformed += error.code == "malformed"
                may_pass = error.code in ("timeout", "unavailable", "rate_limited", "malformed")
                if not may_pass or failures >= self._policy.attempts or malformed >= MALFORMED_MOST:
                    raise
                wait_s = self._policy.wait_s(failures, error.retry_after)
            except BaseException:  # even after a cancellation, the service was called and may charge for it
                spend(Cost(1))
                raise
            else:
                spend(answer.spent)
                return answer
            await self._policy.timing.sleep(wait_s)

    async def _turn(self) -> bool:
        """Wait until a call is permitted, and return whether it is a probe. Raise ModelError where none waits."""
        while (left_s := self._breaker.begin()) > 0:
            waits = self._policy.waits_while_open
            if waits == "never" or (waits == "rate limits" and not self._is_limited):
                raise ModelError("left_alone", f"it failed {FAILURES} times in a row, and is left alone for a while")
            await self._policy.timing.sleep(left_s)
        return self._breaker.is_open

    async def _guarded(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the result of an attempt, and report its outcome to the breaker."""
        try:
            answer = await attempt()
        except CallFailed as error:
            if error.of_service:
                self._is_limited = error.code == "rate_limited"
                self._failed(str(error), error.retry_after)
            else:
                self._answered()
            raise
        except BaseException as error:  # a probe has ended: the breaker waits for its end
            late = isinstance(error, asyncio.CancelledError)
            self._failed("timeout: no answer in time" if late else type(error).__name__, None)
            raise
        self._answered()
        return answer

    def _failed(self, problem: str, retry_after: str | None) -> None:
        was_open = self._breaker.is_open
        self._breaker.failed(self._policy.asked_s(retry_after))
        self.meter.breaker_open = self._breaker.is_open
        if self._breaker.is_open and not was_open:
            _log.warning("model %s is left alone for a while: %s", self.meter.model, problem)

    def _answered(self) -> None:
        if self._breaker.is_open:
            _log.warning("model %s answers again", self.meter.model)
        self._breaker.succeeded()
        self.meter.breaker_open = False


# Markdown block that models without a JSON mode put around JSON. Its end may be missing where a model stopped early.
_FENCED = re.compile(r"```[A-Za-z0-9]*[ \t]*\r?\n(.*?)(?:\r?\n[ \t]*```|\Z)", re.DOTALL)
_WORDS = {"yes": True, "true": True, "no": False, "false": False}


def read_answer(content: str, schema: Mapping[str, Any]) -> object:
    """Return the value in a model's output, unchecked.

    Three further forms are accepted: JSON in one fenced block, and for a schema with one field its bare value, as a
    list or as a truth value (JSON, YES or NO). Raise ValueError for other text that is not JSON."""
    blocks = _FENCED.findall(content)
    text = (blocks[0] if len(blocks) == 1 else content).strip()
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    ((field, inner),) = properties.items() if len(properties) == 1 else [("", {})]
    kind = inner.get("type")
    word = _WORDS.get(text.strip("*.!\"' ").lower())
    if kind == "boolean" and word is not None:
        return {field: word}
    value: object = orjson.loads(text)
    return {field: value} if kind == "array" and isinstance(value, list) else value


MOST_BYTES = 1024 * 1024  # size limit of a response


class OpenAiModel(ServiceModel):
    """`LanguageModel` over chat completions with a JSON schema."""

    def __init__(self, model: str, endpoint: Endpoint, policy: Policy | None = None) -> None:
        super().__init__(model, endpoint, policy)
        # The client imports the resources at this access: now, and not during the first question.
        self._create = self._client.chat.completions.with_streaming_response.create
        # OpenAI's newer models accept one name only, many other servers the other.
        is_openai = urlsplit(endpoint.url).hostname == urlsplit(OPENAI_URL).hostname
        self._most_tokens = "max_completion_tokens" if is_openai else "max_tokens"

    async def complete(self, tenant_id: str, prompt: Prompt) -> Completion:
        tokens = estimate_tokens(prompt.system, prompt.user) + prompt.max_tokens
        answer, spent = await self._call(tenant_id, prompt.task, tokens, lambda: self._attempt(prompt))
        return answer._replace(spent=spent)

    async def _attempt(self, prompt: Prompt) -> Completion:
        schema = {"name": prompt.task, "strict": True, "schema": prompt.schema}
        asked: dict[str, Any] = {
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
            "response_format": {"type": "json_schema", "json_schema": schema},
            self._most_tokens: prompt.max_tokens,
        }
        answer = await self._ask(self._create(model=self.name, **asked), MOST_BYTES)
        try:
            choice = answer["choices"][0]
            message, ended = choice["message"], choice.get("finish_reason")
            refusal, content = message.get("refusal"), message.get("content") or ""
            given = reported_tokens(answer, "prompt_tokens", estimate_tokens(prompt.system, prompt.user))
            spent = Cost(1, given, reported_tokens(answer, "completion_tokens", estimate_tokens(content)))
        except (LookupError, TypeError, AttributeError):
            raise CallFailed("malformed", "the answer is no chat completion") from None
        if refusal or ended == "content_filter":
            raise CallFailed("refused", "the model will not answer", spent=spent)
        if ended == "length":
            problem = f"the answer was cut off after {prompt.max_tokens:,} tokens"
            raise CallFailed("malformed", problem, spent=spent)
        return Completion(_checked(content, prompt.schema, spent), spent)


def _checked(content: str, schema: Mapping[str, Any], spent: Cost) -> dict[str, Any]:
    """Return the checked output. Raise CallFailed, which never quotes it."""
    import jsonschema  # an embedding service does without it

    try:
        value = read_answer(content, schema)
    except ValueError:
        raise CallFailed("malformed", "what the model wrote is not JSON", spent=spent) from None
    error = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
    if error is not None or not isinstance(value, dict):
        rule = error.validator if error is not None else "object"
        raise CallFailed("malformed", f"what the model wrote breaks its schema: {rule}", spent=spent)
    return value


BATCH_TEXTS = 256
BATCH_BYTES = 512 * 1024  # services take 300,000 tokens a call
FLOAT_BYTES = 32  # upper limit of a float in decimal digits
ENVELOPE_BYTES = 64 * 1024  # size of an answer without its floats
SHORTENED = "text-embedding-3"  # models with this prefix return the requested dimension


class OpenAiEmbeddings(ServiceModel):
    """`EmbeddingService`."""

    def __init__(self, model: str, dimension: int, endpoint: Endpoint, policy: Policy | None = None) -> None:
        super().__init__(model, endpoint, policy)
        self.dimension = dimension
        self._create = self._client.embeddings.with_streaming_response.create
        shortened = model.rpartition("/")[2].startswith(SHORTENED)
        self._asked: dict[str, Any] = {"dimensions": dimension} if shortened else {}
        self._fits = False  # after a vector of the configured dimension, another dimension is an error of the service

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embeddings:
        """Return the vectors. A text without words gets the zero vector, and is not sent."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        spoken = [at for at, text in enumerate(texts) if text.strip()]
        total = Cost()
        for batch in _batches([(at, texts[at]) for at in spoken]):
            texts_of = [text for _, text in batch]
            tokens, attempt = estimate_tokens(*texts_of), partial(self._attempt, texts_of)
            answer, spent = await self._call(tenant_id, "embed", tokens, attempt)
            vectors[[at for at, _ in batch]] = answer.vectors
            total = total.plus(spent)
        return Embeddings(vectors, total)

    async def _attempt(self, texts: list[str]) -> Embeddings:
        # The official client asks for base64; many servers answer with numbers all the same.
        opened = self._create(model=self.name, input=texts, encoding_format="base64", **self._asked)
        most_bytes = len(texts) * (self.dimension * FLOAT_BYTES + 1024) + ENVELOPE_BYTES
        answer = await self._ask(opened, most_bytes)
        try:
            found = sorted((item["index"], item["embedding"]) for item in answer["data"])
            rows = [_floats(embedding) for _, embedding in found]
            whole = [at for at, _ in found] == [*range(len(texts))]
            spent = Cost(1, reported_tokens(answer, "prompt_tokens", estimate_tokens(*texts)))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            raise CallFailed("malformed", "the answer has no embeddings") from None
        if not whole:
            raise CallFailed("malformed", f"the answer has {len(rows)} embeddings for {len(texts)} texts", spent=spent)
        return Embeddings(self._normalised(rows, spent), spent)

    def _normalised(self, rows: list[Any], spent: Cost) -> Matrix:
        """Return normalised vectors. Raise CallFailed for an invalid vector, and EmbedderError for a constant wrong
        size: then the settings are wrong."""
        sizes = {row.size for row in rows}
        self._fits |= self.dimension in sizes
        if sizes != {self.dimension}:
            if self._fits or len(sizes) > 1:
                problem = f"the answer has embeddings of other sizes than {self.dimension}"
                raise CallFailed("malformed", problem, spent=spent)
            raise EmbedderError(
                f"{self.name} gives vectors of {sizes.pop():,} floats: set embedding.dimension to that, "
                f"which is {self.dimension}, or name another model"
            )
        found = np.stack(rows)
        with np.errstate(all="ignore"):  # invalid numbers
            norms = np.sqrt((found * found).sum(axis=1, keepdims=True))
        if not np.isfinite(norms).all() or not norms.all():
            raise CallFailed("malformed", "the answer has embeddings that are no vectors", spent=spent)
        vectors: Matrix = (found / norms).astype(np.float32)
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
    """Yield the beginnings of texts in order, in batches up to the limit of a call."""
    batch: list[tuple[int, str]] = []
    size_bytes = 0
    for at, text in texts:
        encoded = text.encode()[:EMBEDDED_BYTES]
        if batch and (len(batch) == BATCH_TEXTS or size_bytes + len(encoded) > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append((at, encoded.decode(errors="ignore")))
        size_bytes += len(encoded)
    if batch:
        yield batch
