"""Logins of a local broker: SCRAM, and OAUTHBEARER with an OpenID provider of its own. Secrets are for trials only."""

import base64
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import jwt
import orjson
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tools.broker import HOST, Broker, quiet_admin

AUDIENCE, CLIENT, SECRET = "kafka", "recallflow", "walnut-7"
_PUBLIC = ("kty", "kid", "n", "e", "alg", "use")
_PROPERTIES = """
listener.name.guarded.sasl.enabled.mechanisms=OAUTHBEARER,SCRAM-SHA-512
listener.name.guarded.connections.max.reauth.ms=60000
listener.name.guarded.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.guarded.oauthbearer.sasl.jaas.config={oauth}.OAuthBearerLoginModule required;
listener.name.guarded.oauthbearer.sasl.server.callback.handler.class={oauth}.OAuthBearerValidatorCallbackHandler
listener.name.guarded.sasl.oauthbearer.jwks.endpoint.url={url}
listener.name.guarded.sasl.oauthbearer.expected.audience={audience}
listener.name.guarded.sasl.oauthbearer.clock.skew.seconds=0
"""


class TokenProvider:
    """OpenID provider: GET returns its public keys, POST is its token endpoint for the client-credentials grant."""

    def __init__(self, life_s: float = 300.0) -> None:
        self._life_s, self._key = life_s, rsa.generate_private_key(65537, 2048)
        self.status = 200  # of the token endpoint
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://{HOST}:{self._server.server_address[1]}"
        self.token_url = f"{self.url}/token"
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _keys(self) -> bytes:
        key = RSAAlgorithm.to_jwk(self._key, as_dict=True) | {"kid": "r1", "alg": "RS256", "use": "sig"}
        return orjson.dumps({"keys": [{name: key[name] for name in _PUBLIC}]})

    def _token(self, authorization: str | None) -> tuple[int, bytes]:
        """Return the status and the body of the token endpoint."""
        expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        status = self.status if authorization == f"Basic {expected}" else 401
        if status == 401:
            return status, orjson.dumps({"error": "invalid_client", "error_description": "wrong secret"})
        if status != 200:
            return status, b""
        now_s = time.time()
        claims = {"sub": CLIENT, "aud": AUDIENCE, "iat": now_s, "exp": now_s + self._life_s}
        token = jwt.encode(claims, self._key, "RS256", {"kid": "r1"})
        return status, orjson.dumps({"access_token": token, "token_type": "Bearer", "expires_in": str(self._life_s)})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, provider._keys())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self._answer(*provider._token(self.headers["authorization"]))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def options(self) -> dict[str, str]:
        """Return librdkafka's options for a login by OAUTHBEARER."""
        return {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT, "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.token.endpoint.url": self.token_url,
        }  # fmt: skip


SCRAM = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": CLIENT,
    "sasl.password": SECRET,
}  # fmt: skip


def broker_with_logins(provider: TokenProvider, port: int | None = None, properties: str = "") -> Broker:
    """Return a broker, not started, whose `guarded_servers` take tokens of the provider and passwords."""
    oauth = "org.apache.kafka.common.security.oauthbearer"
    ours = _PROPERTIES.format(oauth=oauth, url=provider.url, audience=AUDIENCE)
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.url}"
    return Broker(port, properties=ours + properties, options=[allowed])


def add_scram_user(broker: Broker) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    admin = quiet_admin(broker.bootstrap_servers)
    for added in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(CLIENT, info, SECRET.encode())]
    ).values():
        added.result()


def variables(options: dict[str, str]) -> dict[str, str]:
    """Return options as environment variables of recallflow."""
    return {f"RECALLFLOW_KAFKA_LIBRDKAFKA_{name.upper().replace('.', '_')}": text for name, text in options.items()}
