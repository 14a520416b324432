"""Storage forms of a partition's values: plain, or sealed, each bound to its key.

An owner's values are sealed with the owner's key, all others with the directory's. Keys are wrapped separately. Format
and positions are readable without keys, and contain no names."""

from typing import Protocol

from recallflow.state import keys
from recallflow.state.ciphers import PLAIN
from recallflow.state.keyring import Keyring
from recallflow.state.owner_keys import OwnerKeys

_OF_OWNERS = (keys.OWNERS[0], keys.WORK[0])
_AS_IT_IS = (keys.OWNER_KEYS[0], keys.TENANT_KEYS[0], keys.UNCLEANED[0], keys.FORWARDED[0])
_OWNER = slice(1, 1 + keys.OWNER_BYTES)
_TABLE = keys.TABLE_BYTES - 1
_OF_VECTORS = (keys.VECTORS[0], keys.PAST_VECTORS[0])


class Sealing(Protocol):
    """Values to be stored, and stored ones, under a record's key."""

    def seal(self, key: bytes, value: bytes) -> bytes: ...

    def open(self, key: bytes, value: bytes) -> bytes:
        """Decrypt a sealed value. Raise DecryptionFailed."""
        ...


class Unsealed:
    """Values as they are."""

    def seal(self, key: bytes, value: bytes) -> bytes:  # noqa: ARG002
        return value

    def open(self, key: bytes, value: bytes) -> bytes:  # noqa: ARG002
        return value


class Sealed:
    """Encrypted values. If vectors are not encrypted, existing encrypted vectors can still be read."""

    def __init__(self, keyring: Keyring, owner_keys: OwnerKeys) -> None:
        self._directory = keyring.cipher
        self._owners = owner_keys.ciphers
        self._encrypts_vectors = keyring.encrypts_vectors

    def seal(self, key: bytes, value: bytes) -> bytes:
        if key[0] in _OF_OWNERS:
            if not self._encrypts_vectors and _is_of_vectors(key):
                return PLAIN + value
            return self._owners[key[_OWNER]].seal(key, value)
        return value if _is_as_it_is(key) else self._directory.seal(key, value)

    def open(self, key: bytes, value: bytes) -> bytes:
        if key[0] in _OF_OWNERS:
            if value[:1] == PLAIN and _is_of_vectors(key):
                return value[1:]
            return self._owners[key[_OWNER]].open(key, value)
        return value if _is_as_it_is(key) else self._directory.open(key, value)


def _is_as_it_is(key: bytes) -> bool:
    return key[0] in _AS_IT_IS or key == keys.FORMAT or key.startswith(keys.APPLIED)


def _is_of_vectors(key: bytes) -> bool:
    return key[0] == keys.OWNERS[0] and key[_TABLE] in _OF_VECTORS
