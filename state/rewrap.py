"""Exchange of a state directory's master key without rewriting encrypted data."""

from pathlib import Path

from recallflow.credentials import MasterKey
from recallflow.errors import MasterKeyError
from recallflow.state.directory import describe, hold, using, write_description
from recallflow.state.encryption import AtRest, StoredSecret
from recallflow.state.folders import numbers_in, partition_folder, read_secret, write_secret


def rewrap(path: Path, at_rest: AtRest, master_key: MasterKey) -> None:
    """Wrap the secret of an encrypted state directory, and those of moved-in folders, with another master key. Each is
    replaced atomically, the directory's own last, so that an interrupted run can be repeated with the same two keys.
    Raise MasterKeyError if either key is unusable."""
    with hold(path):
        stored = describe(path)
        if stored.secret.master_key is None:
            raise MasterKeyError(f"{path} is not encrypted: replay the log into a new directory with a master key")
        wrapping = _Wrapping(at_rest.master_key, master_key)
        own = wrapping.wrapped(path, stored.secret)
        folders = [partition_folder(path, number) for number in numbers_in(path)]
        found = {folder: secret for folder in folders if (secret := read_secret(folder)) is not None}
        renewed = {folder: wrapping.wrapped(folder, secret) for folder, secret in found.items()}
        with using(path):
            for folder, secret in renewed.items():
                write_secret(folder, secret)
            write_description(path, stored._replace(secret=own))


class _Wrapping:
    """Secrets under the one key, and under the other. Folders often have the same one: it is asked for once."""

    def __init__(self, old: MasterKey | None, new: MasterKey) -> None:
        self._old, self._new = old, new
        self._done = dict[StoredSecret, StoredSecret]()

    def wrapped(self, path: Path, secret: StoredSecret) -> StoredSecret:
        if secret not in self._done:
            self._done[secret] = self._rewrapped(path, secret)
        return self._done[secret]

    def _rewrapped(self, path: Path, secret: StoredSecret) -> StoredSecret:
        if secret.master_key == self._new.name != (self._old and self._old.name):
            secret.opened(path, self._new)  # done before a kill
            return secret
        wrapped = StoredSecret.wrapped(secret.opened(path, self._old), self._new)
        wrapped.opened(path, self._new)  # a key that only wraps would lock everybody out
        return wrapped
