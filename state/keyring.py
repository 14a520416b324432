"""The random secret of a state directory, and values derived from it: keyed hashes of names in keys, and the
directory's key. So equal names have different keys in another directory."""

import hashlib
import secrets
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self

import orjson

from recallflow.owner import Owner
from recallflow.state.at_rest import AtRest, StoredSecret
from recallflow.state.ciphers import KEY_BYTES, Cipher
from recallflow.state.keys import NAME_BYTES, OWNER_BYTES

SECRET_BYTES = 32
NAMES_KEPT = 4_096  # an event asks for the same few again and again


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


class Keyring:
    """Keyed hashes of names (BLAKE2b, RFC 7693) and the directory's key, under one state directory's secret."""

    def __init__(
        self,
        secret: bytes,
        *,
        encrypts: bool = False,
        encrypts_vectors: bool = True,
        stored: StoredSecret | None = None,
    ) -> None:
        """`encrypts`: whether values are encrypted at all; then `encrypts_vectors`: vectors too. `stored`: the secret
        as it is stored (default: as it is)."""
        self._secret = secret
        self.stored = stored or StoredSecret(secret)
        self.encrypts, self.encrypts_vectors = encrypts, encrypts_vectors
        self._name = lru_cache(maxsize=NAMES_KEPT)(self._hash_name)

    @classmethod
    def opened(cls, stored: StoredSecret, path: Path, at_rest: AtRest) -> Self:
        """Return the keyring of a stored secret in `path`. Raise MasterKeyError."""
        secret, encrypts = stored.opened(path, at_rest.master_key), at_rest.master_key is not None
        return cls(secret, encrypts=encrypts, encrypts_vectors=at_rest.encrypt_vectors, stored=stored)

    @cached_property
    def cipher(self) -> Cipher:
        """The directory's key."""
        return Cipher(hashlib.blake2b(key=self._secret, person=b"directory key", digest_size=KEY_BYTES).digest())

    def owner(self, owner: Owner) -> bytes:
        """Return the owner's 16-byte key prefix. JSON distinguishes `a/b`+`c` from `a`+`b/c`."""
        return hashlib.blake2b(orjson.dumps(tuple(owner)), key=self._secret, digest_size=OWNER_BYTES).digest()

    def user(self, tenant_id: str, user_id: str) -> bytes:
        """Return the 16-byte key of a user, for all environments."""
        return self._hash_parts(b"user", tenant_id, user_id)

    def tenant(self, tenant_id: str) -> bytes:
        """Return the 16-byte key of a tenant."""
        return self._hash_parts(b"tenant", tenant_id)

    def _hash_parts(self, person: bytes, *parts: str) -> bytes:
        return hashlib.blake2b(orjson.dumps(parts), key=self._secret, person=person, digest_size=OWNER_BYTES).digest()

    def name(self, owner: bytes, name: str) -> bytes:
        """Return the 16-byte key of a memory id, session or event id of one owner."""
        return self._name(owner, name)

    def _hash_name(self, owner: bytes, name: str) -> bytes:
        return hashlib.blake2b(name.encode(), key=self._secret, person=owner, digest_size=NAME_BYTES).digest()

    def node(self, owner: bytes, key: str) -> bytes:
        """Return the 16-byte key of a graph node other than a memory. A memory's key is `name` of its id."""
        return hashlib.blake2b(
            key.encode(), key=self._secret, person=owner, salt=b"node", digest_size=NAME_BYTES
        ).digest()

    def edge(self, owner: bytes, source: bytes, target: bytes, kind: str) -> bytes:
        """Return the 16-byte key of an edge of a type between two nodes, given by their keys."""
        ends = source + target + kind.encode()
        return hashlib.blake2b(ends, key=self._secret, person=owner, salt=b"edge", digest_size=NAME_BYTES).digest()

    def cipher_of(self, content: bytes) -> Cipher:
        """Return a key derived from the secret and the content."""
        digest = hashlib.blake2b(content, key=self._secret, person=b"content key", digest_size=KEY_BYTES)
        return Cipher(digest.digest())

    def digest(self, owner: bytes, content: bytes) -> bytes:
        """Return a 16-byte fingerprint of content, which reveals nothing without the secret."""
        return hashlib.blake2b(content, key=self._secret, person=owner, salt=b"content", digest_size=16).digest()
