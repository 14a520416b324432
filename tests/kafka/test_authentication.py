"""Logins as clouds have them, on a real broker: OAUTHBEARER with an OIDC server or AWS IAM, SCRAM, and mutual TLS."""

import base64
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from jwt import PyJWK

from benchmarks.broker import HOST, Broker, Cluster
from benchmarks.kafka_flow import create, own_topics
from tests.jwks_server import JwksServer, document, rs256
from tests.kafka.engine import Engine
from tests.kafka.harness import GIVE_UP_S
from tests.process import Process

Cli = Callable[..., subprocess.CompletedProcess[str]]

AUDIENCE, CLIENT, SECRET, WRONG = "kafka", "recallflow", "walnut-7", "walnut-9"
KEY = rs256()
LIFE_S = 8.0
# The guarded listener takes tokens and passwords, the wired one takes certificates.
PROPERTIES = """
advertised.listeners=PLAINTEXT://{{host}}:{{port}},GUARDED://{{host}}:{{guarded_port}},WIRED://{{host}}:{{wired_port}}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,GUARDED:SASL_PLAINTEXT,WIRED:SSL,CONTROLLER:PLAINTEXT
listener.name.guarded.sasl.enabled.mechanisms=OAUTHBEARER,SCRAM-SHA-512
listener.name.guarded.connections.max.reauth.ms=60000
listener.name.guarded.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.guarded.oauthbearer.sasl.jaas.config={oauth}.OAuthBearerLoginModule required;
listener.name.guarded.oauthbearer.sasl.server.callback.handler.class={oauth}.OAuthBearerValidatorCallbackHandler
listener.name.guarded.sasl.oauthbearer.jwks.endpoint.url={jwks}
listener.name.guarded.sasl.oauthbearer.expected.audience={audience}
listener.name.guarded.sasl.oauthbearer.clock.skew.seconds=0
listener.name.wired.ssl.client.auth=required
listener.name.wired.ssl.keystore.type=PEM
listener.name.wired.ssl.keystore.location={folder}/broker.pem
listener.name.wired.ssl.truststore.type=PEM
listener.name.wired.ssl.truststore.location={folder}/ca.crt
"""


def token(life_s: float = LIFE_S) -> str:
    """Return an access token as the provider issues it."""
    now_s = time.time()
    claims = {"sub": CLIENT, "aud": AUDIENCE, "iat": now_s, "exp": now_s + life_s}
    return jwt.encode(claims, PyJWK(KEY).key, "RS256", {"kid": KEY["kid"]})


class Provider(JwksServer):
    """An OIDC server: keys, and a token endpoint for the client-credentials grant."""

    def __init__(self) -> None:
        super().__init__()
        self.body = document(public(KEY))
        self.issued, self.status_of_tokens = 0, 200
        self.token_url = self.url.replace("/.well-known/jwks.json", "/token")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self
        base: Any = super()._handler()

        class Handler(base):  # type: ignore[misc]
            def do_POST(self) -> None:  # noqa: N802 - of http.server
                self.rfile.read(int(self.headers["content-length"]))
                right = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
                status = provider.status_of_tokens
                if self.headers["authorization"] != f"Basic {right}":
                    status = 401
                answer = {"error": "invalid_client", "error_description": "wrong secret"} if status == 401 else {}
                if status == 200:
                    provider.issued += 1
                    answer = {"access_token": token(), "token_type": "Bearer", "expires_in": str(LIFE_S)}
                body = orjson.dumps(answer) if status < 500 else b""
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


def public(key: dict[str, Any]) -> dict[str, Any]:
    return {name: key[name] for name in ("kty", "kid", "n", "e")} | {"alg": "RS256", "use": "sig"}


class Authority:
    """A certificate authority in a folder: `ca.crt`, and a key and a certificate for each name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = _named("authority")
        (folder / "ca.crt").write_bytes(_pem(self._signed("authority", self._key, days=1, is_ca=True)))

    def issue(self, name: str, days: int = 1) -> None:
        """Write NAME.key, NAME.crt, and both into NAME.pem; `days` below 0: expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        texts = key.private_bytes(*form), _pem(self._signed(name, key, days))
        for ending, text in zip(("key", "crt", "pem"), (*texts, b"".join(texts)), strict=True):
            (self.folder / f"{name}.{ending}").write_bytes(text)

    def _signed(
        self, name: str, key: ec.EllipticCurvePrivateKey, days: int, *, is_ca: bool = False
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=7))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        return made.sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with closing(Provider()) as started:
        yield started


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    made.issue("broker")
    return made


@pytest.fixture(scope="module")
def guarded(provider: Provider, authority: Authority) -> Iterator[Broker]:
    oauth = "org.apache.kafka.common.security.oauthbearer"
    properties = PROPERTIES.format(jwks=provider.url, audience=AUDIENCE, folder=authority.folder, oauth=oauth)
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.url}"
    with Broker(properties=properties, options=[allowed]) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        changes: list[UserScramCredentialAlteration] = [UserScramCredentialUpsertion(CLIENT, scram, SECRET.encode())]
        for changed in admin.alter_user_scram_credentials(changes).values():
            changed.result()
        yield started


@pytest.fixture
def engine(guarded: Broker) -> Engine:
    """Return an engine's topics, on the listener for tokens and passwords."""
    made = Engine(Cluster(guarded.guarded_servers), own_topics())
    create(guarded, made.topics, 1)
    return made


@pytest.fixture
def oidc(provider: Provider) -> Iterator[dict[str, str]]:
    yield {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT, "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
    }  # fmt: skip
    provider.status_of_tokens = 200


SCRAM = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": CLIENT,
    "sasl.password": SECRET,
}  # fmt: skip


