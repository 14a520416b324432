"""Headers as senders should not send them: credentials that are not theirs, are none, or are said in another way."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from random import Random
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER, ApiKeyText
from tests.mutations.cast import BEGIN_MS, DAY_MS, SECRET_KID, SENDERS, USERS, Cast, Credential, claims

Header = tuple[str, bytes | None]
KIDS = (
    "../../etc/passwd", "/dev/null", "", "rsa-1\u0000", "RSA-1", "http://127.0.0.1/jwks", "*", "' OR ''='", "x" * 600,
)  # fmt: skip


def headers(random: Random, cast: Cast, credential: Credential, user_id: str) -> list[Header]:
    """The headers of a sender that has a credential: as they should be, or with something wrong."""
    given: list[Header] = [(credential.header, credential.value.encode())]
    if random.random() < 0.3:
        given.append((USER_HEADER, user_id.encode()))
    if random.random() < 0.5:
        given = random.choice(_WAYS)(random, cast, credential, given)
    if random.random() < 0.2:
        given.insert(random.randrange(len(given) + 1), ("traceparent", b"00-4bf92f-00f067-01"))
    return given


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _part(given: dict[str, Any]) -> str:
    return _b64(json.dumps(given).encode())


def _token(text: str) -> list[Header]:
    return [(TOKEN_HEADER, f"Bearer {text}".encode())]


def _claims(random: Random, credential: Credential) -> dict[str, Any]:
    tenant = credential.tenant or random.choice(SENDERS)
    return claims(Credential(credential.name, tenant, TOKEN_HEADER, "", ""))


# ---------------------------------------------------------------------- tokens


def _without_algorithm(random: Random, _cast: Cast, credential: Credential, _given: list[Header]) -> list[Header]:
    algorithm = random.choice(("none", "None", "NONE", "nOnE", "", "HS256"))
    head = _part({"alg": algorithm, "typ": "JWT", "kid": random.choice((SECRET_KID, "rsa-1"))})
    return _token(f"{head}.{_part(_claims(random, credential))}.")


def _public_key_as_secret(random: Random, cast: Cast, credential: Credential, _given: list[Header]) -> list[Header]:
    """The public key is known to all; who takes it for a secret of HS256 believes all."""
    public = cast.signers.rsa.public_key()
    secret = random.choice(
        (
            public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            json.dumps(cast.signers.jwks()["keys"][0]).encode(),
            b"",
        )
    )
    said = (
        f"{_part({'alg': 'HS256', 'kid': random.choice(('rsa-1', SECRET_KID))})}.{_part(_claims(random, credential))}"
    )
    return _token(f"{said}.{_b64(hmac.new(secret, said.encode(), hashlib.sha256).digest())}")


def _strange_key_id(random: Random, cast: Cast, credential: Credential, _given: list[Header]) -> list[Header]:
    """A key's id that is a path, an address or another's; or a key that the token itself brings."""
    more: dict[str, Any] = random.choice(
        (
            {"kid": random.choice(KIDS)}, {"jku": "http://127.0.0.1:1/jwks"}, {"jwk": cast.signers.jwks()["keys"][0]},
            {"x5u": "file:///etc/passwd", "crit": ["x5u"]}, {"b64": False, "crit": ["b64"]},
        )
    )  # fmt: skip
    return _token(cast.signed("strange", _claims(random, credential), **more))


def _wrong_claims(random: Random, cast: Cast, credential: Credential, _given: list[Header]) -> list[Header]:
    """Signed as it should be, and not for us, not now, or of nobody."""
    said = _claims(random, credential)
    seconds = BEGIN_MS // 1000
    said |= random.choice(
        (
            {"aud": "another"}, {"aud": None}, {"aud": []}, {"iss": "https://login.example.evil"},
            {"exp": seconds - 1}, {"exp": "never"}, {"exp": -1}, {"exp": True}, {"exp": 1e400},
            {"nbf": seconds + DAY_MS}, {"nbf": "soon"}, {"tenant_id": None}, {"tenant_id": ["acme"]},
            {"tenant_id": {"$ne": None}}, {"sub": 5}, {"environments": "prod"}, {"environments": []},
            {"projects": {"a": 1}}, {"end_users": [5]}, {"end_users": None},
        )
    )  # fmt: skip
    if random.random() < 0.2:
        said.pop(random.choice(("exp", "aud", "iss", "tenant_id", "sub")))
    return _token(cast.signed("secret", said))


def _changed_token(random: Random, cast: Cast, credential: Credential, given: list[Header]) -> list[Header]:
    """A token that was good, with parts of it other than they were signed."""
    tokens = [one for one in cast.credentials[credential.tenant or "acme"] if one.header == TOKEN_HEADER]
    head, payload, signature = random.choice(tokens).value.removeprefix("Bearer ").split(".")
    other = _claims(random, credential) | {"tenant_id": random.choice(SENDERS), "end_users": [random.choice(USERS)]}
    at = random.randrange(len(signature) - 2)  # not the last digit, of which some bits count for nothing
    flipped = signature[:at] + ("A" if signature[at] != "A" else "B") + signature[at + 1 :]
    text = random.choice(
        (
            f"{head}.{_part(other)}.{signature}",
            f"{head}.{payload}.{flipped}",
            f"{head}.{payload}.",
            f"{head}.{payload}",
            f"{head}.{payload}.{signature}.{signature}",
            f"{_part({'alg': 'HS256', 'kid': SECRET_KID})}.{payload}.{signature[::-1]}",
            f"{head}..{signature}",
            f"{_b64(b'[]')}.{payload}.{signature}",
            f"{_b64(b'{')}.{payload}.{signature}",
            f"{_b64(b'[' * 5_000)}.{payload}.{signature}",
            f"{head}.{_b64(b'[' * 5_000)}.{signature}",
            f"{head}.{payload}.{signature * 400}",
            "." * 20_000,
        )
    )
    return [*_token(text), *given[1:]]


# ---------------------------------------------------------------------- keys


def _wrong_key(random: Random, cast: Cast, credential: Credential, given: list[Header]) -> list[Header]:
    mine = [one for one in cast.credentials[credential.tenant or "acme"] if one.header == KEY_HEADER]
    name, secret = ApiKeyText.parse(random.choice(mine).value) or ApiKeyText.new()
    text = random.choice(
        (
            ApiKeyText(name, ApiKeyText.new().secret).text(), ApiKeyText(ApiKeyText.new().name, secret).text(),
            f"rfk_{name}_{secret[:-1]}", f"rfk_{name}_", f"rfk_{name.upper()}_{secret}",
            f"rfk_{name}_{secret.swapcase()}", cast.planted.text(), name, "rfk_" * 5_000, "*",
        )
    )  # fmt: skip
    return [(KEY_HEADER, text.encode()), *given[1:]]


def _anothers(random: Random, cast: Cast, _credential: Credential, given: list[Header]) -> list[Header]:
    other = random.choice(cast.credentials[random.choice(SENDERS)])
    return [(other.header, other.value.encode()), *given[1:]]


# ---------------------------------------------------------------------- headers


def _said_otherwise(random: Random, _cast: Cast, _credential: Credential, given: list[Header]) -> list[Header]:
    """The name in other letters, or the value in other words."""
    (name, value), *rest = given
    text = (value or b"").decode()
    name = random.choice((name.upper(), name.title(), name, f"{name} ", name.replace("-", "_"), f"{name}\u0000"))
    text = random.choice(
        (
            text, text, text.lower(), f" {text}", f"{text} ", f"{text}\n", text.replace("Bearer", "bearer"),
            f"Basic {text}",
        )
    )  # fmt: skip
    return [(name, text.encode()), *rest]


def _several(random: Random, cast: Cast, _credential: Credential, given: list[Header]) -> list[Header]:
    """One header several times, the same or another's; or a key and a token."""
    other = random.choice(cast.credentials[random.choice(SENDERS)])
    more = random.choice((given[0], (other.header, other.value.encode()), (given[0][0].upper(), given[0][1])))
    both = [*given, more]
    random.shuffle(both)
    return both


def _no_text(random: Random, _cast: Cast, _credential: Credential, given: list[Header]) -> list[Header]:
    value = random.choice((None, b"", b"\xff\xfe", b"\x00", b" ", b"x" * 20_000, b"Bearer", b"Bearer  ", "é".encode()))
    return [(given[0][0], value), *given[1:]]


def _strange_user(random: Random, _cast: Cast, _credential: Credential, given: list[Header]) -> list[Header]:
    user = random.choice((*USERS, "*", "", "null", "c\u0000", "C", "c "))
    return [given[0], (random.choice((USER_HEADER, USER_HEADER.title())), user.encode())]


def _nothing(_random: Random, _cast: Cast, _credential: Credential, _given: list[Header]) -> list[Header]:
    return []


_WAYS: tuple[Callable[[Random, Cast, Credential, list[Header]], list[Header]], ...] = (
    _without_algorithm, _public_key_as_secret, _strange_key_id, _wrong_claims, _changed_token, _wrong_key, _anothers,
    _said_otherwise, _several, _no_text, _strange_user, _nothing,
)  # fmt: skip
