"""API keys, signing keys, signatures, and the masking of credentials in bodies and log lines."""

import io
import json
import logging
import secrets
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import example, given
from hypothesis import strategies as st

from recallflow.credentials import (
    MASK,
    SIGNATURE,
    ApiKeyText,
    Headers,
    SigningKey,
    check_secret,
    fingerprint,
    hash_secret,
    is_signed,
    mask,
    mask_text,
    read_jwks,
    sign,
    without_credentials,
)
from recallflow.errors import InvalidRecord, UsageError
from recallflow.records import Position, Record
from recallflow.telemetry import JsonFormatter, TextFormatter
from tests.unit.senders import (
    BEFORE_MS,
    NOW_MS,
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
    salt = secrets.token_hex(16)
    assert (
        hash_secret(salt, key.secret) == hash_secret(salt, key.secret) != hash_secret(secrets.token_hex(16), key.secret)
    )


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


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (oct_jwk(b"short"), "32 bytes or more, not 5"), (oct_jwk(alg="HS512"), "not for signatures with HS256"),
        (rsa_jwk(use="enc"), "not for signatures with RS256"),
        (rsa_jwk(rsa.generate_private_key(65537, 1024)), "2048 to 16384 bits"),
        (rsa_jwk(n="_" * 2_734), "2048 to 16384 bits"), (rsa_jwk(n="_" * 100_000), "2048 to 16384 bits"),
        (ec_jwk(ec.generate_private_key(ec.SECP384R1())), "P-256"), (ec_jwk(x="AA"), "cannot be read"),
        (ec_jwk(kid=7), "cannot be read"), (ec_jwk(kid="\n"), "cannot be read"),
        ({"kty": "OKP"}, "its kty is none of RSA, EC, oct"), ({"kty": ["RSA"]}, "its kty is none of RSA, EC, oct"),
        ([], "its kty is none of RSA, EC, oct"),
    ],
)  # fmt: skip
def test_unusable_signing_key_is_left_out(key: Any, problem: str) -> None:
    keys, problems, _ = read_jwks(document(key, ec_jwk(kid="good")))
    assert ([one.name for one in keys], len(problems)) == (["good"], 1)
    assert problem in problems[0]


def test_first_key_of_a_kid_counts() -> None:
    keys, problems, _ = read_jwks(document(ec_jwk(kid="same"), rsa_jwk(kid="same")))
    assert [key.algorithm for key in keys] == ["ES256"]
    assert problems == ["keys.1: an earlier key has the same kid"]


@pytest.mark.parametrize("given", [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 100_000, document(*[{}] * 101)])
def test_anything_else_is_no_jwks_document(given: bytes) -> None:
    with pytest.raises(UsageError, match="not a JWKS document"):
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


CONTROL_SECRET, OTHER = "s" * 32, "o" * 32


@given(st.binary(), st.binary())
def test_only_signed_content_is_verified(key: bytes, value: bytes) -> None:
    headers = sign(CONTROL_SECRET, key, value)
    assert is_signed(CONTROL_SECRET, key, value, headers)
    assert not is_signed(OTHER, key, value, headers)
    assert not is_signed(CONTROL_SECRET, key, value, sign(OTHER, key, value))


@given(st.binary(max_size=8), st.binary(max_size=8), st.binary(max_size=8), st.binary(max_size=8))
@example(b"a", b"bc", b"ab", b"c")  # the same bytes, cut elsewhere
def test_a_signature_is_of_one_key_and_one_value(key: bytes, value: bytes, key2: bytes, value2: bytes) -> None:
    assert is_signed(CONTROL_SECRET, key2, value2, sign(CONTROL_SECRET, key, value)) is ((key, value) == (key2, value2))


def test_missing_or_repeated_signature_is_refused() -> None:
    [(name, signature)] = sign(CONTROL_SECRET, b"k", b"v")
    for headers in (
        None,
        (),
        ((name, None),),
        ((name, b""),),
        ((name.upper(), signature),),
        ((name, signature.upper()),),
        ((name, signature), (name, signature)),
        ((name, b"0" * 64), (name, signature)),
    ):
        assert not is_signed(CONTROL_SECRET, b"k", b"v", headers)
    assert is_signed(CONTROL_SECRET, b"k", b"v", ((SIGNATURE, signature), ("another", b"x")))
    assert not is_signed(CONTROL_SECRET, None, b"v", ((name, signature),))
    assert not is_signed(CONTROL_SECRET, b"k", None, ((name, signature),))


