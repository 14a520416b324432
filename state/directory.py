"""A state directory: N state partitions, the settings that shaped them, and the secret their keys are made with."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, Self

import orjson

from recallflow.errors import MasterKeyError, SettingsMismatch, StateError, StateFormatError, StorageError
from recallflow.language import ANALYSIS
from recallflow.master_key import MasterKey
from recallflow.records import Position
from recallflow.state import keys
from recallflow.state.at_rest import UNENCRYPTED, AtRest, StoredSecret
from recallflow.state.database import SharedMemory
from recallflow.state.files import read_checked, write_checked
from recallflow.state.hot_owner import PACKED_AT_END, HotOwners
from recallflow.state.keyring import Keyring, new_secret
from recallflow.state.lock import LOCK, WAIT_S, locked
from recallflow.state.partition import Counts, Partition

DESCRIPTION = "recallflow.json"
RESTORING = "recallflow.json.restoring"  # the description while a checkpoint is being restored
RECOVERY = "recovery"
BEGIN = "begin.json"  # where output and query partitions ended when the directory was new
CALLERS_LOG, ONE_RUNS_LOG = "local", "lines"  # as positions name what callers put, and the lines of one command
REWIND = "rewind.json"  # from where the log is to be read again

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fingerprint:
    """The settings that shape what is stored: state written with others cannot be read as if it were the same."""

    partitions: int
    embedder: str
    dimension: int
    episode_gap_ms: int
    similarity_threshold: float
    similarity_max_k: int
    similarity_max_per_memory: int
    analysis: str = ANALYSIS


class Description(NamedTuple):
    """What a state directory says of itself: the settings that shaped it, and its secret as that is stored."""

    fingerprint: Fingerprint
    secret: StoredSecret

    def keyring(self, path: Path, at_rest: AtRest) -> Keyring:
        """Raises MasterKeyError."""
        secret = self.secret.opened(path, at_rest.master_key)
        encrypts = at_rest.master_key is not None
        return Keyring(secret, encrypts=encrypts, encrypts_vectors=at_rest.encrypt_vectors)


class StateDirectory:
    """Opens state partitions on first use and keeps them until `close`. Safe to share between the workers of a process:
    each partition belongs to one worker, and each worker has its own cache of hot owners."""

    def __init__(
        self, path: Path, fingerprint: Fingerprint, keyring: Keyring, cache_bytes: int, lock_wait_s: float
    ) -> None:
        self.path = path
        self.rebuilding = False  # state partitions may be behind: the source reads again what they miss
        self.fingerprint = fingerprint
        self._keyring = keyring
        self._memory = SharedMemory()
        self._cache_bytes = cache_bytes
        self._lock_wait_s = lock_wait_s
        self._partitions: dict[int, Partition] = {}
        self._opening = threading.Lock()
        self._hot: dict[int, HotOwners] = {}
        self._disk = ThreadPoolExecutor(fingerprint.partitions, "recallflow-sync")
        self._cleaner = ThreadPoolExecutor(1, "recallflow-clean")
        self._to_clean = set[int]()  # partitions whose turn with the cleaner is still to come
        self._lock = contextlib.ExitStack()

    @classmethod
    def open(
        cls,
        path: Path,
        fingerprint: Fingerprint,
        cache_bytes: int,
        lock_wait_s: float = WAIT_S,
        at_rest: AtRest = UNENCRYPTED,
    ) -> Self:
        """Opens or creates a state directory, and holds it. Raises StateInUse where another process does, StateError
        where another version or other settings made it, and MasterKeyError where another master key did."""
        with contextlib.ExitStack() as lock:
            lock.enter_context(hold(path, lock_wait_s, create=True))
            if not (path / DESCRIPTION).exists():
                _create(path, fingerprint, at_rest)
            stored = describe(path)
            check_settings(path, stored.fingerprint, fingerprint)
            directory = cls(path, fingerprint, stored.keyring(path, at_rest), cache_bytes, lock_wait_s)
            directory._lock = lock.pop_all()
        return directory

    @classmethod
    def existing(cls, path: Path, cache_bytes: int, at_rest: AtRest = UNENCRYPTED) -> Self:
        """Opens a state directory with the settings it was made with, and holds it."""
        with hold(path):
            return cls.open(path, describe(path).fingerprint, cache_bytes, at_rest=at_rest)

    def partition(self, number: int) -> Partition:
        """The open partition; raises StateInUse while another process holds it."""
        with self._opening:
            if number not in self._partitions:
                folder = partition_folder(self.path, number)
                _check_whole(folder)
                self._partitions[number] = Partition(folder, number, self._keyring, self._memory, self._lock_wait_s)
                self.clean(self._partitions[number])  # what an earlier run left
            return self._partitions[number]

    def partitions(self) -> list[Partition]:
        """All partitions, opened."""
        return [self.partition(number) for number in range(self.fingerprint.partitions)]

    def existing_partitions(self) -> list[Partition]:
        """The partitions that have a folder, opened. A lost folder is not made anew: an empty partition would hide the
        loss."""
        numbers = range(self.fingerprint.partitions)
        return [self.partition(number) for number in numbers if partition_folder(self.path, number).is_dir()]

    def pass_over(self, position: Position) -> None:
        """Has all of a log up to a position count as applied: nothing of it is held. A question at its end leaves
        nothing else that says where the next record stands."""
        partition = max(self.partitions(), key=lambda one: one.applied.get(position.source, -1))
        partition.stage({}, position)
        partition.commit()

    def has_read_a_log(self) -> bool:
        """Whether a log was begun with, or events of one stand in it, of which a recovery store keeps the place. What
        callers put, and a command's lines, was through when they ended."""
        if (self.path / BEGIN).exists():
            return True
        through = {f"{topic}:0" for topic in (CALLERS_LOG, ONE_RUNS_LOG)}
        return any(partition.applied.keys() - through for partition in self.existing_partitions())

    def has_vectors(self) -> bool:
        """Whether a memory that was committed has a vector: then the size that is set was right once. Any thread may
        ask."""
        end = keys.after(keys.OWNERS)
        records = (
            one for partition in self.partitions() for one in partition.scan_stored(keys.OWNERS, end, committed=True)
        )
        return any(keys.split(key)[1] == keys.VECTORS for key, _ in records)

    @property
    def unfit(self) -> Counter[tuple[str, str]]:
        """Events of this run that had no effect, as what they were made from is gone or changed, by type and reason."""
        return sum((partition.unfit for partition in [*self._partitions.values()]), Counter())

    @property
    def counts(self) -> Counts:
        """What the open partitions hold."""
        found = [partition.counts for partition in [*self._partitions.values()]]
        return Counts(sum(one.owners for one in found), sum(one.memories for one in found))

    def sync(self) -> None:
        """Syncs all that was committed. Partitions wait for the disk in parallel, as sixteen in turn held up queries
        for tens of milliseconds at each snapshot."""
        unsynced = [partition for partition in [*self._partitions.values()] if partition.unsynced]
        for _ in self._disk.map(Partition.sync, unsynced):
            pass  # raises what a partition raised

    @property
    def uncleaned(self) -> int:
        """Erased owners of whom files of the open partitions may still hold something."""
        return sum(len(partition.cleaning) for partition in [*self._partitions.values()])

    def clean(self, partition: Partition) -> None:
        """Has what was erased cleaned off a partition's files, if anything was, in the background."""
        if partition.cleaning and partition.number not in self._to_clean:
            self._to_clean.add(partition.number)
            self._cleaner.submit(self._clean, partition)

    def finish_cleaning(self) -> None:
        """Returns when no file of any partition holds anything of what was erased. Raises StorageError."""
        for partition in self.partitions():
            partition.clean()

    def _clean(self, partition: Partition) -> None:
        self._to_clean.discard(partition.number)
        try:
            partition.clean()
        except StorageError as error:
            _log.error("what was erased may be in files still, until the next start: %s", error)

    def hot_owners(self) -> HotOwners:
        """The calling worker's cache of hot owners."""
        return self._hot.setdefault(threading.get_ident(), HotOwners(self._cache_bytes))

    @property
    def hot_bytes(self) -> int:
        """Bytes of hot owners, over all workers."""
        return sum(owners.total_bytes for owners in [*self._hot.values()])

    @property
    def hot_limit_bytes(self) -> int:
        """How many bytes of hot owners may stay: each worker has as much."""
        return self._cache_bytes * max(1, len(self._hot))

    def close(self) -> None:
        self._disk.shutdown()
        for partition in self._partitions.values():
            partition.cleaning.close()
        self._cleaner.shutdown()
        with contextlib.suppress(StorageError):  # without them the next question takes a little longer
            for owners in self._hot.values():
                owners.keep_tails(PACKED_AT_END // len(self._hot))
        self._hot.clear()
        for partition in self._partitions.values():
            partition.close()
        self._partitions.clear()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def hold(path: Path, wait_s: float = WAIT_S, *, create: bool = False) -> Iterator[None]:
    """Holds a state directory, and may make its folder. Raises StateError where the folder is somebody else's."""
    with _using(path):
        if not (path / DESCRIPTION).exists() and not (path / LOCK).exists():
            if not create:
                raise _no_directory(path)
            path.mkdir(parents=True, exist_ok=True)
            _check_new(path)
    with locked(path, wait_s):
        yield


def partition_folder(path: Path, number: int) -> Path:
    """Where a state directory has the database of a state partition."""
    return path / f"p{number:03d}"


def describe(path: Path) -> Description:
    """What a state directory was created with. Needs no key."""
    try:
        version = orjson.loads((path / DESCRIPTION).read_bytes())["format_version"]
        if version == keys.FORMAT_VERSION:
            stored = read_checked(path / DESCRIPTION)
            return Description(Fingerprint(**stored["settings"]), StoredSecret.of(stored))
    except (FileNotFoundError, NotADirectoryError):
        raise _no_directory(path) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path / DESCRIPTION} cannot be read ({error}): restore it from a checkpoint") from error
    raise StateFormatError(
        f"{path} is in format {version}, this recallflow reads format {keys.FORMAT_VERSION}: "
        "use the version that wrote it, or rebuild the state from the log into a new directory"
    )


