"""A state directory: N state partitions, the settings that shaped them, and the secret their keys are made with."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import orjson

from recallflow.errors import SettingsMismatch, StateError, StateFormatError, StorageError
from recallflow.state import keys
from recallflow.state.files import write_whole
from recallflow.state.hot import HotOwners
from recallflow.state.keyring import Keyring, new_secret
from recallflow.state.partition import Partition, SharedMemory

DESCRIPTION = "recallflow.json"
RECOVERY = "recovery"
BEGIN = "begin.json"  # where output and query partitions ended when the directory was new
REWIND = "rewind.json"  # from where the log is to be read again


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


class StateDirectory:
    """Opens state partitions on first use and keeps them until `close`. Safe to share between the workers of a process:
    each partition belongs to one worker, and each worker has its own cache of hot owners."""

    def __init__(
        self, path: Path, fingerprint: Fingerprint, secret: bytes, cache_bytes: int, lock_wait_s: float
    ) -> None:
        self.path = path
        self.rebuilding = False  # state partitions may be behind: the source reads again what they miss
        self.fingerprint = fingerprint
        self._keyring = Keyring(secret)
        self._memory = SharedMemory()
        self._cache_bytes = cache_bytes
        self._lock_wait_s = lock_wait_s
        self._partitions: dict[int, Partition] = {}
        self._opening = threading.Lock()
        self._hot: dict[int, HotOwners] = {}
        self._disk = ThreadPoolExecutor(fingerprint.partitions, "recallflow-sync")

    @classmethod
    def open(cls, path: Path, fingerprint: Fingerprint, cache_bytes: int, lock_wait_s: float = 2.0) -> Self:
        """Opens or creates a state directory. Raises StateError where another version or other settings made it."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / DESCRIPTION).exists():
                _create(path, fingerprint)
        except OSError as error:
            raise StorageError(f"cannot use {path} as a state directory: {error.strerror}") from error
        stored, secret = describe(path)
        _compare(path, stored, fingerprint)
        return cls(path, fingerprint, secret, cache_bytes, lock_wait_s)

    def partition(self, number: int) -> Partition:
        """The open partition; raises StateInUse while another process holds it."""
        with self._opening:
            if number not in self._partitions:
                folder = self.path / f"p{number:03d}"
                self._partitions[number] = Partition(folder, number, self._keyring, self._memory, self._lock_wait_s)
            return self._partitions[number]

    def partitions(self) -> list[Partition]:
        """All partitions, opened."""
        return [self.partition(number) for number in range(self.fingerprint.partitions)]

    def sync(self) -> None:
        """Syncs all that was committed. Each partition waits for the disk; together they wait hardly longer than one:
        sixteen one after the other held up queries for tens of milliseconds at each snapshot."""
        for _ in self._disk.map(Partition.sync, [p for p in [*self._partitions.values()] if p.unsynced]):
            pass

    def hot_owners(self) -> HotOwners:
        """The calling worker's cache of hot owners."""
        return self._hot.setdefault(threading.get_ident(), HotOwners(self._cache_bytes))

    @property
    def hot_bytes(self) -> int:
        """What owners in memory weigh, over all workers."""
        return sum(owners.total_bytes for owners in [*self._hot.values()])

    def close(self) -> None:
        self._disk.shutdown()
        self._hot.clear()
        for partition in self._partitions.values():
            partition.close()
        self._partitions.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def describe(path: Path) -> tuple[Fingerprint, bytes]:
    """The settings and secret a state directory was created with."""
    try:
        stored = orjson.loads((path / DESCRIPTION).read_bytes())
        version = stored["format_version"]
        if version == keys.FORMAT_VERSION:
            return Fingerprint(**stored["settings"]), bytes.fromhex(stored["secret"])
    except FileNotFoundError:
        raise StateError(f"{path} is no state directory: it has no {DESCRIPTION}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path / DESCRIPTION} cannot be read ({error}): restore it from a checkpoint") from error
    raise StateFormatError(
        f"{path} is in format {version}, this recallflow reads format {keys.FORMAT_VERSION}: "
        "use the version that wrote it, or rebuild the state from the log into a new directory"
    )


def _create(path: Path, fingerprint: Fingerprint) -> None:
    others = [entry.name for entry in path.iterdir()]
    if others:
        raise StateError(f"{path} holds other files ({', '.join(sorted(others)[:3])}, …): give an empty or new folder")
    description = {
        "format_version": keys.FORMAT_VERSION,
        "settings": asdict(fingerprint),
        "secret": new_secret().hex(),
    }
    write_whole(path / DESCRIPTION, orjson.dumps(description, option=orjson.OPT_INDENT_2))


def _compare(path: Path, stored: Fingerprint, given: Fingerprint) -> None:
    differing = [
        f"{name} is {was!r} there and {asdict(given)[name]!r} here"
        for name, was in asdict(stored).items()
        if was != asdict(given)[name]
    ]
    if differing:
        raise SettingsMismatch(
            f"{path} was created with other settings: {'; '.join(differing)}. "
            "Use the settings it was created with, or replay the log into a new directory (recallflow state rebuild)"
        )
