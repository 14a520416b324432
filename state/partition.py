"""A state partition: a RocksDB that stores the effects of events and their positions in the same atomic write."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import orjson
from rocksdict import Checkpoint, Options, WriteBatch, WriteOptions

from recallflow.errors import DecryptionFailed, StateError, StateFormatError, StorageError
from recallflow.owner import Owner
from recallflow.private_files import restrict_tree
from recallflow.records import Position
from recallflow.state import keys
from recallflow.state.database import Cleaning, StoredRecords, open_database
from recallflow.state.encryption import Keyring, OwnerKeys, Sealed, Unsealed
from recallflow.stepped import spend

T = TypeVar("T")


class Counts(NamedTuple):
    """The numbers of owners and of current memories in a state partition."""

    owners: int
    memories: int


NO_CHANGE = Counts(0, 0)

Values = dict[bytes, bytes | None]  # changes by key; None deletes
MAX_WAITING = 4_096  # staged changes; above it, changes that could wait are committed too


class Partition:
    """The RocksDB of one state partition. Changes are staged, and `commit` writes all of them as one WriteBatch.

    The staged changes are always those of whole events, with their positions. So they may be committed at any time, and
    a scan commits them first if they may contain records of its range."""

    def __init__(self, path: Path, number: int, keyring: Keyring, options: Options) -> None:
        self.path, self.number = path, number
        self.keyring = keyring
        self._owner_keys = OwnerKeys(keyring, self.get)
        self._sealing: Sealed | Unsealed = Sealed(keyring, self._owner_keys) if keyring.encrypts else Unsealed()
        self._db: Any = open_database(path, options)
        self._stored = StoredRecords(self._db, number)
        self._pending: Values = {}
        self._staged_prefixes: set[bytes] = set()  # key prefixes of the first `_prefixed_keys` staged keys
        self._prefixed_keys = 0
        self._is_due = False  # whether a staged change cannot wait for a later commit
        self._written = self._synced = 0  # commits that need a sync: their number, and the number of synced ones
        self._has_failed = False  # whether a write, sync or cleaning failed
        self._logged, self._unlogged = WriteOptions(), WriteOptions()
        cast(Any, self._unlogged).disable_wal = True  # rocksdict's stub has a method here
        self._advanced_sources: set[str] = set()  # sources with a staged position
        self._has_new_counts = False  # whether counts changed since the last commit
        self._check_format()
        self.applied = self.committed_positions()
        self.counts = self._read_counts()
        self.progress = self.get(keys.PROGRESS)  # progress of the log's reader, in its encoding
        marks = self.scan_stored(keys.UNCLEANED, keys.after(keys.UNCLEANED))
        self.cleaning = Cleaning(self._db, [key for key, _ in marks])
        self.unfit = Counter[tuple[str, str]]()  # events of this run that had no effect, by type and reason

    def is_applied(self, position: Position) -> bool:
        """Return whether the event at this position is applied, in this run or an earlier one."""
        return position.offset <= self.applied.get(position.source, -1)

    def committed_positions(self) -> dict[str, int]:
        """Return the applied and committed offset of each source. Any thread may call it."""
        stored = self.scan_committed(keys.APPLIED)
        return {key[len(keys.APPLIED) :].decode(): int(offset) for key, offset in stored}

    def get(self, key: bytes) -> bytes | None:
        """Return the value, including staged changes."""
        spend(1)
        if key in self._pending:
            return self._pending[key]
        value = self._stored.read(key)
        return None if value is None else self._sealing.open(key, value)

    def read(self, key: bytes, decode: Callable[[bytes], T]) -> T | None:
        """Return the decoded record, including staged changes."""
        stored = self.get(key)
        return None if stored is None else decode(stored)

    def get_many(self, several: list[bytes]) -> list[bytes | None]:
        """Return the values of several keys, in their order, in one batched read."""
        spend(len(several))
        pending, unseal = self._pending, self._sealing.open
        stored = iter(self._stored.read([key for key in several if key not in pending]))
        values = ((key, pending[key]) if key in pending else (key, next(stored)) for key in several)
        return [value if value is None or key in pending else unseal(key, value) for key, value in values]

    def get_large(self, key: bytes) -> bytes | None:
        """Return a value without caching its block. This suits large values that are read once."""
        if key in self._pending:
            self.commit()
        value = self._stored.read(key, cached=False)
        return None if value is None else self._sealing.open(key, value)

    def write_derived(self, derived: Mapping[bytes, bytes | None]) -> None:
        """Write derived records (None deletes) at once, without staging and without RocksDB's log. A crash may lose all
        records of a call, but never a part of them. Raise StorageError."""
        self._write(self._fill(WriteBatch(raw_mode=True), derived), self._unlogged)

    def stage(
        self, values: Values, position: Position | None = None, delta: Counts = NO_CHANGE, *, can_wait: bool = False
    ) -> None:
        """Stage the changes of an event, its position, and the change of counts. `can_wait`: the commit may wait."""
        self._pending.update(values)
        self._is_due |= not can_wait
        if position is not None and position.offset > self.applied.get(source := position.source, -1):
            self.applied[source] = position.offset
            self._advanced_sources.add(source)
        if delta != NO_CHANGE:
            self.counts = Counts(self.counts.owners + delta.owners, self.counts.memories + delta.memories)
            self._has_new_counts = True

    def stage_progress(self, progress: bytes) -> None:
        """Stage the progress of the log's reader."""
        self.progress = self._pending[keys.PROGRESS] = progress

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield records under a prefix, in key order, including staged changes."""
        return self.scan_range(prefix, keys.after(prefix))

    def scan_committed(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield records under a prefix that certainly has no staged changes, without a check for them."""
        return self._decrypted(self._stored.between(prefix, keys.after(prefix)))

    def scan_readable(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield records under a prefix, and skip records that cannot be decrypted."""
        for key, stored in self.scan_stored(prefix, keys.after(prefix)):
            try:
                value = self.open(key, stored)
            except DecryptionFailed:
                continue
            yield key, value

    def scan_stored(
        self, first: bytes, end: bytes, *, committed: bool = False, back: bool = False, values: bool = True
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield records in stored form (see `open`) like `between`. `committed`: the range has no staged changes."""
        if not committed:
            self._commit_within(first, end)
        return self._stored.between(first, end, back=back, values=values)

    def open(self, key: bytes, stored: bytes) -> bytes:
        """Decrypt a stored value. Raise DecryptionFailed."""
        return self._sealing.open(key, stored)

    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield records with first ≤ key < end, in key order, including staged changes."""
        return self._decrypted(self.scan_stored(first, end))

    def scan_back(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield records under a prefix in descending key order, including staged changes."""
        return self._decrypted(self.scan_stored(prefix, keys.after(prefix), back=True))

    def first_keys(self, prefix: bytes, at_most: int) -> list[bytes]:
        """Return the first keys under a prefix, in order, without reading their values."""
        return [key for key, _ in islice(self.scan_stored(prefix, keys.after(prefix), values=False), at_most)]

    def _decrypted(self, records: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        unseal = self._sealing.open
        for key, stored in records:
            spend(1)
            yield key, unseal(key, stored)

    def _commit_within(self, first: bytes, end: bytes) -> None:
        """Commit if there may be staged changes of keys with first ≤ key < end. Prefixes of keys are compared."""
        self._staged_prefixes.update(keys.scan_prefixes(islice(self._pending, self._prefixed_keys, None)))
        self._prefixed_keys = len(self._pending)
        (prefix,) = keys.scan_prefixes([first])
        is_grouped = first[keys.TABLE_BYTES - 1 : keys.TABLE_BYTES] in keys.GROUPED
        is_cut = len(prefix) < (keys.GROUP_BYTES if is_grouped else keys.TABLE_BYTES)
        if is_cut or end > keys.after(prefix) or prefix in self._staged_prefixes:
            self.commit()

    def checkpoint(self, folder: Path) -> None:
        """Copy all commits, by hard links if the volume allows."""
        Checkpoint(self._db).create_checkpoint(str(folder))
        restrict_tree(folder)

    def commit(self, *, needs_sync: bool = True, batch: WriteBatch | None = None) -> None:
        """Write `batch`, the staged changes and applied positions as ONE WriteBatch, completely or not at all.
        Raise StorageError if it was not applied. `needs_sync` is false if a power cut may lose the batch."""
        if not self.is_staging:
            return
        batch = self._fill(WriteBatch(raw_mode=True) if batch is None else batch, self._pending)
        for source in self._advanced_sources:
            batch.put(keys.applied(source), b"%d" % self.applied[source])
        if self._has_new_counts:
            batch.put(keys.COUNTS, self._sealing.seal(keys.COUNTS, orjson.dumps(tuple(self.counts))))
        self._write(batch, self._logged)
        self._has_new_counts = self._is_due = False
        self._pending.clear()
        self._staged_prefixes.clear()
        self._prefixed_keys = 0
        self._advanced_sources.clear()
        self._written += needs_sync

    def erase(
        self, owners: Sequence[bytes], user: bytes, values: Values, position: Position | None, delta: Counts
    ) -> None:
        """Delete a user's owners and mark them for `cleaning`, in ONE WriteBatch with the event. Raise StorageError."""
        self.commit()
        marks: list[bytes] = [keys.uncleaned(owner, user) for owner in owners]
        self.stage(values | dict.fromkeys(marks, b""), position, delta)
        batch = WriteBatch(raw_mode=True)
        for owner in owners:
            batch.delete_range(keys.owner(owner), keys.after(keys.owner(owner)))
            self._owner_keys.ciphers.pop(owner, None)
            self._pending |= {keys.owner_key(owner): None, keys.user_owner(user, owner): None}
        with self.cleaning.adding(marks):
            self.commit(batch=batch)

    def commit_due(self) -> None:
        """Commit, unless all staged changes can wait. Raise StorageError."""
        if self._is_due or len(self._pending) > MAX_WAITING:
            self.commit()

    def _fill(self, batch: WriteBatch, values: Mapping[bytes, bytes | None]) -> WriteBatch:
        seal, put, delete = self._sealing.seal, batch.put, batch.delete
        for key, value in values.items():
            if value is None:
                delete(key)
            else:
                put(key, seal(key, value))
        return batch

    def _write(self, batch: WriteBatch, options: WriteOptions) -> None:
        try:
            self._db.write(batch, options)
        except Exception as error:  # rocksdict raises bare Exception
            raise self._write_error(error) from error

    def _write_error(self, error: Exception) -> StorageError:
        self._has_failed = True
        return StorageError(
            f"state partition {self.number} could not be written: {error}. The last batch was not applied: free disk "
            "space or repair the volume, and start again; nothing is lost"
        )

    @property
    def is_staging(self) -> bool:
        return bool(self._pending or self._advanced_sources)

    def begin_owner(self, owner: Owner, key: bytes) -> None:
        """Stage the first records of an owner, before all other data of the owner: its user, and in an encrypted
        directory its key, unless it has one. `key` is the prefix of the owner's records. Raise DecryptionFailed if an
        existing key cannot be decrypted."""
        if self.keyring.encrypts:
            self._pending.update(self._owner_keys.new_key_records(owner, key))
        user = self.keyring.user(owner.tenant_id, owner.user_id)
        self._pending[keys.user_owner(user, key)] = owner.environment.encode()

    def check_owner_key(self, key: bytes) -> None:
        """Raise DecryptionFailed if a known owner has no readable key. `key` is the prefix of the owner's records."""
        if self.keyring.encrypts:
            _ = self._owner_keys.ciphers[key]

    def owners_of(self, tenant_id: str, user_id: str) -> list[Owner]:
        stored = self.scan(keys.users_owners(self.keyring.user(tenant_id, user_id)))
        return [Owner(tenant_id, environment.decode(), user_id) for _, environment in stored]

    def erased_ms(self, owner: Owner, key: bytes) -> int | None:
        """Return the event time up to which an owner with this key prefix was erased; None without an erasure."""
        user = self.keyring.user(owner.tenant_id, owner.user_id)
        found = self.get_many([keys.erased(user), keys.erased_in(user, key)])
        return max((int(value) for value in found if value is not None), default=None)

    def tombstone(self, tenant_id: str, user_id: str, environment: str | None, at_ms: int) -> Values:
        """Return the record of a user's erasure, in one environment or in all (None). A later stored time is kept."""
        key = keys.erased(user := self.keyring.user(tenant_id, user_id))
        if environment is not None:
            key = keys.erased_in(user, self.keyring.owner(Owner(tenant_id, environment, user_id)))
        stored = self.get(key)
        return {key: b"%d" % (at_ms if stored is None else max(at_ms, int(stored)))}

    def has_key(self, owner: bytes) -> bool:
        try:
            _ = self._owner_keys.ciphers[owner]
        except DecryptionFailed:
            return False
        return True

    @property
    def unsynced(self) -> bool:
        """Return whether a commit that needs a sync is not synced."""
        return self._synced < self._written

    def sync_check(self) -> Callable[[], bool]:
        """Return a check that tells whether all commits up to now survive a power cut. Any thread may call it."""
        written = self._written
        return lambda: self._synced >= written

    def sync(self) -> None:
        """Sync all commits. Any thread may call it; a concurrent commit counts as unsynced. Raise StorageError."""
        written = self._written
        if self._synced >= written:
            return
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise self._write_error(error) from error
        self._synced = max(self._synced, written)

    def clean(self) -> None:
        """Remove erased data from the files, and wait for the end. Any thread may call it. Raise StorageError."""
        try:
            self.cleaning.run()
        except Exception as error:  # rocksdict raises bare Exception
            self._has_failed = True
            raise StorageError(f"files of state partition {self.number} could not be rewritten: {error}") from error

    @property
    def is_broken(self) -> bool:
        """Return whether RocksDB refuses writes until it is reopened, after a background error."""
        return bool(self._db.property_int_value("rocksdb.background-errors"))

    def close(self) -> None:
        try:
            self._db.close()
        except Exception as error:
            if not self._has_failed:  # after a failed write, closing fails as well
                raise self._write_error(error) from error

    def size_bytes(self) -> int:
        live = self._db.property_int_value("rocksdb.total-sst-files-size") or 0
        return live + (self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0)

    def _check_format(self) -> None:
        stored = self._stored.read(keys.FORMAT)
        if stored is None:
            self.stage({keys.FORMAT: orjson.dumps([keys.FORMAT_VERSION, self.number])})
            self.commit(needs_sync=False)
            return
        version, number = orjson.loads(stored)
        if version != keys.FORMAT_VERSION:
            self.close()
            raise other_format(self.path, version)
        if number != self.number:
            self.close()
            raise StateError(
                f"{self.path} holds state partition {number}, not {self.number}: put the folders back in place"
            )

    def _read_counts(self) -> Counts:
        """Return the stored counts. They are the first value that is decrypted, so a wrong key is noticed here."""
        try:
            return Counts(*orjson.loads(self.get(keys.COUNTS) or b"[0,0]"))
        except DecryptionFailed:
            self.close()
            raise StateError(
                f"{self.path} cannot be opened with the key of its state directory: it belongs to another one, or is "
                "damaged; put the folders back in place, or restore a checkpoint"
            ) from None


def other_format(path: Path, version: int) -> StateFormatError:
    return StateFormatError(
        f"{path} is in format {version}, this recallflow reads format {keys.FORMAT_VERSION}: "
        "use the version that wrote it, or replay the log into a new directory (docs/how-to/upgrading.md)"
    )
