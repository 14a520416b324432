"""Official client of one endpoint: sends a call, and returns the body of its answer or raises one ModelError."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import openai
import orjson

from recallflow.connectors.llm.policy import Endpoint
from recallflow.errors import ModelError, ModelFailure
from recallflow.llm import Spent

NO_KEY = "none"  # the client requires a key, a local server does not


class CallFailed(ModelError):
    """Failure of one attempt, with its cost. `retry_after` is the service's header."""

    def __init__(
        self,
        code: ModelFailure,
        problem: str,
        status: int | None = None,
        retry_after: str | None = None,
        spent: Spent = Spent(1),  # noqa: B008 it never changes
    ) -> None:
        super().__init__(code, problem)
        self.status = status
        self.retry_after = retry_after
        self.spent: Spent = spent

    @property
    def may_pass(self) -> bool:
        """Return whether a retry of the same call may succeed."""
        return self.code in ("timeout", "unavailable", "rate_limited", "malformed")

    @property
    def of_service(self) -> bool:
        """Return whether every call would fail: the service is down, overloaded, or refuses key or model."""
        return self.code in ("timeout", "unavailable", "rate_limited") or self.status in (401, 403, 404)


class ModelConnection:
    """Connection to one endpoint. Use and close it on one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raise UsageError for an invalid URL or header."""
        self.client = openai.AsyncOpenAI(
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

    async def ask(self, opened: AbstractAsyncContextManager[Any], most_bytes: int) -> Any:
        """Return the JSON of a response that a method of the client opens. Raise CallFailed."""
        try:
            # The client's own timeout applies between two bytes only.
            async with asyncio.timeout(self._timeout_s), opened as response:
                return _parsed(await _read(response, most_bytes))
        except (TimeoutError, openai.APITimeoutError):
            raise CallFailed("timeout", f"no answer within {self._timeout_s:g} s") from None
        except openai.APIStatusError as error:
            raise _of_status(error) from None
        except openai.APIConnectionError as error:
            cause = type(error.__cause__ or error).__name__
            raise CallFailed("unavailable", f"it cannot be reached: {cause}") from None

    async def close(self) -> None:
        await self.client.close()


async def _leave_errors_unread(response: Any) -> None:
    """Skip the body of an error, which may quote the request and have any length."""
    if response.status_code >= 300:
        await response.aclose()


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


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise CallFailed("malformed", "the answer is not JSON") from None


def _of_status(error: openai.APIStatusError) -> CallFailed:
    status = error.status_code
    code: ModelFailure = "rejected"
    if status == 429:
        code = "rate_limited"
    elif status in (408, 409) or status >= 500:
        code = "unavailable"
    return CallFailed(code, f"the service answered {status}", status, error.response.headers.get("retry-after"))
