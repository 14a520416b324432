"""Signatures of control events: who can write to the control topic cannot yet decide.

An HMAC-SHA256 over a record's key and value, in a header. The secret is a setting of whoever decides and of who reads
decisions.
"""

import hashlib
import hmac
from collections.abc import Iterable

from recallflow.errors import UsageError

SIGNATURE = "recallflow-signature"
SECRET_BYTES_MIN = 32  # the least of a secret: it can be guessed at by whoever reads one signed event
_LENGTH_BYTES = 8


def check_secret(name: str, secret: str | None) -> None:
    """Raises UsageError for a secret that could be guessed, without saying it."""
    if secret is not None and (not isinstance(secret, str) or len(secret.encode()) < SECRET_BYTES_MIN):
        raise UsageError(f"{name} must be text of {SECRET_BYTES_MIN} bytes or more: make a new one")


def signed(secret: str | None, key: bytes, value: bytes) -> tuple[tuple[str, bytes], ...]:
    """The headers that sign a record; none without a secret."""
    return () if secret is None else ((SIGNATURE, _signature(secret, key, value)),)


def bears_signature(headers: Iterable[tuple[str, bytes | None]] | None) -> bool:
    """Whether a record says that it is signed."""
    return any(name == SIGNATURE for name, _ in headers or ())


def is_signed(
    secret: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]] | None
) -> bool:
    """Whether a record bears one signature, and it is the one that the secret makes of it."""
    given = [found for name, found in headers or () if name == SIGNATURE]
    if len(given) != 1 or key is None or value is None:
        return False
    return hmac.compare_digest(given[0] or b"", _signature(secret, key, value))


def _signature(secret: str, key: bytes, value: bytes) -> bytes:
    # The key's length comes first: no byte can be moved between key and value.
    said = len(key).to_bytes(_LENGTH_BYTES) + key + value
    return hmac.new(secret.encode(), said, hashlib.sha256).hexdigest().encode()
