"""Looking into a state partition that nobody has open, without changing a byte of it."""

import tempfile
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from recallflow.errors import StorageError
from recallflow.state import keys


def uncleaned_owners(folder: Path) -> int:
    """Of how many erased owners a partition's files may still hold something. Raises StorageError."""
    with tempfile.TemporaryDirectory(prefix="recallflow-") as logs:
        options = Options(raw_mode=True)
        options.set_db_log_dir(logs)  # RocksDB would write its own log beside the tables
        try:
            db = Rdict(str(folder), options, access_type=AccessType.read_only())
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
