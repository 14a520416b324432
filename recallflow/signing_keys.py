"""Keys of JWT signatures in JWKS documents (RFC 7517)."""

import hashlib
import json
from typing import Any, NamedTuple, Self

from pydantic import TypeAdapter, ValidationError

from recallflow.credentials import fingerprint
from recallflow.errors import UsageError
from recallflow.fields import Name

SECRET_BYTES_MIN = 32  # of HS256, as RFC 7518 has it: shorter ones can be guessed from any token
RSA_BITS_MIN, RSA_BITS_MAX = 2_048, 16_384  # OpenSSL verifies nothing with longer ones
KEYS_MAX = 100  # of one document
# Key type → its only accepted algorithm, and the members of a public key or secret.
_TYPES = {
    "RSA": ("RS256", ("e", "kty", "n")),
    "EC": ("ES256", ("crv", "kty", "x", "y")),
    "oct": ("HS256", ("k", "kty")),
}
_name: TypeAdapter[str] = TypeAdapter(Name)


class SigningKey(NamedTuple):
    """A key of one algorithm. `name` is its `kid` or its fingerprint; `jwk` the public key, None for a secret."""

    name: str
    algorithm: str
    fingerprint: str
    jwk: dict[str, Any] | None
    secret: bytes | None

    @classmethod
    def of_secret(cls, secret: bytes, kid: str | None = None) -> Self:
        """Return an HS256 key. Raise UsageError for a short secret."""
        if len(secret) < SECRET_BYTES_MIN:
            raise UsageError(
                f"a secret of HS256 has {SECRET_BYTES_MIN} bytes or more, not {len(secret)}: make a new one"
            )
        found = fingerprint(secret)
        return cls(kid or found, "HS256", found, None, secret)

    def __repr__(self) -> str:
        return f"SigningKey({self.name}, {self.algorithm})"


class Jwks(NamedTuple):
    """Content of a JWKS document. `unread` has the `kid` of each invalid key, which counts as present."""

    keys: list[SigningKey]
    problems: list[str]
    unread: frozenset[str] = frozenset()


def read_jwks(document: bytes) -> Jwks:
    """Return the keys of a document. Raise UsageError for an invalid document; no message contains a part of a key."""
    try:
        given = json.loads(document)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError('no JWKS document: it is a JSON object with a list "keys"') from None
    if not isinstance(given, list) or len(given) > KEYS_MAX:
        raise UsageError(f'no JWKS document: its "keys" are a list of at most {KEYS_MAX}')
    keys: dict[str, SigningKey] = {}
    problems = []
    unread = set()
    for number, one in enumerate(given):
        try:
            key = read_key(one)
        except UsageError as error:
            problems.append(f"keys.{number}: {error}")
            if isinstance(one, dict) and isinstance(kid := one.get("kid"), str):
                unread.add(kid)
            continue
        if keys.setdefault(key.name, key) is not key:
            problems.append(f"keys.{number}: another key before it has the same kid")
    return Jwks(list(keys.values()), problems, frozenset(unread))


def read_key(given: object) -> SigningKey:
    """Return one key of a document (a JWK). Raise UsageError for a key that is unusable for signatures."""
    import jwt  # without tokens, an engine does without these libraries
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if not isinstance(given, dict) or str(given.get("kty")) not in _TYPES:
        raise UsageError(f"its kty is none of {', '.join(_TYPES)}")
    algorithm, members = _TYPES[given["kty"]]
    if given.get("alg", algorithm) != algorithm or given.get("use", "sig") != "sig":
        raise UsageError(f"it is not for signatures with {algorithm}")
    if given.get("crv", "P-256") != "P-256":
        raise UsageError("a key of ES256 is of the curve P-256")
    try:
        kid = None if given.get("kid") is None else _name.validate_python(given["kid"], strict=True)
        public = {name: given[name] for name in members}
        key = jwt.PyJWK(public, algorithm).key
    except (ValidationError, jwt.PyJWTError, KeyError, ValueError, TypeError):
        raise UsageError("it cannot be read") from None
    if algorithm == "HS256":
        return SigningKey.of_secret(key, kid)
    if isinstance(key, RSAPublicKey) and not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
        raise UsageError(f"a key of RS256 has {RSA_BITS_MIN} to {RSA_BITS_MAX} bits")
    thumbprint = hashlib.sha256(json.dumps(public, separators=(",", ":"), sort_keys=True).encode()).hexdigest()
    return SigningKey(kid or thumbprint, algorithm, thumbprint, public, None)
