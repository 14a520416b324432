"""Keeping checkpoints of state partitions, one after the other, from a thread beside the engine."""

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from recallflow.connectors.checkpoints.manifest import About
from recallflow.connectors.checkpoints.store import CheckpointStore, Saved
from recallflow.errors import CheckpointError

SCRATCH = ".checkpoint-"

_log = logging.getLogger(__name__)


class Keeper:
    """`state_dir`: where folders are made meanwhile, on the disk of the state, so that tables are linked and not
    copied; what a killed process left there is removed. `keep`: generations of each partition that stay."""

    def __init__(self, store: CheckpointStore, state_dir: Path, keep: int) -> None:
        self._store = store
        self._state_dir = state_dir
        self._keep = keep
        for left in state_dir.glob(f"{SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)

    def keep(self, number: int, make_folder: Callable[[Path], About]) -> Saved:
        """Saves what `make_folder` puts into a folder that is not there yet, and prunes what is beyond. Raises
        CheckpointError, OSError and what `make_folder` raises: then the partition's generations are as before."""
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self._state_dir) as scratch:
            folder = Path(scratch) / f"p{number:03d}"
            about = make_folder(folder)
            saved = self._store.save(number, folder, about)
        try:
            self._store.prune(number, self._keep)
        except CheckpointError as error:
            _log.warning("old checkpoints of state partition %d stay for now: %s", number, error)
        return saved
