"""Master keys: a key of AWS KMS, or 32 bytes from a file or a setting."""

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

from recallflow.errors import MasterKeyError

CONTEXT = {"recallflow": "state directory"}  # required again to unwrap; CloudTrail logs it
CONNECT_S, READ_S, ATTEMPTS = 5, 10, 3


class KmsMasterKey:
    """Symmetric key of KMS, by id, ARN or alias. AWS's standard credential chain applies."""

    def __init__(self, key_id: str, region: str | None = None, endpoint: str | None = None) -> None:
        """Raise MasterKeyError if the client cannot be created."""
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
        return bytes(self._call(self._kms.encrypt, Plaintext=secret)["CiphertextBlob"])

    def unwrap(self, wrapped: bytes) -> bytes:
        return bytes(self._call(self._kms.decrypt, CiphertextBlob=wrapped)["Plaintext"])

    def _call(self, operation: Any, **arguments: bytes) -> Any:
        try:
            return operation(KeyId=self._key_id, EncryptionContext=CONTEXT, **arguments)
        except self._errors as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> MasterKeyError:
        """Return an error with the message of KMS, which never contains the secret."""
        return MasterKeyError(f"the master key ({self.name}) cannot be used: {error}")


KEY_BYTES = 32
_NONCE_BYTES = 12
_CONTEXT = b"recallflow: a state directory's secret"  # associated data of AES-GCM
_REMEDY = "create one with: openssl rand -base64 32"


class LocalMasterKey:
    """Key in this process, for AES-256-GCM."""

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # imported here: most processes do not encrypt
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aes, self._refusals = AESGCM(key), (InvalidTag, ValueError)
        self.name = "local " + hashlib.blake2b(key, person=b"name of a key", digest_size=8).hexdigest()

    def wrap(self, secret: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aes.encrypt(nonce, secret, _CONTEXT)

    def unwrap(self, wrapped: bytes) -> bytes:
        try:
            return self._aes.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], _CONTEXT)
        except self._refusals:
            raise MasterKeyError(
                f"the master key ({self.name}) is not the one of this directory: give the right one"
            ) from None


def read_master_key(path: Path) -> LocalMasterKey:
    """Return the key in a file. Raise MasterKeyError, which never contains it."""
    try:
        return parse_master_key(path.read_bytes(), str(path))
    except OSError as error:
        raise MasterKeyError(f"cannot read the master key {path}: {error.strerror}") from None


def parse_master_key(text: str | bytes, origin: str = "encryption.master_key") -> LocalMasterKey:
    """Return the key in a setting or a file. Raise MasterKeyError, which never contains it."""
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise MasterKeyError(f"{origin} is not a master key of {KEY_BYTES} bytes in base64: {_REMEDY}")
    return LocalMasterKey(key)
