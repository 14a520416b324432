"""Encryption and keyed hashes of a state directory: its secret, the keys of owners, and the encryption of values."""

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
# The first byte of a value in an encrypted directory.
PLAIN = b"\x00"  # the value follows unencrypted
SEALED = b"\x01"  # AES-256-GCM: nonce, ciphertext and tag follow
_CIPHERTEXT = 1 + NONCE_BYTES  # start of the ciphertext in a sealed value


class Cipher:
    """A key that encrypts (seals) and decrypts (opens) values. `context` is the associated data of AES-GCM, usually the
    record's key: a value opens only with the context of its sealing, so it cannot be moved to another record."""

    __slots__ = ("_aes", "_refusals")

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # reading an unencrypted directory does without the library
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aes, self._refusals = AESGCM(key), (InvalidTag, ValueError)

    def seal(self, context: bytes, value: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return SEALED + nonce + self._aes.encrypt(nonce, value, context)

    def open(self, context: bytes, sealed: bytes) -> bytes:
        """Decrypt a sealed value. Raise DecryptionFailed."""
        if sealed[:1] != SEALED:
            raise DecryptionFailed("a stored value is not encrypted, in an encrypted state directory")
        try:
            return self._aes.decrypt(sealed[1:_CIPHERTEXT], memoryview(sealed)[_CIPHERTEXT:], context)
        except self._refusals:
            raise DecryptionFailed("a stored value was changed or moved, or its key is lost") from None


@dataclass(frozen=True)
class AtRest:
    """The encryption of a state directory. Without a master key, memories are not encrypted."""

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
        """Return the plain secret. Raise MasterKeyError for a wrong, missing or (if not encrypted) superfluous key."""
        if self.master_key is None:
            if master_key is not None:
                raise MasterKeyError(
                    f"{path} was created without a master key, and is not encrypted: open it without one, or replay "
                    "the log into a new directory with the key"
                )
            return self.value
        if master_key is None:
            raise MasterKeyError(
                f"{path} is encrypted: set its master key ({self.master_key}) by encryption.master_key_file, "
                "encryption.master_key or encryption.kms_key"
            )
        try:
            return master_key.unwrap(self.value)
        except MasterKeyError as error:
            raise MasterKeyError(f"{path} is encrypted with the master key {self.master_key}: {error}") from None


SECRET_BYTES = 32
MAX_CACHED_NAMES = 4_096  # an event looks up the same few names repeatedly


class Keyring:
    """Keyed hashes of names (BLAKE2b, RFC 7693) and the encryption key of a state directory, both from its secret."""

    def __init__(self, secret: bytes, at_rest: AtRest = UNENCRYPTED, stored: StoredSecret | None = None) -> None:
        """`stored` is the stored form of the secret (default: the secret)."""
        self._secret = secret
        self.stored = stored or StoredSecret(secret)
        self.encrypts, self.encrypts_vectors = at_rest.master_key is not None, at_rest.encrypt_vectors
        # Returns the 16-byte key of a memory id, session or event id of one owner.
        self.name: Callable[[bytes, str], bytes] = lru_cache(maxsize=MAX_CACHED_NAMES)(self._name)

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
        """Return the 16-byte name of a graph node other than a memory. That of a memory is `name` of its id."""
        return self._hash(key.encode(), owner, b"node")

    def edge(self, owner: bytes, source: bytes, target: bytes, kind: str) -> bytes:
        """Return the 16-byte name of an edge of a type between two nodes, given by their names."""
        return self._hash(source + target + kind.encode(), owner, b"edge")

    def digest(self, owner: bytes, content: bytes) -> bytes:
        """Return a 16-byte hash of content, which reveals nothing without the secret."""
        return self._hash(content, owner, b"content")

    def cipher_of(self, content: bytes) -> Cipher:
        """Return a cipher whose key is derived from the content."""
        return Cipher(self._hash(content, b"content key", size=KEY_BYTES))

    def _hash(self, content: bytes, person: bytes, salt: bytes = b"", size: int = keys.NAME_BYTES) -> bytes:
        return hashlib.blake2b(content, key=self._secret, person=person, salt=salt, digest_size=size).digest()


_KEY_CACHE_BYTES = 2 * 1024 * 1024  # about ten thousand owners' keys
_USER_END, _TENANT_END = keys.OWNER_BYTES, 2 * keys.OWNER_BYTES  # ends of these hashes in an owner's key record


class OwnerKeys:
    """Keys of tenants and owners, read on demand by `get`, including staged ones. The caller stages new ones."""

    def __init__(self, keyring: Keyring, get: Callable[[bytes], bytes | None]) -> None:
        self._keyring = keyring
        self._get = get
        # By owner. A lookup raises DecryptionFailed if the owner has no key, or its key cannot be decrypted.
        self.ciphers = BoundedCache[bytes, Cipher](self._read, _KEY_CACHE_BYTES)
        self._tenant_ciphers = BoundedCache[bytes, Cipher](self._read_tenant, _KEY_CACHE_BYTES)  # keys never change

    def new_key_records(self, owner: Owner, key: bytes) -> Mapping[bytes, bytes]:
        """Return the records of an owner's new key; none if the owner has a key. `key` is the prefix of the owner's
        records. Raise DecryptionFailed if an existing key of the owner or the tenant cannot be decrypted."""
        record_key = keys.owner_key(key)
        if self._get(record_key) is not None:
            _ = self.ciphers[key]  # raises DecryptionFailed for an unreadable key
            return {}
        user, tenant = self._keyring.user(owner.tenant_id, owner.user_id), self._keyring.tenant(owner.tenant_id)
        records, tenant_cipher = self._tenant_key(tenant)
        wrapped = tenant_cipher.seal(record_key + user + tenant, secrets.token_bytes(KEY_BYTES))
        return {**records, record_key: user + tenant + wrapped}

    def _tenant_key(self, tenant: bytes) -> tuple[dict[bytes, bytes], Cipher]:
        """Return a tenant's cipher, and the record of its key if it is new. The cipher is cached once it is stored."""
        record_key = keys.tenant_key(tenant)
        if tenant in self._tenant_ciphers or self._get(record_key) is not None:
            return {}, self._tenant_ciphers[tenant]
        key = secrets.token_bytes(KEY_BYTES)
        return {record_key: self._keyring.cipher.seal(record_key, key)}, Cipher(key)

    def _read_tenant(self, tenant: bytes) -> Cipher:
        record_key = keys.tenant_key(tenant)
        return Cipher(self._keyring.cipher.open(record_key, self._key_record(record_key, "tenant")))

    def _read(self, owner: bytes) -> Cipher:
        record_key = keys.owner_key(owner)
        stored = self._key_record(record_key, "owner")
        tenant, hashes = stored[_USER_END:_TENANT_END], stored[:_TENANT_END]
        return Cipher(self._tenant_ciphers[tenant].open(record_key + hashes, stored[_TENANT_END:]))

    def _key_record(self, record_key: bytes, holder: str) -> bytes:
        if (stored := self._get(record_key)) is None:
            raise DecryptionFailed(f"the key of this {holder} is lost")
        return stored


# Tables of owners' data: values are encrypted with the owner's key.
_OWNERS_TABLES = (keys.OWNERS[0], keys.WORK[0])
_PLAIN_TABLES = (keys.OWNER_KEYS[0], keys.TENANT_KEYS[0], keys.UNCLEANED[0], keys.FORWARDED[0])
_OWNER = slice(1, 1 + keys.OWNER_BYTES)  # position of the owner in a key
_TABLE = keys.TABLE_BYTES - 1  # position of the table's letter in an owner's key
_VECTOR_TABLES = (keys.VECTORS[0], keys.PAST_VECTORS[0])


class Unsealed:
    """Codec of an unencrypted directory: it leaves values unchanged."""

    def seal(self, key: bytes, value: bytes) -> bytes:  # noqa: ARG002
        return value

    def open(self, key: bytes, value: bytes) -> bytes:  # noqa: ARG002
        return value


class Sealed:
    """Codec of an encrypted directory. Encrypted vectors stay readable if `encrypt_vectors` is turned off."""

    def __init__(self, keyring: Keyring, owner_keys: OwnerKeys) -> None:
        self._directory = keyring.cipher
        self._owners = owner_keys.ciphers
        self._encrypts_vectors = keyring.encrypts_vectors

    def seal(self, key: bytes, value: bytes) -> bytes:
        if key[0] in _OWNERS_TABLES:
            if not self._encrypts_vectors and _has_vectors(key):
                return PLAIN + value
            return self._owners[key[_OWNER]].seal(key, value)
        return value if _is_plain(key) else self._directory.seal(key, value)

    def open(self, key: bytes, value: bytes) -> bytes:
        if key[0] in _OWNERS_TABLES:
            if value[:1] == PLAIN and _has_vectors(key):
                return value[1:]
            return self._owners[key[_OWNER]].open(key, value)
        return value if _is_plain(key) else self._directory.open(key, value)


def _is_plain(key: bytes) -> bool:
    return key[0] in _PLAIN_TABLES or key == keys.FORMAT or key.startswith(keys.APPLIED)


def _has_vectors(key: bytes) -> bool:
    return key[0] == keys.OWNERS[0] and key[_TABLE] in _VECTOR_TABLES
