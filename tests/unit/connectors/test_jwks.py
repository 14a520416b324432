"""JWKS documents out of files and from a real HTTP server, well and ill."""

import gzip
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from recallflow.connectors.jwks import MOST_BYTES, open_jwks
from recallflow.errors import SourceError, UsageError

SECRET = "c2VjcmV0" * 8  # 48 bytes, in base64


def rs256(kid: str = "r1", bits: int = 2048) -> dict[str, Any]:
    """A private key: what is not for us is not read."""
    return RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, bits), as_dict=True) | {"kid": kid}


def es256(kid: str = "e1") -> dict[str, Any]:
    return ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True) | {"kid": kid}


def oct_key(kid: str = "o1") -> dict[str, Any]:
    return {"kty": "oct", "kid": kid, "k": SECRET}


def document(*keys: object) -> bytes:
    return orjson.dumps({"keys": keys})


class JwksServer:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, dict[str, str](), document()
        self.asked: list[dict[str, str]] = []
        self.trickles = False  # the body comes byte after byte, and never ends
        self.closing = Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/.well-known/jwks.json"
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append({name.lower(): value for name, value in self.headers.items()})
                tag = server.headers.get("ETag")
                if tag is not None and self.headers.get("If-None-Match") == tag:
                    self.send_response(304)
                    self.end_headers()
                    return
                self.send_response(server.status)
                for name, value in server.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(server.body)
                    while server.trickles and not server.closing.wait(0.01):
                        self.wfile.write(b" ")
                except OSError:
                    pass  # whoever asked has had enough

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def server() -> Iterator[JwksServer]:
    server = JwksServer()
    yield server
    server.close()


def test_a_file_gives_public_keys_and_secrets(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(document(rs256(), es256(), oct_key(), rs256("short", 1024), {"kty": "OKP", "kid": "ed"}))
    source = open_jwks(str(path))
    keys, problems = source.read()
    assert [(key.name, key.algorithm, key.secret is not None) for key in keys] == [
        ("r1", "RS256", False),
        ("e1", "ES256", False),
        ("o1", "HS256", True),
    ]
    assert [sorted(key.jwk) for key in keys if key.jwk is not None] == [["e", "kty", "n"], ["crv", "kty", "x", "y"]]
    assert len(problems) == 2
    assert not source.is_remote


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        (b"", "no JWKS document"),
        (b'{"keys": 5}', "no JWKS"),
        (b" " * (MOST_BYTES + 1), "more than"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "jwks.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=said):
        open_jwks(str(path)).read()


def test_an_address_gives_public_keys_alone(server: JwksServer) -> None:
    server.body = document(rs256(), oct_key(), es256())
    source = open_jwks(server.url)
    keys, problems = source.read()
    assert [key.name for key in keys] == ["r1", "e1"]
    assert (problems, source.is_remote) == (["o1: a secret is no secret at an address"], True)


def test_what_has_not_changed_is_not_sent_again(server: JwksServer) -> None:
    server.body, server.headers = document(rs256()), {"ETag": '"1"'}
    source = open_jwks(server.url)
    first, second = source.read(), source.read()
    assert first == second
    server.body, server.headers = document(rs256(), es256()), {"ETag": '"2"'}
    assert [key.name for key in source.read()[0]] == ["r1", "e1"]
    assert [asked.get("if-none-match") for asked in server.asked] == [None, '"1"', '"1"']


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (500, {}, document(rs256()), "it answered 500"),
        (404, {}, document(rs256()), "it answered 404"),
        (302, {"Location": "https://elsewhere.example/jwks"}, b"", "it answered 302"),
        (304, {}, b"", "it answered 304"),
        (200, {}, b"<html>", "no JWKS document"),
        (200, {}, b"[" * 100_000, "no JWKS document"),
        (200, {}, document(), "no key in the answer"),
        (200, {}, document({"kty": "oct", "k": SECRET}), "no key in the answer"),
        (200, {}, b" " * (64 * MOST_BYTES), "more than 1,048,576 bytes"),
        (200, {"Content-Encoding": "gzip"}, gzip.compress(b" " * (64 * MOST_BYTES)), "no JWKS document"),
        (200, {"Content-Length": "100000"}, b"{", "cannot be asked"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_an_answer_that_is_none_is_told(
    server: JwksServer, status: int, headers: dict[str, str], body: bytes, said: str
) -> None:
    server.status, server.headers, server.body = status, headers, body
    with pytest.raises(SourceError, match=said):
        open_jwks(server.url).read()


def test_an_answer_that_trickles_in_is_given_up(server: JwksServer) -> None:
    server.trickles = True
    with pytest.raises(SourceError, match=r"no whole answer within 0\.2 s"):
        open_jwks(server.url, timeout_s=0.2).read()


def test_an_address_where_nobody_is_is_told() -> None:
    with pytest.raises(SourceError, match=r"127\.0\.0\.1 cannot be asked: ConnectError"):
        open_jwks("http://127.0.0.1:1/jwks").read()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://keys.example/jwks", "must begin with https://"),
        ("http://127.0.0.1.keys.example/jwks", "must begin with https://"),
        ("http://localhost@keys.example/jwks", "no user or password"),
        ("https://user:pass@keys.example/jwks", "no user or password"),
        ("https:///jwks", "must begin with https://"),
        ("https://keys.example:no/jwks", "no address"),
        ("https://[::1/jwks", "no address"),
    ],
)
def test_an_address_that_anyone_could_answer_for_is_refused(address: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        open_jwks(address)
    assert "pass@" not in str(raised.value)
