"""Encryption with one key: AES-256-GCM. A sealed value opens only with its key and at its place."""

import os
import secrets

from recallflow.errors import DecryptionFailed

KEY_BYTES = 32
NONCE_BYTES = 12
_BEGIN = 1 + NONCE_BYTES  # the start of the ciphertext, after the mark and the nonce
# How a value begins.
PLAIN = b"\x00"  # stored as it is, among others that are sealed
SEALED = b"\x01"  # sealed with AES-256-GCM: nonce, ciphertext, tag


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


class Cipher:
    """A key that seals and opens. `place`: where a value belongs; it is not kept with it, and elsewhere the value does
    not open."""

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
            raise DecryptionFailed("a stored value is not what was sealed in its place, or its key is lost") from None
