"""Logins as clouds have them, on a real broker: OAUTHBEARER with an OIDC server or AWS IAM, SCRAM, and mutual TLS."""

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks.kafka_flow import create, own_topics
from tests.kafka.engine import Engine
from tests.kafka.harness import GIVE_UP_S, Command
from tests.process import Process
from tools.broker import HOST, Broker, Cluster
from tools.logins import CLIENT, SCRAM, SECRET, TokenProvider, add_scram_user, broker_with_logins, variables

WRONG = "walnut-9"
LIFE_S = 8.0
# The listeners for logins and for certificates.
PROPERTIES = """
advertised.listeners=PLAINTEXT://{{host}}:{{port}},GUARDED://{{host}}:{{guarded_port}},WIRED://{{host}}:{{wired_port}}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,GUARDED:SASL_PLAINTEXT,WIRED:SSL,CONTROLLER:PLAINTEXT
listener.name.wired.ssl.client.auth=required
listener.name.wired.ssl.keystore.type=PEM
listener.name.wired.ssl.keystore.location={folder}/broker.pem
listener.name.wired.ssl.truststore.type=PEM
listener.name.wired.ssl.truststore.location={folder}/ca.crt
"""


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
def provider() -> Iterator[TokenProvider]:
    with closing(TokenProvider(LIFE_S)) as started:
        yield started


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    made.issue("broker")
    return made


@pytest.fixture(scope="module")
def guarded(provider: TokenProvider, authority: Authority) -> Iterator[Broker]:
    with broker_with_logins(provider, properties=PROPERTIES.format(folder=authority.folder)) as started:
        add_scram_user(started)
        yield started


@pytest.fixture
def engine(guarded: Broker) -> Engine:
    """Return an engine's topics, on the listener for tokens and passwords."""
    made = Engine(Cluster(guarded.guarded_servers), own_topics())
    create(guarded, made.topics, 1)
    return made


@pytest.fixture
def oidc(provider: TokenProvider) -> Iterator[dict[str, str]]:
    yield provider.options()
    provider.status = 200


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
    engine: Engine, provider: TokenProvider, oidc: dict[str, str], tmp_path: Path
) -> None:
    words = "run", "--state-dir", str(tmp_path / "s"), *engine.flags
    with Process(tmp_path / "log", *words, environment=variables(oidc)) as process:
        process.up()
        for what, status in (("bicycle", 200), ("lantern", 503)):
            round_trip(engine, oidc, f"The {what} is in the cellar.")
            until_s, provider.status = time.monotonic() + 1.3 * LIFE_S, status
            process.until(partial(passed, until_s), "without its first tokens")
        provider.status = 200
        round_trip(engine, oidc, "The violin is in the hall.")
        provider.status = 401
        ended = process.ended()
    assert (ended.code, ended.plain, SECRET in ended.said) == (1, True, False), ended
    assert "Kafka refuses us" in ended.error


@pytest.mark.parametrize("login", ["scram", "oidc"])
@pytest.mark.parametrize(
    "action", [["run"], ["topics", "create"], ["dlq", "list"], ["ask", "tea?"], ["doctor"]], ids=" ".join
)
def test_wrong_credentials_end_a_command_with_one_line(
    engine: Engine, oidc: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Command,
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
    engine: Engine, provider: TokenProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    guarded: Broker, engine: Engine, authority: Authority, tmp_path: Path, cli: Command
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
