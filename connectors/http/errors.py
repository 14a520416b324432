"""Error responses: `{"error": {code, message, fields}}`, with the status of the code."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import cast

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from recallflow import errors
from recallflow.responses import ErrorBody, FieldError, QueryFailed

JSON = "application/json"
STATUSES = {
    "invalid_json": 400, "invalid_event": 400, "unknown_type": 400, "unknown_schema": 400, "undecodable": 400,
    "wrong_dimension": 400, "unauthenticated": 401,
    "forbidden": 403, "not_found": 404, "method_not_allowed": 405, "deadline": 408, "slow_body": 408,
    "id_conflict": 409, "skipped": 409, "too_large": 413, "unsupported_media_type": 415, "misdirected": 421,
    "too_many_requests": 429, "over_quota": 429, "internal_error": 500, "unreadable": 500, "catching_up": 503,
    "unavailable": 503,
}  # fmt: skip
_TEMPORARY = ("over_quota", "too_many_requests", "catching_up", "unavailable")  # a later request may succeed
_HEADERS = {
    "unauthenticated": {"www-authenticate": "Bearer"},
    "slow_body": {"connection": "close"},
    **{code: {"retry-after": "1"} for code in _TEMPORARY},  # rates are counted per second
}
_DELAYED = frozenset(("invalid_json", "invalid_event", "unknown_type", "too_large", "unauthenticated", "forbidden"))
REFUSALS_PER_S, REFUSAL_WAIT_S = 5, 1.0
DELAYED_REFUSALS_MAX = 32  # limit, because each delayed refusal occupies a connection and a request slot
_ROUTER_CODES = {404: "not_found", 405: "method_not_allowed"}  # status of the router's error → our code
_defects = errors.DefectLog(logging.getLogger(__name__))


class Problem(errors.RecallflowError):
    """Refusal of a request by the gateway, before the engine sees the request."""

    def __init__(self, code: str, message: str, field: str = "") -> None:
        fields = [FieldError(field=field, problem=message)] if field else []
        self.body = ErrorBody(code=code, message=f"{field}: {message}" if field else message, fields=fields)
        super().__init__(code, message)


def body_of(error: errors.RecallflowError) -> ErrorBody:
    match error:
        case Problem():
            return error.body
        case errors.InvalidRecord():
            return ErrorBody.of(error)
        case QueryFailed():
            return error.error
        case errors.QueryTimeout():
            return ErrorBody(code="deadline", message=str(error))
        case errors.DeliveryFailed() | errors.SourceError() | errors.SinkError() | errors.UsageError():
            return ErrorBody(code="unavailable", message=str(error))
    return own_failure("a request", error)


def own_failure(where: str, error: Exception) -> ErrorBody:
    """Log a failure of our own code, without the exception's message. Return the body of the response."""
    error_id = uuid.uuid4().hex[:12]
    _defects.report(error_id, where, error)
    message = f"internal error {error_id} of the gateway; report it with the gateway's log of that id"
    return ErrorBody(code="internal_error", message=message)


def error_response(code: str, content: bytes) -> Response:
    """Return a response with the status of an error's code. An engine newer than this gateway may send new codes."""
    return Response(content, STATUSES.get(code, 500), _HEADERS.get(code, {}), JSON)


def refusal(body: ErrorBody) -> Response:
    return error_response(body.code, orjson.dumps(error_fields(body)))


def error_fields(body: ErrorBody) -> dict[str, object]:
    return {"error": body.model_dump(exclude_unset=True)}


class RefusalPace:
    """Delays of refusals. Without them, a client that repeats a wrong request at once would occupy the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s, self._count = clock(), 0
        self._slots = asyncio.Semaphore(DELAYED_REFUSALS_MAX)

    async def wait(self, code: str) -> None:
        """Delay a refusal, unless the delayed refusals would occupy the slots of other requests."""
        if code in _DELAYED and (delay_s := self.next_delay_s()) and not self._slots.locked():
            async with self._slots:
                await asyncio.sleep(delay_s)

    def next_delay_s(self) -> float:
        """Count a refusal. Return how long it waits; 0 at a low rate."""
        now_s = self._clock()
        if now_s - self._began_s >= 1:
            self._began_s, self._count = now_s, 0
        self._count += 1
        return REFUSAL_WAIT_S if self._count > REFUSALS_PER_S else 0.0


def add_handlers(app: FastAPI) -> None:
    pace = RefusalPace()

    async def refuse(request: Request, error: Exception) -> Response:
        body = body_of(cast(errors.RecallflowError, error))
        await pace.wait(body.code)
        if message_field := getattr(request.scope.get("route"), "message_field", None):
            content = {message_field: body.message, "error": body.model_dump(exclude={"truncated"})}
            return error_response(body.code, orjson.dumps(content))
        return refusal(body)

    async def refuse_routing(_: Request, error: Exception) -> Response:
        routing = cast(HTTPException, error)
        code = _ROUTER_CODES.get(routing.status_code, "invalid_event")
        return refusal(ErrorBody(code=code, message=f"{routing.detail}; GET /openapi.json lists all routes"))

    app.add_exception_handler(errors.RecallflowError, refuse)
    app.add_exception_handler(HTTPException, refuse_routing)
