"""Credentials in JSON bodies, dead letters and log lines are masked; everything else stays as it is."""

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.cli.telemetry import JsonFormatter, TextFormatter
from recallflow.credentials import ApiKeyText
from recallflow.masking import MASK, mask, mask_text

SECRET = "hunter2-walnut"
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
secrets = st.sampled_from([SECRET, [SECRET], {"value": SECRET, "list": [SECRET, '"}']}, f'"{SECRET}\\"'])


@given(values, st.sampled_from(NAMES), secrets, st.lists(st.sampled_from((*HARMLESS, 0)), max_size=4), st.booleans())
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
    assert SECRET.encode() not in written
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
        f'{{"token": "{SECRET}', f'{{"a": 1, "api_key": "{SECRET}", }}',
        f'{{"secret": ["{SECRET}", {{"a": "{SECRET}"', f'{{"content": "she said "no", "password": "{SECRET}"}}',
        f'{{"to\\u006ben": "{SECRET}"}}', f'{{"password"\n:\n"{SECRET}"}}\x00',
    ],
)  # fmt: skip
def test_credential_in_broken_json_is_masked(body: str) -> None:
    written, _ = mask(body.encode())
    assert SECRET.encode() not in written


@pytest.mark.parametrize("piece", [b'"\\', b'"token":', b'{"token":[', b'"token"', b"eyJ.", b"\\u0", b"'token' "])
def test_hostile_bytes_are_read_once(piece: bytes) -> None:
    mask(piece * 100_000)  # what is read again from each place would take hours
    mask_text((piece * 100_000).decode())


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_log_line_holds_no_credential(formatter: logging.Formatter) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter)
    log = logging.Logger("recallflow.test")
    log.addHandler(handler)
    error = ValueError(f"{{'x-api-key': '{SECRET}'}}")
    log.error('refused {"token": "%s"}, %s, Authorization: Bearer %s', SECRET, KEY, SECRET, exc_info=error)
    assert SECRET not in written.getvalue()
    assert KEY not in written.getvalue()
    assert "refused" in written.getvalue()
