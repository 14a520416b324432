"""What senders prove themselves with: headers, the text of an API key, and what is kept of secrets."""

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple, Self

TOKEN_HEADER, KEY_HEADER, USER_HEADER = "authorization", "x-api-key", "x-end-user-id"
# In any case of letters.
CREDENTIAL_HEADERS = frozenset((TOKEN_HEADER, KEY_HEADER, "proxy-authorization", "cookie", "set-cookie"))

Headers = tuple[tuple[str, bytes | None], ...]

NAME_BYTES, SECRET_BYTES, SALT_BYTES = 8, 32, 16
_API_KEY = re.compile(r"rfk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
# An API key or a JWT, wherever it stands; each byte of a value is looked at but a few times.
API_KEY_SHAPE = rb"rfk_[0-9a-f]{16}_"  # and the secret
TOKEN_SHAPE = rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\."  # and the signature
_SHAPE = re.compile(API_KEY_SHAPE + rb"[A-Za-z0-9_-]{43}|" + TOKEN_SHAPE)


class ApiKeyText(NamedTuple):
    """An API key as its holder has it: `rfk_NAME_SECRET`."""

    name: str  # 16 hexadecimal digits, that of the control event
    secret: str  # 32 random bytes, in base64url

    @classmethod
    def new(cls) -> Self:
        """One that nobody has seen."""
        return cls(secrets.token_hex(NAME_BYTES), secrets.token_urlsafe(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Reads `rfk_NAME_SECRET`; None where it is anything else."""
        found = _API_KEY.fullmatch(text)
        return None if found is None else cls(*found.groups())

    def text(self) -> str:
        """What the holder sends. To be shown once, and logged never."""
        return f"rfk_{self.name}_{self.secret}"

    def __repr__(self) -> str:
        return f"ApiKeyText({self.name})"


def new_salt() -> str:
    """A salt for `hash_of`."""
    return secrets.token_hex(SALT_BYTES)


def new_key() -> tuple[ApiKeyText, dict[str, str]]:
    """Return an API key that nobody has seen, and the fields of the control event that makes it known."""
    key, salt = ApiKeyText.new(), new_salt()
    return key, {"name": key.name, "salt": salt, "hash": hash_of(salt, key.secret)}


def hash_of(salt: str, secret: str) -> str:
    """What is stored of an API key's secret. That has 256 random bits, which no amount of guessing finds: a slow hash
    would only slow down the verdicts."""
    return hmac.digest(salt.encode(), secret.encode(), "sha256").hex()


def fingerprint(secret: bytes) -> str:
    """What tells which secret signs tokens without telling the secret, which has to have 32 bytes for that."""
    return hashlib.sha256(b"recallflow token secret:" + secret).hexdigest()


def without_credentials(headers: Headers) -> Headers:
    """Headers as others may see them."""
    if not headers or not any(_is_credential(*header) for header in headers):
        return headers
    return tuple(header for header in headers if not _is_credential(*header))


def _is_credential(name: str, value: bytes | None) -> bool:
    """By its name, or, where somebody misspelt that, or took the credential for it, by what it looks like."""
    if name.strip().lower() in CREDENTIAL_HEADERS or looks_like_one(name.encode()):
        return True
    return value is not None and looks_like_one(value)


def looks_like_one(data: bytes) -> bool:
    """Whether an API key or a JWT stands anywhere in bytes."""
    return _SHAPE.search(data) is not None
