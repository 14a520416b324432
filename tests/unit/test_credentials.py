"""API keys as text, and keys of tokens out of a JWKS document."""

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from recallflow.credentials import ApiKeyText, Headers, fingerprint, hash_of, new_salt, without_credentials
from recallflow.errors import InvalidRecord, UsageError
from recallflow.records import Position, Record
from recallflow.signing_keys import SigningKey, read_jwks
from tests.unit.senders import (
    BEFORE_MS,
    EC_KEY,
    NOW_MS,
    RSA_KEY,
    SECRET,
    Senders,
    api_key,
    bearer,
    ec_jwk,
    oct_jwk,
    rsa_jwk,
    signing_keys,
    token,
    token_key,
    with_key,
)


def document(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_an_api_key_is_read_as_it_was_written() -> None:
    key = ApiKeyText.new()
    assert ApiKeyText.parse(key.text()) == key
    assert key.secret not in f"{key} {key!r} {[key]}"
    salt = new_salt()
    assert hash_of(salt, key.secret) == hash_of(salt, key.secret) != hash_of(new_salt(), key.secret)


@pytest.mark.parametrize(
    "change", [str.upper, lambda text: text[:-1], lambda text: text + "\n", lambda text: "r" + text]
)
def test_anything_else_is_no_api_key(change: Any) -> None:
    assert ApiKeyText.parse(change(ApiKeyText.new().text())) is None


@pytest.mark.parametrize("name", ["authorization ", "x_api_key", "authorisation", "x-api-key\u0000", "note"])
def test_a_credential_under_a_misspelt_name_is_nothing_for_others(name: str) -> None:
    key, token = ApiKeyText.new().text(), jwt.encode({"sub": "ann"}, SECRET, "HS256")
    others = (("a", b"eyJ.eyJ."), ("b", b"rfk_"), ("c", None))
    for value in (key, f" {key}\n", token, f"Bearer {token}", f"token={token}; path=/"):
        assert without_credentials((*others[:1], (name, value.encode()), *others[1:])) == others


@pytest.mark.parametrize("piece", [b"eyJ", b"eyJa.", b"eyJa.eyJ", b"rfk_", b"rfk_0123456789abcdef_", b"eyJa-"])
def test_a_long_header_is_looked_through_once(piece: bytes) -> None:
    # Were each place looked at from each place before it, this would take hours.
    headers = (("a", piece * (2_000_000 // len(piece))),)
    assert without_credentials(headers) in ((), headers)


def test_a_jwks_document_gives_public_keys_and_secrets() -> None:
    keys, problems, _ = read_jwks(document(rsa_jwk(kid="r"), ec_jwk(kid="e", use="sig"), oct_jwk(kid="o"), ec_jwk()))
    assert problems == []
    assert [(key.name, key.algorithm) for key in keys[:3]] == [("r", "RS256"), ("e", "ES256"), ("o", "HS256")]
    assert keys[3].name == keys[3].fingerprint == keys[1].fingerprint
    assert keys[2] == SigningKey("o", "HS256", fingerprint(SECRET), None, SECRET)
    assert [key.jwk and sorted(key.jwk) for key in keys[:2]] == [["e", "kty", "n"], ["crv", "kty", "x", "y"]]
    assert SECRET.decode() not in repr(keys)


def test_only_the_public_part_of_a_key_is_kept() -> None:
    private = [jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY), jwt.algorithms.ECAlgorithm.to_jwk(EC_KEY)]
    keys, problems, _ = read_jwks(document(*map(json.loads, private)))
    assert problems == []
    assert [key.jwk and sorted(key.jwk) for key in keys] == [["e", "kty", "n"], ["crv", "kty", "x", "y"]]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (oct_jwk(b"short"), "32 bytes or more, not 5"),
        (oct_jwk(alg="HS512"), "not for signatures with HS256"),
        (rsa_jwk(use="enc"), "not for signatures with RS256"),
        (rsa_jwk(rsa.generate_private_key(65537, 1024)), "2048 to 16384 bits"),
        (rsa_jwk(n="_" * 2_734), "2048 to 16384 bits"),
        (rsa_jwk(n="_" * 100_000), "2048 to 16384 bits"),
        (ec_jwk(ec.generate_private_key(ec.SECP384R1())), "P-256"),
        (ec_jwk(x="AA"), "cannot be read"),
        (ec_jwk(kid=7), "cannot be read"),
        (ec_jwk(kid="\n"), "cannot be read"),
        ({"kty": "OKP"}, "its kty is none of RSA, EC, oct"),
        ({"kty": ["RSA"]}, "its kty is none of RSA, EC, oct"),
        ([], "its kty is none of RSA, EC, oct"),
    ],
)
def test_unusable_signing_key_is_left_out(key: Any, problem: str) -> None:
    keys, problems, _ = read_jwks(document(key, ec_jwk(kid="good")))
    assert [one.name for one in keys] == ["good"]
    assert len(problems) == 1
    assert problem in problems[0]


def test_first_key_of_a_kid_counts() -> None:
    keys, problems, _ = read_jwks(document(ec_jwk(kid="same"), rsa_jwk(kid="same")))
    assert [key.algorithm for key in keys] == ["ES256"]
    assert problems == ["keys.1: another key before it has the same kid"]


@pytest.mark.parametrize("given", [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 100_000, document(*[{}] * 101)])
def test_anything_else_is_no_jwks_document(given: bytes) -> None:
    with pytest.raises(UsageError, match="no JWKS document"):
        read_jwks(given)


def code_of(senders: Senders, headers: Headers) -> str | None:
    try:
        senders.authoriser.authenticate(Record(Position("log", 0, 0), b"", NOW_MS, headers=headers))
    except InvalidRecord as error:
        return error.code
    return None


def test_credentials_of_any_tenant_are_judged_without_an_event() -> None:
    senders = Senders()
    senders.decide(*(token_key(key) for key in signing_keys()))
    mine, others, any_tenants = senders.key(), senders.key("globex"), senders.key("*")
    same_name = ApiKeyText(mine.name, ApiKeyText.new().secret)
    senders.decide(api_key(same_name, "zorg"))
    for headers in (*map(with_key, (mine, others, any_tenants, same_name)), bearer(token())):
        assert code_of(senders, headers) is None
    revoked = senders.key()
    senders.decide(api_key(revoked, revoked=True), at_ms=BEFORE_MS + 1)
    guessed = ApiKeyText(mine.name, ApiKeyText.new().secret)
    for headers in ((), *map(with_key, (revoked, guessed, ApiKeyText.new())), bearer(token(exp=1)), bearer("x")):
        assert code_of(senders, headers) == "unauthenticated"
    assert code_of(senders, with_key(mine) + bearer(token())) == "unauthenticated"
    assert code_of(Senders("off"), ()) is None
    assert code_of(Senders("auto"), ()) is None  # nobody has a key yet
