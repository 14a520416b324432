"""Start page (/), API reference (/docs), and the explorer (/explore) with its static files.

The explorer shows a person's graph and episodes, and how one question was answered. It sends its queries to POST
/memory/query, with the credentials that its user enters."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files as resources

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response

from recallflow.connectors.http.errors import JSON, Problem
from recallflow.connectors.http.handler import RequestHandler
from recallflow.connectors.http.requests import credentials_of
from recallflow.credentials import Headers
from recallflow.errors import InvalidRecord, UsageError
from recallflow.owner import Owner
from recallflow.queries import UserStats

LIBRARY = "library/d3.js"  # our name of the drawing library
_PACKAGE, _FILE_IN_PACKAGE = "gravis", "gravis/_internal/plotting/third_party/d3/d3.v7.min.def.js"
_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8", "html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}  # fmt: skip


def _static_files() -> Iterator[tuple[str, bytes]]:
    """Yield every static file by name. Raise UsageError without the drawing library."""
    for resource in resources("recallflow.connectors.http").joinpath("explorer_page").iterdir():
        if resource.name.rpartition(".")[2] in _MEDIA_TYPES:
            yield resource.name, resource.read_bytes()
    try:
        # Only its path is looked up: importing the package would load all its drawing libraries.
        yield LIBRARY, distribution(_PACKAGE).locate_file(_FILE_IN_PACKAGE).read_bytes()  # type: ignore[attr-defined]
    except (PackageNotFoundError, FileNotFoundError):
        raise UsageError("the explorer draws with d3, which gravis ships: pip install 'recallflow[serve]'") from None


# Only these files may be scripts and styles, and no text may become markup: if a script of ours fails to escape a
# memory, the browser refuses to insert it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types recallflow-worker"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "x-frame-options": "DENY",
    "referrer-policy": "no-referrer", "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin", "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",  # the browser asks again with the ETag, and so gets a new version at once
}  # fmt: skip


def routes(handler: RequestHandler) -> APIRouter:
    """Return the routes. Raise UsageError where the drawing library is not installed."""
    router = APIRouter(include_in_schema=False)
    files = dict(_static_files())
    etags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, content in files.items()}

    async def send_file(name: str, request: Request) -> Response:
        if name not in files:
            raise Problem("not_found", "the explorer has no such file; GET /explore is its page")
        headers = {**HEADERS, "etag": etags[name]}
        if request.headers.get("if-none-match") == etags[name]:
            return Response(status_code=304, headers=headers)
        return Response(files[name], headers=headers, media_type=_MEDIA_TYPES[name.rpartition(".")[2]])

    @router.get("/explore/owners")
    async def owners(request: Request) -> Response:
        permitted = [one._asdict() for one in permitted_owners(handler, credentials_of(request))]
        return Response(orjson.dumps({"owners": permitted}), media_type=JSON)

    for path, name in (("/", "home.html"), ("/docs", "reference.html"), ("/explore", "index.html")):
        router.add_api_route(path, partial(send_file, name))
    router.add_api_route("/explore/{name:path}", send_file)
    return router


def permitted_owners(handler: RequestHandler, headers: Headers) -> list[Owner]:
    """Return the known owners whose memories these credentials may read. Raise InvalidRecord (`unauthenticated`) if the
    credentials are valid for no known tenant: a valid key is unknown to all other tenants."""
    permitted, refusals = [], dict[str, InvalidRecord]()
    for owner in sorted(handler.service.owners()):
        query = UserStats(type="user.stats", **owner._asdict())
        try:
            handler.admission.check(query, headers)
        except InvalidRecord as error:
            refusals[error.code] = error
        else:
            permitted.append(owner)
    if not permitted and refusals.keys() == {"unauthenticated"}:
        raise refusals["unauthenticated"]
    return permitted
