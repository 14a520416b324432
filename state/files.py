"""Small files that are either not there or whole."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Written aside, synced, then renamed: a crash leaves the file as it was before, or whole."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
