"""Credentials: headers, API keys, hashes of secrets, master keys, and signatures of control events.

The signature of a control event is an HMAC-SHA256 over key and value, in a header. Its secret is a setting of the
senders and readers of decisions, so write access to the control topic alone is not enough to decide.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple, Protocol, Self

from recallflow.errors import UsageError

TOKEN_HEADER, KEY_HEADER, USER_HEADER = "authorization", "x-api-key", "x-end-user-id"
# Lower case; names are compared case-insensitively.
CREDENTIAL_HEADERS = frozenset((TOKEN_HEADER, KEY_HEADER, "proxy-authorization", "cookie", "set-cookie"))

Headers = tuple[tuple[str, bytes | None], ...]

NAME_BYTES, SECRET_BYTES, SALT_BYTES = 8, 32, 16
_API_KEY = re.compile(r"rfk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
# An API key or a JWT anywhere in bytes; the pattern runs in linear time.
API_KEY_SHAPE = rb"rfk_[0-9a-f]{16}_"  # and the secret
TOKEN_SHAPE = rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\."  # and the signature
_SHAPE = re.compile(API_KEY_SHAPE + rb"[A-Za-z0-9_-]{43}|" + TOKEN_SHAPE)


class ApiKeyText(NamedTuple):
    """API key in the form `rfk_NAME_SECRET`."""

    name: str  # 16 hexadecimal digits, that of the control event
    secret: str  # 32 random bytes, in base64url

    @classmethod
    def new(cls) -> Self:
        """Return a new random key."""
        return cls(secrets.token_hex(NAME_BYTES), secrets.token_urlsafe(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse `rfk_NAME_SECRET`; return None for other text."""
        found = _API_KEY.fullmatch(text)
        return None if found is None else cls(*found.groups())

    def text(self) -> str:
        """Return the complete key. Show it once, and never log it."""
        return f"rfk_{self.name}_{self.secret}"

    def __repr__(self) -> str:
        return f"ApiKeyText({self.name})"


def new_salt() -> str:
    """Return a new salt for `hash_of`."""
    return secrets.token_hex(SALT_BYTES)


def new_key() -> tuple[ApiKeyText, dict[str, str]]:
    """Return a new API key, and the fields of the control event that registers it."""
    key, salt = ApiKeyText.new(), new_salt()
    return key, {"name": key.name, "salt": salt, "hash": hash_of(salt, key.secret)}


def hash_of(salt: str, secret: str) -> str:
    """Return the stored hash of an API key's secret. A slow hash is unnecessary, because the secret has 256 random
    bits."""
    return hmac.digest(salt.encode(), secret.encode(), "sha256").hex()


def fingerprint(secret: bytes) -> str:
    """Return an id of a token secret. It does not reveal the secret, which has at least 32 bytes."""
    return hashlib.sha256(b"recallflow token secret:" + secret).hexdigest()


def without_credentials(headers: Headers) -> Headers:
    """Return headers without credentials."""
    if not headers or not any(_is_credential(*header) for header in headers):
        return headers
    return tuple(header for header in headers if not _is_credential(*header))


def _is_credential(name: str, value: bytes | None) -> bool:
    """Return whether a header is a credential, by its name, or by its shape where the name is misspelt."""
    if name.strip().lower() in CREDENTIAL_HEADERS or looks_like_one(name.encode()):
        return True
    return value is not None and looks_like_one(value)


def looks_like_one(data: bytes) -> bool:
    """Return whether bytes contain an API key or a JWT."""
    return _SHAPE.search(data) is not None


class MasterKey(Protocol):
    """Master key of a state directory, which encrypts the directory's secret. It is used when a directory is created
    or opened, and not while the engine runs."""

    @property
    def name(self) -> str:
        """Return a readable id of the key, which is not secret."""
        ...

    def wrap(self, secret: bytes) -> bytes:
        """Return the encrypted secret. Raise MasterKeyError."""
        ...

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return the decrypted secret. Raise MasterKeyError, also for a secret of another key."""
        ...


SIGNATURE = "recallflow-signature"
SECRET_BYTES_MIN = 32  # minimum length: a signed event allows guesses of a short secret
_LENGTH_BYTES = 8


def check_secret(name: str, secret: str | None) -> None:
    """Raise UsageError for a short secret, without showing it."""
    if secret is not None and (not isinstance(secret, str) or len(secret.encode()) < SECRET_BYTES_MIN):
        raise UsageError(f"{name} must be text of {SECRET_BYTES_MIN} bytes or more: make a new one")


def signed(secret: str | None, key: bytes, value: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return the headers that sign a record; none without a secret."""
    return () if secret is None else ((SIGNATURE, _signature(secret, key, value)),)


def bears_signature(headers: Iterable[tuple[str, bytes | None]] | None) -> bool:
    """Return whether a record has a signature header."""
    return any(name == SIGNATURE for name, _ in headers or ())


def is_signed(
    secret: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]] | None
) -> bool:
    """Return whether a record has exactly one signature, and it matches the secret."""
    given = [found for name, found in headers or () if name == SIGNATURE]
    if len(given) != 1 or key is None or value is None:
        return False
    return hmac.compare_digest(given[0] or b"", _signature(secret, key, value))


def _signature(secret: str, key: bytes, value: bytes) -> bytes:
    # The key's length comes first, so that no byte can move between key and value.
    said = len(key).to_bytes(_LENGTH_BYTES) + key + value
    return hmac.new(secret.encode(), said, hashlib.sha256).hexdigest().encode()
