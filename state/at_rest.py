"""The encryption state of a directory, and the stored form of its secret."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from recallflow.credentials import MasterKey
from recallflow.errors import MasterKeyError


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
        """Return the secret in its stored form.

        Raises:
            MasterKeyError: the master key cannot wrap it.
        """
        return cls(secret) if master_key is None else cls(master_key.wrap(secret), master_key.name)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Parse the fields of a directory's description.

        Raises:
            KeyError, TypeError, ValueError: a field is missing or malformed.
        """
        if "secret" in fields:
            return cls(bytes.fromhex(fields["secret"]))
        return cls(bytes.fromhex(fields["wrapped_secret"]), str(fields["master_key"]))

    def fields(self) -> dict[str, str]:
        if self.master_key is None:
            return {"secret": self.value.hex()}
        return {"master_key": self.master_key, "wrapped_secret": self.value.hex()}

    def opened(self, path: Path, master_key: MasterKey | None) -> bytes:
        """Return the plain secret.

        Raises:
            MasterKeyError: the directory requires another master key, or one is given for an unencrypted directory.
        """
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
