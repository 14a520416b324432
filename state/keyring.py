"""The one seam between what is stored and how it is protected: names become keyed hashes, values are sealed.

Values are not encrypted yet; encryption needs to change no other module. The secret is drawn once per state directory,
so that equal names have unrelated keys in another directory.
"""

import hashlib
import secrets
from functools import lru_cache

import orjson

from recallflow.owner import Owner
from recallflow.state.keys import NAME_BYTES, OWNER_BYTES

SECRET_BYTES = 32
NAMES_KEPT = 4_096  # an event asks for the same few again and again


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


class Keyring:
    """Keyed hashes of names (BLAKE2b, RFC 7693) and sealing of values, under one state directory's secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._name = lru_cache(maxsize=NAMES_KEPT)(self._hash_name)

    def owner(self, owner: Owner) -> bytes:
        """The owner's 16-byte key prefix. JSON keeps `a/b`+`c` and `a`+`b/c` apart."""
        return hashlib.blake2b(orjson.dumps(tuple(owner)), key=self._secret, digest_size=OWNER_BYTES).digest()

    def name(self, owner: bytes, name: str) -> bytes:
        """The 16-byte key of a memory id, session or event id of one owner."""
        return self._name(owner, name)

    def _hash_name(self, owner: bytes, name: str) -> bytes:
        return hashlib.blake2b(name.encode(), key=self._secret, person=owner, digest_size=NAME_BYTES).digest()

    def node(self, owner: bytes, key: str) -> bytes:
        """The 16-byte key of a graph node that is no memory (a memory's is its id's name)."""
        return hashlib.blake2b(
            key.encode(), key=self._secret, person=owner, salt=b"node", digest_size=NAME_BYTES
        ).digest()

    def edge(self, owner: bytes, source: bytes, target: bytes, kind: str) -> bytes:
        """The 16-byte key of an edge of a type between two nodes, given as their keys."""
        ends = source + target + kind.encode()
        return hashlib.blake2b(ends, key=self._secret, person=owner, salt=b"edge", digest_size=NAME_BYTES).digest()

    def digest(self, owner: bytes, content: bytes) -> bytes:
        """A 16-byte fingerprint of content, which reveals nothing without the secret."""
        return hashlib.blake2b(content, key=self._secret, person=owner, salt=b"content", digest_size=16).digest()

    def seal(self, key: bytes, value: bytes) -> bytes:  # noqa: ARG002 the key is associated data once values are encrypted
        return value

    def open(self, key: bytes, value: bytes) -> bytes:  # noqa: ARG002
        return value
