"""Master keys that are at hand: 32 bytes, out of a file or a setting."""

import base64
import binascii
import hashlib
import os
from pathlib import Path

from recallflow.errors import MasterKeyError

KEY_BYTES = 32
_NONCE_BYTES = 12
_PLACE = b"recallflow: a state directory's secret"
_HOW = "make one with: openssl rand -base64 32"


class LocalMasterKey:
    """A key that this process knows. It seals with AES-256-GCM."""

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # an engine without encryption does without the library
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aes, self._refusals = AESGCM(key), (InvalidTag, ValueError)
        self.name = "local " + hashlib.blake2b(key, person=b"name of a key", digest_size=8).hexdigest()

    def wrap(self, secret: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aes.encrypt(nonce, secret, _PLACE)

    def unwrap(self, wrapped: bytes) -> bytes:
        try:
            return self._aes.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], _PLACE)
        except self._refusals:
            raise MasterKeyError(f"the master key ({self.name}) is not the one that was used: give that one") from None


def read_master_key(path: Path) -> LocalMasterKey:
    """The key in a file. Raises MasterKeyError, which never quotes it."""
    try:
        text = path.read_text("ascii")
    except OSError as error:
        raise MasterKeyError(f"cannot read the master key {path}: {error.strerror}") from None
    except ValueError:
        raise MasterKeyError(f"{path} holds no master key, {KEY_BYTES} bytes in base64: {_HOW}") from None
    return _parsed(text, str(path))


def parse_master_key(text: str) -> LocalMasterKey:
    """The key in a setting. Raises MasterKeyError, which never quotes it."""
    return _parsed(text, "encryption.master_key")


def _parsed(text: str, where: str) -> LocalMasterKey:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise MasterKeyError(f"{where} holds no master key, {KEY_BYTES} bytes in base64: {_HOW}")
    return LocalMasterKey(key)
