"""What comes with a request: its body, within limits, and what its headers and parameters say."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from recallflow.connectors.http.errors import JSON, Problem
from recallflow.connectors.http.limits import Limits
from recallflow.connectors.http.parameters import as_json
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER, Headers
from recallflow.parsing import unmarked
from recallflow.tracing import trace_headers

_CREDENTIALS = {name.encode(): name for name in (TOKEN_HEADER, KEY_HEADER, USER_HEADER)}
_UTF_8 = ("utf-8", "utf8")
_DRAINED = 8  # times the limit: so much more is read, and dropped, so that who sends it hears why


def credentials_of(request: Request) -> Headers:
    """The credentials of a request, as a record has them, and its place in a trace. A credential that is given twice
    stays so, and is refused."""
    given = ((_CREDENTIALS[name], value) for name, value in request.scope["headers"] if name in _CREDENTIALS)
    return (*given, *trace_headers())


def check_content_type(request: Request, wanted: str = JSON) -> None:
    """Raises Problem for a body of another type, or in other letters than UTF-8. A page of any site may have a browser
    send forms and plain texts to this machine, but not JSON."""
    given = request.headers.getlist("content-type")
    if len(given) > 1:
        raise Problem("unsupported_media_type", f"content-type is given twice: send content-type: {wanted}")
    kind, *details = "".join(given).lower().split(";")
    if kind.strip() != wanted:
        raise Problem("unsupported_media_type", f"send content-type: {wanted}")
    for name, _, value in (detail.partition("=") for detail in details):
        if name.strip() == "charset" and value.strip().strip('"') not in _UTF_8:
            raise Problem("unsupported_media_type", "send UTF-8, and charset=utf-8 or no charset")


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body. Raises Problem for one that is too large, or too slow."""
    chunks: list[bytes] = []
    size, most = 0, limits.body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > _DRAINED * most:
        raise too_large(most)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= most:
                    chunks.append(chunk)
                elif size > _DRAINED * most:
                    break
    except TimeoutError:
        raise Problem("slow_body", f"the body was not there within {limits.body_timeout_s:g} s") from None
    except ClientDisconnect:
        raise Problem("slow_body", "the client left before its body was there") from None
    if size > most:
        raise too_large(most)
    return b"".join(chunks)


def too_large(most: int) -> Problem:
    """Says that a body, or a line of one, has more than so many bytes."""
    return Problem("too_large", f"over {most} bytes; split it, or store a reference")


def with_fields(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """The object that a body is, with more fields before its own. One that both have is then refused as given twice. A
    body that is no object stays as it is, and is refused for that."""
    inner = unmarked(body).strip()
    if not inner.startswith(b"{"):
        return body
    inner = inner[1:].lstrip()
    return as_json(fields)[:-1] + (b"" if inner.startswith(b"}") else b",") + inner
