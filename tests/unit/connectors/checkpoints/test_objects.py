"""Objects of a checkpoint store on a filesystem that others write to at the same time."""

import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

from recallflow.connectors.checkpoints.objects import Objects, Waiting


class VanishingFolder:
    """A filesystem whose folders are gone when they are listed."""

    def get_file_info(self, asked: Any) -> list[Any]:
        if isinstance(asked, list):
            return [SimpleNamespace(type="directory")]
        raise FileNotFoundError(2, "Cannot list directory")


class StoreLocation(NamedTuple):
    filesystem: Any
    root: str = "bucket/folder"
    shown: str = "store"


def test_folder_removed_during_a_listing_is_empty() -> None:
    objects = Objects(StoreLocation(VanishingFolder()), Waiting(threading.Event()))  # type: ignore[arg-type]
    assert objects.listing("p000/objects") == {}
    assert objects.folders() == []
