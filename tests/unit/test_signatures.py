"""Signatures of control events, and which of them count as signed."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recallflow.credentials import SIGNATURE, check_secret, is_signed, signed
from recallflow.errors import UsageError

SECRET, OTHER = "s" * 32, "o" * 32


@given(st.binary(), st.binary())
def test_only_signed_content_is_verified(key: bytes, value: bytes) -> None:
    headers = signed(SECRET, key, value)
    assert is_signed(SECRET, key, value, headers)
    assert not is_signed(OTHER, key, value, headers)
    assert not is_signed(SECRET, key, value, signed(OTHER, key, value))


@given(st.binary(max_size=8), st.binary(max_size=8), st.binary(max_size=8), st.binary(max_size=8))
@example(b"a", b"bc", b"ab", b"c")  # the same bytes, cut elsewhere
def test_a_signature_is_of_one_key_and_one_value(key: bytes, value: bytes, key2: bytes, value2: bytes) -> None:
    assert is_signed(SECRET, key2, value2, signed(SECRET, key, value)) is ((key, value) == (key2, value2))


def test_missing_or_repeated_signature_is_refused() -> None:
    [(name, signature)] = signed(SECRET, b"k", b"v")
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
        assert not is_signed(SECRET, b"k", b"v", headers)
    assert is_signed(SECRET, b"k", b"v", ((SIGNATURE, signature), ("another", b"x")))
    assert not is_signed(SECRET, None, b"v", ((name, signature),))
    assert not is_signed(SECRET, b"k", None, ((name, signature),))


def test_without_a_secret_nothing_is_signed() -> None:
    assert signed(None, b"k", b"v") == ()


@pytest.mark.parametrize("secret", ["", "s" * 31, b"s" * 32, 5])
def test_a_secret_that_could_be_guessed_is_refused_unseen(secret: object) -> None:
    with pytest.raises(UsageError, match=r"^control_secret must be text of 32 bytes or more: make a new one$"):
        check_secret("control_secret", secret)  # type: ignore[arg-type]
    check_secret("control_secret", None)
