"""A master key of AWS KMS, against a server that speaks its protocol over HTTP."""

from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from recallflow.connectors.master_keys import KmsMasterKey
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


def test_missing_key_is_named(endpoint: str) -> None:
    with pytest.raises(MasterKeyError):
        KmsMasterKey("nowhere", REGION, endpoint).wrap(SECRET)


def test_silent_service_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.connectors.master_keys.ATTEMPTS", 1)
    with pytest.raises(MasterKeyError):
        KmsMasterKey("some", REGION, "http://127.0.0.1:9").wrap(SECRET)


def test_without_a_region_it_is_said_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(MasterKeyError):
        KmsMasterKey("some")