def variables(options: dict[str, str]) -> dict[str, str]:
    """Return the options as environment variables."""
    return {f"RECALLFLOW_KAFKA_LIBRDKAFKA_{name.upper().replace('.', '_')}": text for name, text in options.items()}


def round_trip(engine: Engine, options: dict[str, str], fact: str, **chosen: Any) -> None:
    """Write and read with a Python client."""
    with engine.client(options=options, **chosen) as client:
        position = client.add(fact, user="ann")
        assert fact in [memory.content for memory in client.search(fact, user="ann", after=position)]


def passed(until_s: float) -> bool:
    return time.monotonic() > until_s


def test_engine_and_client_work_with_scram(engine: Engine, tmp_path: Path) -> None:
    with engine.running(tmp_path / "s", environment=variables(SCRAM)):
        round_trip(engine, SCRAM, "The bicycle is in the cellar.")


def test_engine_outlives_its_tokens_and_an_outage_of_their_provider(
    engine: Engine, provider: Provider, oidc: dict[str, str], tmp_path: Path
) -> None:
    words = "run", "--state-dir", str(tmp_path / "s"), *engine.flags
    with Process(tmp_path / "log", *words, environment=variables(oidc)) as process:
        process.up()
        for what, status in (("bicycle", 200), ("lantern", 503)):
            round_trip(engine, oidc, f"The {what} is in the cellar.")
            until_s, provider.status_of_tokens = time.monotonic() + 1.3 * LIFE_S, status
            process.until(partial(passed, until_s), "without its first tokens")
        provider.status_of_tokens = 200
        round_trip(engine, oidc, "The violin is in the hall.")
        provider.status_of_tokens = 401
        ended = process.ended()
    assert (ended.code, ended.plain, SECRET in ended.said) == (1, True, False), ended
    assert "Kafka refuses us" in ended.error


@pytest.mark.parametrize("login", ["scram", "oidc"])
@pytest.mark.parametrize("action", [["run"], ["topics", "create"], ["ask", "tea?"], ["doctor"]], ids=" ".join)
def test_wrong_credentials_end_a_command_with_one_line(
    engine: Engine, oidc: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli,
    login: str, action: list[str],
) -> None:  # fmt: skip
    options = oidc | {"sasl.oauthbearer.client.secret": WRONG} if login == "oidc" else SCRAM | {"sasl.password": WRONG}
    for name, text in variables(options).items():
        monkeypatch.setenv(name, text)
    where = ["--state-dir", tmp_path / "s"] if action[0] in ("run", "doctor") else []
    began_s = time.monotonic()
    done = cli(*action, *where, "--bootstrap-servers", engine.broker.bootstrap_servers)
    assert done.returncode == 1
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "Kafka refuses us" in line]
    assert len(lines) == 1, done
    assert WRONG not in done.stdout + done.stderr
    assert time.monotonic() - began_s < GIVE_UP_S


# In place of AWS's signature, which only MSK can check.
SIGNER = """
import time
import httpx
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

def generate_auth_token(region):
    token = httpx.post({url!r}, auth=({client!r}, {secret!r})).json()["access_token"]
    return token, 1000 * (time.time() + {life_s})

MSKAuthTokenProvider.generate_auth_token = generate_auth_token
"""


def test_engine_and_client_work_with_tokens_of_msk(
    engine: Engine, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = SIGNER.format(url=provider.token_url, client=CLIENT, secret=SECRET, life_s=LIFE_S)
    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", None)  # restored after the test
    exec(signer, {})
    options, region = {"security.protocol": "SASL_PLAINTEXT"}, "eu-test-1"
    words = "run", "--state-dir", str(tmp_path / "s"), *engine.flags, "--msk-iam-region", region
    with Process(tmp_path / "log", *words, environment=variables(options)) as process:
        process.setup = signer
        process.up()
        until_s = time.monotonic() + 1.3 * LIFE_S
        round_trip(engine, options, "The bicycle is in the cellar.", msk_iam_region=region)
        process.until(partial(passed, until_s), "without its first tokens")
        round_trip(engine, options, "The lantern is in the attic.", msk_iam_region=region)
        assert process.stop().code == 0


def test_engine_takes_a_renewed_certificate(
    guarded: Broker, engine: Engine, authority: Authority, tmp_path: Path, cli: Cli
) -> None:
    authority.issue("client")
    here = authority.folder
    options = {
        "security.protocol": "SSL", "ssl.ca.location": f"{here}/ca.crt",
        "ssl.certificate.location": f"{here}/client.crt", "ssl.key.location": f"{here}/client.key",
    }  # fmt: skip
    at = Engine(Cluster(f"{HOST}:{guarded.wired_port}"), engine.topics)
    words = "run", "--state-dir", str(tmp_path / "s"), *at.flags
    with Process(tmp_path / "log", *words, environment=variables(options)) as process:
        process.setup = "from recallflow.cli import kafka; kafka.RENEWAL_S = 0.2"
        process.up()
        round_trip(at, options, "The bicycle is in the cellar.")
        (here / "client.crt").write_text("half a certificate")
        process.until(lambda: "renewed certificate cannot be used" in process.said(), "aware of the certificate")
        authority.issue("client")
        ended = process.ended()
        assert (ended.code, ended.plain, "start again" in ended.error) == (1, True, True), ended
        process.up()
        round_trip(at, options, "The lantern is in the attic.")
        assert process.stop().code == 0
    authority.issue("client", days=-1)
    flags = [word for one in options.items() for word in ("-X", "=".join(one))]
    done = cli("topics", "create", "--bootstrap-servers", at.broker.bootstrap_servers, *flags)
    assert (done.returncode, done.stderr.count("Kafka refuses us")) == (1, 1), done
