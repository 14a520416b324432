"""JWKS documents (RFC 7517) from a file or an address: the current keys for token signatures."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx

from recallflow.credentials import Jwks, read_jwks
from recallflow.errors import SourceError, UsageError

MAX_BYTES = 1024 * 1024  # size of a document; a hundred keys need a tenth
TIMEOUT_S = 5.0  # limit of a whole response; a stop of the process waits for it
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class KeySource(NamedTuple):
    """Source of keys."""

    read: Callable[[], Jwks]  # returns the current keys; raises SourceError
    is_remote: bool  # whether others operate it: then a key is not revoked at once if a response lacks it


def open_jwks(where: str, timeout_s: float = TIMEOUT_S) -> KeySource:
    """Return the source of a file or an address. Raise UsageError for an address without TLS, or with a password."""
    if not where.startswith(("http://", "https://")):
        return KeySource(lambda: _read_file(Path(where)), is_remote=False)
    try:
        url = httpx.URL(where)
    except httpx.InvalidURL:
        raise UsageError("auth.jwks: invalid address: give https://HOST/PATH, or a file") from None
    if url.userinfo:
        raise UsageError("auth.jwks: the address must not contain a user or password")
    if not url.host or (url.scheme == "http" and url.host not in LOCAL_HOSTS):
        raise UsageError("auth.jwks: the address must begin with https:// (http:// is allowed for this machine)")
    return KeySource(JwksAddress(url, timeout_s).read, is_remote=True)


def _read_file(path: Path) -> Jwks:
    """Return the keys in a file, which may include HS256 secrets."""
    try:
        with path.open("rb") as file:
            document = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SourceError(f"auth.jwks: cannot read {path}: {error.strerror}") from error
    return _parse(document)


class JwksAddress:
    """Address of an identity provider's public keys. Redirects are not followed. Secrets in the document are
    ignored, because others can read them. An unchanged document is not sent again (ETag)."""

    def __init__(self, url: httpx.URL, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._latest: tuple[str, Jwks] | None = None  # (ETag, document) of the last response

    def read(self) -> Jwks:
        try:
            found = asyncio.run(self._fetch())
        except TimeoutError:
            raise SourceError(f"auth.jwks: no complete response within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise SourceError(f"auth.jwks: the request to {self._url.host} failed: {type(error).__name__}") from None
        if not found.keys:
            raise SourceError("auth.jwks: the response contains no usable key for token signatures")
        return found

    async def _fetch(self) -> Jwks:
        # No compression: a small body could expand without limit.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._latest is not None:
            headers["If-None-Match"] = self._latest[0]
        # The client's own timeout applies between two bytes only.
        async with (
            asyncio.timeout(self._timeout_s),
            httpx.AsyncClient(timeout=self._timeout_s, follow_redirects=False) as client,
            client.stream("GET", self._url, headers=headers) as response,
        ):
            if self._latest is not None and response.status_code == httpx.codes.NOT_MODIFIED:
                return self._latest[1]
            if response.status_code != httpx.codes.OK:
                raise SourceError(f"auth.jwks: {self._url.host} answered with status {response.status_code}")
            document = bytearray()
            async for piece in response.aiter_raw():
                document += piece
                if len(document) > MAX_BYTES:
                    break
        parsed = _parse(bytes(document))
        public = [key for key in parsed.keys if key.secret is None]
        refusals = [f"{key.name}: a secret may only be in a file" for key in parsed.keys if key.secret is not None]
        found = parsed._replace(keys=public, problems=[*parsed.problems, *refusals])
        tag = response.headers.get("ETag", "")
        self._latest = (tag, found) if tag and tag.isascii() else None  # a request header may have ASCII only
        return found


def _parse(document: bytes) -> Jwks:
    if len(document) > MAX_BYTES:
        raise SourceError(f"auth.jwks: the document has more than {MAX_BYTES:,} bytes")
    try:
        return read_jwks(document)
    except UsageError as error:
        raise SourceError(f"auth.jwks: {error}") from None
