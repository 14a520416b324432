"""A master key that never leaves AWS KMS: the service wraps and unwraps a directory's secret."""

from typing import Any

from recallflow.errors import MasterKeyError

CONTEXT = {"recallflow": "state directory"}  # KMS has it in its own log, and unwraps under no other
CONNECT_S, READ_S, ATTEMPTS = 5, 10, 3


class KmsMasterKey:
    """A symmetric key of KMS, by id, ARN or alias. Credentials come from where AWS's own tools take them."""

    def __init__(self, key_id: str, region: str | None = None, endpoint: str | None = None) -> None:
        """Raises MasterKeyError where the client cannot be made."""
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
        """KMS's own words: they name key and request, and never the secret."""
        return MasterKeyError(f"the master key ({self.name}) cannot be used: {error}")
