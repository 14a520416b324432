"""A master key of AWS KMS, against a server that speaks its protocol over HTTP."""

from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

from recallflow.connectors.kms import KmsMasterKey
from recallflow.errors import MasterKeyError

REGION = "eu-west-1"
SECRET = bytes(range(32))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.fixture
def key_id(endpoint: str) -> str:
    kms = boto3.client("kms", region_name=REGION, endpoint_url=endpoint)
    return str(kms.create_key()["KeyMetadata"]["KeyId"])


def test_the_service_unwraps_what_it_wrapped(endpoint: str, key_id: str) -> None:
    key = KmsMasterKey(key_id, REGION, endpoint)
    wrapped = key.wrap(SECRET)
    assert SECRET not in wrapped
    assert KmsMasterKey(key_id, REGION, endpoint).unwrap(wrapped) == SECRET
    assert key.name == f"kms {key_id}"


def test_another_key_of_the_service_unwraps_nothing(endpoint: str, key_id: str) -> None:
    wrapped = KmsMasterKey(key_id, REGION, endpoint).wrap(SECRET)
    kms = boto3.client("kms", region_name=REGION, endpoint_url=endpoint)
    other = KmsMasterKey(kms.create_key()["KeyMetadata"]["KeyId"], REGION, endpoint)
    for broken in (other.wrap(SECRET)[:-1] + b"\x00", b"nothing", b""):
        with pytest.raises(MasterKeyError, match=f"the master key \\({other.name}\\) cannot be used: "):
            other.unwrap(broken)
    with pytest.raises(MasterKeyError, match="cannot be used"):
        other.unwrap(wrapped)


def test_a_key_that_there_is_not_is_told_by_its_name(endpoint: str) -> None:
    with pytest.raises(MasterKeyError, match=r"the master key \(kms nowhere\) cannot be used: .*NotFound"):
        KmsMasterKey("nowhere", REGION, endpoint).wrap(SECRET)


def test_a_service_that_does_not_answer_is_told_of_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.connectors.kms.ATTEMPTS", 1)
    with pytest.raises(MasterKeyError, match="cannot be used: Could not connect"):
        KmsMasterKey("some", REGION, "http://127.0.0.1:9").wrap(SECRET)


def test_without_a_region_it_is_said_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(MasterKeyError, match="cannot be used: You must specify a region"):
        KmsMasterKey("some")