def rewrap(path: Path, at_rest: AtRest, master_key: MasterKey) -> None:
    """Gives an encrypted state directory another master key: the description is replaced as a whole, and all else stays
    as it is. Raises MasterKeyError where either key cannot be used."""
    with hold(path):
        stored = describe(path)
        if stored.secret.master_key is None:
            raise MasterKeyError(f"{path} is not encrypted: replay the log into a new directory with a master key")
        secret = stored.secret.opened(path, at_rest.master_key)
        wrapped = StoredSecret.wrapped(secret, master_key)
        wrapped.opened(path, master_key)  # a key that only wraps would lock everybody out
        with _using(path):
            _write(path, stored._replace(secret=wrapped))


def _no_directory(path: Path) -> StateError:
    if (path / RESTORING).exists():
        return StateError(f"{path} holds a restore that was stopped in the middle: restore it again")
    if not path.exists():
        return StateError(absent(path))
    return StateError(f"{path} is no state directory: it has no {DESCRIPTION}")


def absent(path: Path) -> str:
    """That a state directory is not there, and which one beside it may be meant."""
    siblings = [one.parent.name for one in path.absolute().parent.glob(f"*/{DESCRIPTION}")]
    near = "".join(f"; did you mean {path.with_name(one)}?" for one in get_close_matches(path.name, siblings, 1))
    return f"there is no state directory {path}{near}"


