"""A real HTTP server that gives out a JWKS document, or what it is told, and keys for it."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests import http_server

SECRET = "c2VjcmV0" * 8  # 48 bytes, in base64


def rs256(kid: str = "r1", bits: int = 2048) -> dict[str, Any]:
    return RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, bits), as_dict=True) | {"kid": kid}


def es256(kid: str = "e1") -> dict[str, Any]:
    return ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True) | {"kid": kid}


def oct_key(kid: str = "o1") -> dict[str, Any]:
    return {"kty": "oct", "kid": kid, "k": SECRET}


def document(*keys: object) -> bytes:
    return orjson.dumps({"keys": keys})


class JwksServer:
    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, dict[str, str](), document()
        self.failures = 0  # so many answers from now on are errors
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

        class Handler(http_server.Handler):
            def do_GET(self) -> None:  # noqa: N802 - of http.server
                server.asked.append({name.lower(): value for name, value in self.headers.items()})
                if server.failures:
                    server.failures -= 1
                    self.send_error(503)
                    return
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

        return Handler
