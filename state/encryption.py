"""Encryption and keyed hashes of a state directory: its secret, the keys of owners, and the stored form of values."""

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import orjson

from recallflow.caching import BoundedCache
from recallflow.credentials import MasterKey
from recallflow.errors import DecryptionFailed, MasterKeyError
from recallflow.owner import Owner
from recallflow.state import keys

KEY_BYTES = 32
NONCE_BYTES = 12
_BEGIN = 1 + NONCE_BYTES  # the start of the ciphertext, after the mark and the nonce
# The first byte of a value.
PLAIN = b"\x00"  # stored unencrypted, among encrypted ones
SEALED = b"\x01"  # encrypted with AES-256-GCM: nonce, ciphertext, tag


class Cipher:
    """A key that seals and opens values. A sealed value opens only at its `place`, which is not stored with it."""

    __slots__ = ("_aes", "_refusals")

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # an engine without encryption does without the library
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aes, self._refusals = AESGCM(key), (InvalidTag, ValueError)

    def seal(self, place: bytes, value: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return SEALED + nonce + self._aes.encrypt(nonce, value, place)

    def open(self, place: bytes, sealed: bytes) -> bytes:
        """Decrypt a sealed value. Raise DecryptionFailed."""
        if sealed[:1] != SEALED:
            raise DecryptionFailed("a stored value is not sealed as it should be")
        try:
            return self._aes.decrypt(sealed[1:_BEGIN], memoryview(sealed)[_BEGIN:], place)
        except self._refusals:
            raise DecryptionFailed("a stored value was changed or moved, or its key is lost") from None


@dataclass(frozen=True)
class AtRest:
    """The encryption of a state directory. Without a master key, only waiting records in snapshots are encrypted."""

    master_key: MasterKey | None = None
    encrypt_vectors: bool = True


UNENCRYPTED = AtRest()


@dataclass(frozen=True)
class StoredSecret:
    """A directory's secret in its stored form: plain, or wrapped by the named master key."""

    value: bytes
    master_key: str | None = None

    @classmethod
    def wrapped(cls, secret: bytes, master_key: MasterKey | None) -> Self:
        """Return the secret in its stored form. Raise MasterKeyError if the master key cannot wrap it."""
        return cls(secret) if master_key is None else cls(master_key.wrap(secret), master_key.name)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Parse the fields of a directory's description. Raise KeyError, TypeError or ValueError."""
        if "secret" in fields:
            return cls(bytes.fromhex(fields["secret"]))
        return cls(bytes.fromhex(fields["wrapped_secret"]), str(fields["master_key"]))

    def fields(self) -> dict[str, str]:
        if self.master_key is None:
            return {"secret": self.value.hex()}
        return {"master_key": self.master_key, "wrapped_secret": self.value.hex()}

    def opened(self, path: Path, master_key: MasterKey | None) -> bytes:
        """Return the plain secret. Raise MasterKeyError for a wrong master key, or one of an unencrypted directory."""
        if self.master_key is None:
            if master_key is not None:
                raise MasterKeyError(
                    f"{path} was made without a master key, and is not encrypted: open it without one, or replay the "
                    "log into a new directory with it"
                )
            return self.value
        if master_key is None:
            raise MasterKeyError(
                f"{path} is encrypted: give its master key ({self.master_key}), as encryption.master_key_file, "
                "encryption.master_key or encryption.kms_key"
            )
        try:
            return master_key.unwrap(self.value)
        except MasterKeyError as error:
            raise MasterKeyError(f"{path} is encrypted with the master key {self.master_key}: {error}") from None


SECRET_BYTES = 32
NAMES_KEPT = 4_096  # an event asks for the same few again and again


class Keyring:
    """Keyed hashes of names (BLAKE2b, RFC 7693) and the directory's key, under one state directory's secret."""

    def __init__(self, secret: bytes, at_rest: AtRest = UNENCRYPTED, stored: StoredSecret | None = None) -> None:
        """`stored` is the stored form of the secret (default: the secret)."""
        self._secret = secret
        self.stored = stored or StoredSecret(secret)
        self.encrypts, self.encrypts_vectors = at_rest.master_key is not None, at_rest.encrypt_vectors
        # Returns the 16-byte key of a memory id, session or event id of one owner.
        self.name: Callable[[bytes, str], bytes] = lru_cache(maxsize=NAMES_KEPT)(self._name)

    @classmethod
    def opened(cls, stored: StoredSecret, path: Path, at_rest: AtRest) -> Self:
        """Return the keyring of a stored secret in `path`. Raise MasterKeyError."""
        return cls(stored.opened(path, at_rest.master_key), at_rest, stored)

    @cached_property
    def cipher(self) -> Cipher:
        return Cipher(self._hash(b"", b"directory key", size=KEY_BYTES))

    def owner(self, owner: Owner) -> bytes:
        """Return the owner's 16-byte key prefix. JSON distinguishes `a/b`+`c` from `a`+`b/c`."""
        return self._hash(orjson.dumps(tuple(owner)), b"")

    def user(self, tenant_id: str, user_id: str) -> bytes:
        return self._hash(orjson.dumps([tenant_id, user_id]), b"user")

    def tenant(self, tenant_id: str) -> bytes:
        return self._hash(orjson.dumps([tenant_id]), b"tenant")

    def _name(self, owner: bytes, name: str) -> bytes:
        return self._hash(name.encode(), owner)

    def node(self, owner: bytes, key: str) -> bytes:
        """Return the 16-byte key of a graph node other than a memory. A memory's key is `name` of its id."""
        return self._hash(key.encode(), owner, b"node")

    def edge(self, owner: bytes, source: bytes, target: bytes, kind: str) -> bytes:
        """Return the 16-byte key of an edge of a type between two nodes, given by their keys."""
        return self._hash(source + target + kind.encode(), owner, b"edge")

    def digest(self, owner: bytes, content: bytes) -> bytes:
        """Return a 16-byte fingerprint of content, which reveals nothing without the secret."""
        return self._hash(content, owner, b"content")

    def cipher_of(self, content: bytes) -> Cipher:
        return Cipher(self._hash(content, b"content key", size=KEY_BYTES))

    def _hash(self, content: bytes, person: bytes, salt: bytes = b"", size: int = keys.NAME_BYTES) -> bytes:
        return hashlib.blake2b(content, key=self._secret, person=person, salt=salt, digest_size=size).digest()


CACHE_BYTES = 2 * 1024 * 1024  # of owners' keys, about ten thousand
_USER, _TENANT = keys.OWNER_BYTES, 2 * keys.OWNER_BYTES  # ends of these parts of an owner's key record


class OwnerKeys:
    """Keys of tenants and owners, read on demand by `get`, as stored or staged. The caller stores new ones."""

    def __init__(self, keyring: Keyring, get: Callable[[bytes], bytes | None]) -> None:
        self._keyring = keyring
        self._get = get
        # By owner. Raises DecryptionFailed for one who has no key, or whose key cannot be opened.
        self.ciphers = BoundedCache[bytes, Cipher](self._read, CACHE_BYTES)
        self._tenant_ciphers = BoundedCache[bytes, Cipher](self._read_tenant, CACHE_BYTES)  # tenant keys never change

    def begin(self, owner: Owner, key: bytes) -> Mapping[bytes, bytes]:
        """Return the records of a new owner's key; nothing for an existing one. `key` is the prefix of the owner's
        records. Raise DecryptionFailed if its key or its tenant's cannot be opened."""
        if key in self.ciphers:
            return {}
        place = keys.owner_key(key)
        if self._get(place) is not None:
            _ = self.ciphers[key]
            return {}
        user, tenant = self._keyring.user(owner.tenant_id, owner.user_id), self._keyring.tenant(owner.tenant_id)
        begun, wrapping = self._begin_tenant(tenant)
        begun[place] = user + tenant + wrapping.seal(place + user + tenant, secrets.token_bytes(KEY_BYTES))
        entry = keys.user_owner(user, key)
        begun[entry] = owner.environment.encode()
        return begun

    def forget(self, owner: bytes, user: bytes) -> Mapping[bytes, None]:
        """Return the deletions that destroy the key of a user's owner."""
        self.ciphers.pop(owner, None)
        return {keys.owner_key(owner): None, keys.user_owner(user, owner): None}

    def _begin_tenant(self, tenant: bytes) -> tuple[dict[bytes, bytes], Cipher]:
        """Return the records of a new tenant key, and its cipher, which is cached once stored."""
        place = keys.tenant_key(tenant)
        if tenant in self._tenant_ciphers or self._get(place) is not None:
            return {}, self._tenant_ciphers[tenant]
        key = secrets.token_bytes(KEY_BYTES)
        return {place: self._keyring.cipher.seal(place, key)}, Cipher(key)

    def _read_tenant(self, tenant: bytes) -> Cipher:
        place = keys.tenant_key(tenant)
        return Cipher(self._keyring.cipher.open(place, self._wrapped(place, "tenant")))

    def _read(self, owner: bytes) -> Cipher:
        place = keys.owner_key(owner)
        stored = self._wrapped(place, "owner")
        tenant, users = stored[_USER:_TENANT], stored[:_TENANT]
        return Cipher(self._tenant_ciphers[tenant].open(place + users, stored[_TENANT:]))

    def _wrapped(self, place: bytes, whose: str) -> bytes:
        if (stored := self._get(place)) is None:
            raise DecryptionFailed(f"the key of this {whose} is lost")
        return stored


_OF_OWNERS = (keys.OWNERS[0], keys.WORK[0])
_PLAIN_TABLES = (keys.OWNER_KEYS[0], keys.TENANT_KEYS[0], keys.UNCLEANED[0], keys.FORWARDED[0])
_OWNER = slice(1, 1 + keys.OWNER_BYTES)
_TABLE = keys.TABLE_BYTES - 1
_OF_VECTORS = (keys.VECTORS[0], keys.PAST_VECTORS[0])


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
        return value if _is_plain(key) else self._directory.seal(key, value)

    def open(self, key: bytes, value: bytes) -> bytes:
        if key[0] in _OF_OWNERS:
            if value[:1] == PLAIN and _is_of_vectors(key):
                return value[1:]
            return self._owners[key[_OWNER]].open(key, value)
        return value if _is_plain(key) else self._directory.open(key, value)


def _is_plain(key: bytes) -> bool:
    return key[0] in _PLAIN_TABLES or key == keys.FORMAT or key.startswith(keys.APPLIED)


def _is_of_vectors(key: bytes) -> bool:
    return key[0] == keys.OWNERS[0] and key[_TABLE] in _OF_VECTORS