def _create(path: Path, fingerprint: Fingerprint, at_rest: AtRest) -> None:
    secret = StoredSecret.wrapped(new_secret(), at_rest.master_key)
    with _using(path):
        _check_new(path)
        _write(path, Description(fingerprint, secret))


def _write(path: Path, description: Description) -> None:
    settings = asdict(description.fingerprint)
    fields = {"format_version": keys.FORMAT_VERSION, "settings": settings, **description.secret.fields()}
    write_checked(path / DESCRIPTION, fields)


def _check_new(path: Path) -> None:
    """Raises StateError for a folder with files of others. Those that a killed first start left are allowed."""
    if (path / RESTORING).exists():
        raise _no_directory(path)
    others = {entry.name for entry in path.iterdir()} - {LOCK, f"{DESCRIPTION}.new"}
    if others:
        raise StateError(f"{path} holds other files ({', '.join(sorted(others)[:3])}, …): give an empty or new folder")


@contextlib.contextmanager
def _using(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot use {path} as a state directory: {error.strerror}") from error


def _check_whole(folder: Path) -> None:
    """Raises StorageError where the CURRENT file is lost: RocksDB would see no database there, and empty the folder."""
    if not (folder / "CURRENT").exists() and (any(folder.glob("*.sst")) or any(folder.glob("*.log"))):
        raise StorageError(f"cannot open {folder}: it has lost its CURRENT file; restore a checkpoint")


def check_settings(path: Path, stored: Fingerprint, given: Fingerprint) -> None:
    """Raises SettingsMismatch where a directory was made with others than these."""
    differing = [
        f"{name} is {was!r} there and {asdict(given)[name]!r} here"
        for name, was in asdict(stored).items()
        if was != asdict(given)[name]
    ]
    if stored.analysis != given.analysis:
        raise SettingsMismatch(
            f"{path} was built with the text analysis {stored.analysis!r}, this recallflow has {given.analysis!r}: "
            "use the version that built it, or replay the log into a new directory (recallflow state rebuild)"
        )
    if differing:
        other_model = (stored.embedder, stored.dimension) != (given.embedder, given.dimension)
        how = ", for which recallflow reembed computes the vectors of an embedding service" if other_model else ""
        raise SettingsMismatch(
            f"{path} was created with other settings: {'; '.join(differing)}. "
            f"Use the settings it was created with, or replay the log into a new directory{how}"
        )
