"""Master keys: a key of AWS KMS, or 32 bytes from a file or a setting."""

import base64
import binascii
import hashlib
import os
from pathlib import Path
from typing import Any

from recallflow.errors import MasterKeyError

CONTEXT = {"recallflow": "state directory"}  # KMS has it in its own log, and unwraps under no other
CONNECT_S, READ_S, ATTEMPTS = 5, 10, 3


class KmsMasterKey:
    """Symmetric key of KMS, by id, ARN or alias. AWS's standard credential chain applies."""

    def __init__(self, key_id: str, region: str | None = None, endpoint: str | None = None) -> None:
        """Raise MasterKeyError where the client cannot be created."""
        self.name = f"kms {key_id}"
        self._key_id = key_id
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            raise MasterKeyError("a master key of KMS needs boto3: pip install 'recallflow[kms]'") from None
        self._errors = (BotoCoreError, ClientError)
        retries = {"total_max_attempts": ATTEMPTS, "mode": "standard"}
        options: Any = Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries=retries)
        try:
            self._kms: Any = boto3.client("kms", region_name=region, endpoint_url=endpoint, config=options)
        except (BotoCoreError, ValueError) as error:
            raise self._failed(error) from None

    def wrap(self, secret: bytes) -> bytes:
        answer = self._asked(self._kms.encrypt, Plaintext=secret)
        return bytes(answer["CiphertextBlob"])

    def unwrap(self, wrapped: bytes) -> bytes:
        answer = self._asked(self._kms.decrypt, CiphertextBlob=wrapped)
        return bytes(answer["Plaintext"])

    def _asked(self, ask: Any, **what: bytes) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = ask(KeyId=self._key_id, EncryptionContext=CONTEXT, **what)
        except self._errors as error:
            raise self._failed(error) from None
        return answer

    def _failed(self, error: Exception) -> MasterKeyError:
        """Return KMS's own message, which names key and request, and never the secret."""
        return MasterKeyError(f"the master key ({self.name}) cannot be used: {error}")


KEY_BYTES = 32
_NONCE_BYTES = 12
_PLACE = b"recallflow: a state directory's secret"
_HOW = "make one with: openssl rand -base64 32"


class LocalMasterKey:
    """Key in this process, for AES-256-GCM."""

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
    """Return the key in a file. Raise MasterKeyError, which never quotes it."""
    try:
        text = path.read_text("ascii")
    except OSError as error:
        raise MasterKeyError(f"cannot read the master key {path}: {error.strerror}") from None
    except ValueError:
        raise MasterKeyError(f"{path} holds no master key, {KEY_BYTES} bytes in base64: {_HOW}") from None
    return parse_master_key(text, str(path))


def parse_master_key(text: str, where: str = "encryption.master_key") -> LocalMasterKey:
    """Return the key in a setting or a file. Raise MasterKeyError, which never quotes it."""
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise MasterKeyError(f"{where} holds no master key, {KEY_BYTES} bytes in base64: {_HOW}")
    return LocalMasterKey(key)
