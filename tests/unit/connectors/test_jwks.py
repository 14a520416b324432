"""JWKS documents out of files and from a real HTTP server, well and ill."""

import gzip
from pathlib import Path

import pytest

from recallflow.connectors.jwks import MAX_BYTES, open_jwks
from recallflow.errors import SourceError, UsageError
from tests.jwks_server import SECRET, JwksServer, document, es256, oct_key, rs256


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"), (b"", "not a JWKS document"), (b'{"keys": 5}', "not a JWKS"),
        (b" " * (MAX_BYTES + 1), "more than"),
    ],
)  # fmt: skip
def test_invalid_jwks_file_is_reported(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "jwks.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=said):
        open_jwks(str(path)).read()


def test_an_address_gives_public_keys_alone(jwks_server: JwksServer) -> None:
    jwks_server.body = document(rs256(), oct_key(), es256())
    source = open_jwks(jwks_server.url)
    keys, problems, _ = source.read()
    assert [key.name for key in keys] == ["r1", "e1"]
    assert (problems, source.is_remote) == (["o1: a secret may only be in a file"], True)


def test_unchanged_document_is_not_sent_again(jwks_server: JwksServer) -> None:
    jwks_server.body, jwks_server.headers = document(rs256()), {"ETag": '"1"'}
    source = open_jwks(jwks_server.url)
    first, second = source.read(), source.read()
    assert first == second
    jwks_server.body, jwks_server.headers = document(rs256(), es256()), {"ETag": '"2"'}
    assert [key.name for key in source.read()[0]] == ["r1", "e1"]
    assert [asked.get("if-none-match") for asked in jwks_server.asked] == [None, '"1"', '"1"']


def test_a_tag_that_cannot_be_sent_back_is_not_kept(jwks_server: JwksServer) -> None:
    jwks_server.body, jwks_server.headers = document(rs256()), {"ETag": '"\xe9"'}
    source = open_jwks(jwks_server.url)
    assert source.read() == source.read()
    assert [asked.get("if-none-match") for asked in jwks_server.asked] == [None, None]


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (500, {}, document(rs256()), "with status 500"), (404, {}, document(rs256()), "with status 404"),
        (302, {"Location": "https://elsewhere.example/jwks"}, b"", "with status 302"),
        (304, {}, b"", "with status 304"), (200, {}, b"<html>", "not a JWKS document"),
        (200, {}, b"[" * 100_000, "not a JWKS document"), (200, {}, document(), "no usable key"),
        (200, {}, document({"kty": "oct", "k": SECRET}), "no usable key"),
        (200, {}, b" " * (64 * MAX_BYTES), "more than 1,048,576 bytes"),
        (200, {"Content-Encoding": "gzip"}, gzip.compress(b" " * (64 * MAX_BYTES), mtime=0), "not a JWKS document"),
        (200, {"Content-Length": "100000"}, b"{", "the request to"),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_invalid_jwks_response_is_reported(
    jwks_server: JwksServer, status: int, headers: dict[str, str], body: bytes, said: str
) -> None:
    jwks_server.status, jwks_server.headers, jwks_server.body = status, headers, body
    with pytest.raises(SourceError, match=said):
        open_jwks(jwks_server.url).read()


def test_an_answer_that_trickles_in_is_given_up(jwks_server: JwksServer) -> None:
    jwks_server.trickles = True
    with pytest.raises(SourceError, match=r"no complete response within 0\.2 s"):
        open_jwks(jwks_server.url, timeout_s=0.2).read()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://keys.example/jwks", "must begin with https://"),
        ("http://127.0.0.1.keys.example/jwks", "must begin with https://"),
        ("http://localhost@keys.example/jwks", "must not contain a user"),
        ("https://user:pass@keys.example/jwks", "must not contain a user"), ("https:///jwks", "must begin with https://"),
        ("https://keys.example:no/jwks", "invalid address"), ("https://[::1/jwks", "invalid address"),
    ],
)  # fmt: skip
def test_an_address_that_anyone_could_answer_for_is_refused(address: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        open_jwks(address)
    assert "pass@" not in str(raised.value)
