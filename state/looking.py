"""Read-only access to a closed state partition, without changing a byte of it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from recallflow.errors import StorageError
from recallflow.state import keys
from recallflow.state.folders import partition_folder

_OPTIONS = "rocksdict-config.json"


def unpurged_owners(path: Path, partitions: int) -> int:
    """Return of how many erased owners the files of a state directory may still hold something. Raises StorageError."""
    folders = [partition_folder(path, number) for number in range(partitions)]
    return sum(uncleaned_owners(folder) for folder in folders if (folder / "CURRENT").exists())


def uncleaned_owners(folder: Path) -> int:
    """Return the number of erased owners whose data a partition's files may still hold. Raise StorageError."""
    with _stand_in(folder) as there:
        try:
            db = Rdict(str(there), Options(raw_mode=True), access_type=AccessType.read_only())
        except Exception as error:
            raise StorageError(f"cannot open {folder}: {error}") from error
        try:
            found = 0
            for key in db.keys(from_key=keys.UNCLEANED):
                if not isinstance(key, bytes) or not key.startswith(keys.UNCLEANED):
                    break
                found += 1
            return found
        finally:
            db.close()


@contextmanager
def _stand_in(folder: Path) -> Iterator[Path]:
    """Create a writable folder that reads like this one: rocksdict writes its options at each opening, even read-only,
    and RocksDB a log."""
    with tempfile.TemporaryDirectory(prefix="recallflow-") as made:
        there = Path(made)
        for file in folder.iterdir():
            if file.name == _OPTIONS:
                shutil.copyfile(file, there / file.name)
            else:
                (there / file.name).symlink_to(file.resolve())
        yield there