def test_without_a_secret_nothing_is_signed() -> None:
    assert sign(None, b"k", b"v") == ()


@pytest.mark.parametrize("secret", ["", "s" * 31, b"s" * 32, 5])
def test_a_secret_that_could_be_guessed_is_refused_unseen(secret: object) -> None:
    with pytest.raises(UsageError, match=r"^control_secret must be text of 32 bytes or more: make a new one$"):
        check_secret("control_secret", secret)  # type: ignore[arg-type]
    check_secret("control_secret", None)


HIDDEN = "hunter2-walnut"
KEY = ApiKeyText.new().text()
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"
NAMES = ("token", "api_key", "apiKey", "X-API-Key", "authorization", "Password", "client_secret", "AUTHTOKEN")
HARMLESS = ("content", "max_tokens", "key", "author", "tokens", "name", "text")

texts = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(HARMLESS), inner, max_size=3),
    max_leaves=8,
)
hidden = st.sampled_from([HIDDEN, [HIDDEN], {"value": HIDDEN, "list": [HIDDEN, '"}']}, f'"{HIDDEN}\\"'])


@given(values, st.sampled_from(NAMES), hidden, st.lists(st.sampled_from((*HARMLESS, 0)), max_size=4), st.booleans())
def test_field_with_name_of_credential_is_masked_at_any_depth(
    beside: object, name: str, secret: object, path: list[str | int], ascii_only: bool
) -> None:
    def nested(held: object) -> object:
        body: object = {"beside": beside, name: held, "content": f"the {name} is {name}"}
        for step in path:
            body = [beside, body] if step == 0 else {str(step): body}
        return body

    written, count = mask(json.dumps(nested(secret), ensure_ascii=ascii_only).encode())
    assert count == 1
    assert HIDDEN.encode() not in written
    assert json.loads(written) == nested(MASK.decode())


@given(values)
def test_body_without_credentials_stays_byte_for_byte(body: object) -> None:
    data = json.dumps(body).encode()
    assert mask(data) == (data, 0)


def test_words_about_credentials_in_a_memory_stay() -> None:
    said = json.dumps({"content": 'my "token": "abc" and password: walnut', "summary": "the secret is out"}).encode()
    assert mask(said) == (said, 0)


@pytest.mark.parametrize("credential", [KEY, TOKEN], ids=["API key", "JWT"])
def test_own_credential_is_masked_anywhere(credential: str) -> None:
    for body in (json.dumps({"content": f"it is {credential}, or"}), f"no json {credential}", f'{{"{credential}":'):
        written, count = mask(body.encode())
        assert count == 1
        assert credential[-20:].encode() not in written
    assert mask(KEY.encode())[0] == KEY[: KEY.index("_", 4) + 1].encode() + MASK  # an operator learns which to revoke


@pytest.mark.parametrize(
    "body",
    [
        f'{{"token": "{HIDDEN}', f'{{"a": 1, "api_key": "{HIDDEN}", }}',
        f'{{"secret": ["{HIDDEN}", {{"a": "{HIDDEN}"', f'{{"content": "she said "no", "password": "{HIDDEN}"}}',
        f'{{"to\\u006ben": "{HIDDEN}"}}', f'{{"password"\n:\n"{HIDDEN}"}}\x00',
    ],
)  # fmt: skip
def test_credential_in_broken_json_is_masked(body: str) -> None:
    written, _ = mask(body.encode())
    assert HIDDEN.encode() not in written


@pytest.mark.parametrize("piece", [b'"\\', b'"token":', b'{"token":[', b'"token"', b"eyJ.", b"\\u0", b"'token' "])
def test_hostile_bytes_are_read_once(piece: bytes) -> None:
    mask(piece * 100_000)  # what is read again from each place would take hours
    mask_text((piece * 100_000).decode())


def test_words_about_credentials_in_a_log_line_stay() -> None:
    assert mask_text(said := "basic authentication failed, and bearer credentials too") == said


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_log_line_holds_no_credential(formatter: logging.Formatter) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter)
    log = logging.Logger("recallflow.test")
    log.addHandler(handler)
    error = ValueError(f"{{'x-api-key': '{HIDDEN}'}}")
    log.error('refused {"token": "%s"}, %s, Authorization: Bearer %s', HIDDEN, KEY, HIDDEN, exc_info=error)
    assert HIDDEN not in written.getvalue()
    assert KEY not in written.getvalue()
    assert "refused" in written.getvalue()
