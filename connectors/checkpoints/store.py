"""Checkpoint store of state partitions: save a generation, find the newest, fetch it."""

import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Self

from recallflow.connectors.checkpoints import generation
from recallflow.connectors.checkpoints.generation import MANIFEST_BYTES_MAX, CheckpointOrigin, Manifest, in_parallel
from recallflow.connectors.checkpoints.objects import ListedObject, Objects, locate, retry
from recallflow.errors import CheckpointBroken, CheckpointError, UsageError
from recallflow.private_files import make_private_folder
from recallflow.process import OUTAGE_S

GRACE_S = 24 * 3600.0  # age at which unreferenced objects are removed, and so the limit of a save or a fetch

_log = logging.getLogger(__name__)


class SavedGeneration(NamedTuple):
    """Saved generation. `sent_bytes` excludes the manifest."""

    manifest: Manifest
    sent_bytes: int


# Manifests of a partition, newest first, and the errors of unreadable ones by name.
ManifestList = tuple[list[Manifest], dict[str, CheckpointBroken]]


class CheckpointStore:
    """Checkpoint store of one deployment. Several processes may save, fetch and prune at once.

    No object is written twice, because each save gives unique names to the objects that it sends. A save also reuses
    objects of generations that exist when it starts. Objects of pruned generations and unreferenced objects stay for
    the grace period, and a save that takes longer fails. So pruning never removes objects of a generation in use."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.shown = objects.shown  # the URL for messages
        self._manifest_cache = dict[tuple[int, str], Manifest]()  # never outdated, because manifests are immutable
        self._table_digests = dict[int, generation.TableDigests]()  # of each partition's last save
        self._warned = set[tuple[int, str]]()  # unreadable manifests

    @classmethod
    def open(
        cls, url: str, stopping: threading.Event | None = None, patience_s: float = OUTAGE_S, *, create: bool = False
    ) -> Self:
        """Open a store. Raise UsageError for a wrong URL, and CheckpointError where the store is unreachable.

        `stopping` ends retries. `create` makes the folder of a `file:` URL (see `Objects`)."""
        stopping = stopping or threading.Event()
        location = retry(stopping, patience_s, "checkpoints", "find the store", lambda: locate(url))
        return cls(Objects(location, stopping, patience_s, create=create))

    def save(self, number: int, folder: Path, about: CheckpointOrigin) -> SavedGeneration:
        """Save a folder of constant files, a RocksDB checkpoint, as a generation.

        1. Find the complete objects of existing generations. 2. Send missing pieces. 3. Write the manifest, which makes
        the generation visible. An interruption before 3 leaves unreferenced objects, which a later `prune` removes."""
        if about.partition != number:
            raise ValueError(f"state partition {number} is saved as {about.partition}")
        began_s = time.monotonic()
        save = uuid.uuid4().hex[:12]
        listed = self._objects.listing(f"{_part(number)}/objects")
        stored = {
            generation.digest_of(name): name
            for manifest in self._live_manifests(number)[0]
            for name, size in manifest.objects().items()
            if name in listed and listed[name].size == size
        }
        previous = self._table_digests.get(number, {})
        upload = generation.CheckpointUpload(self._objects, f"{_part(number)}/objects", save, stored, previous)
        files = upload.send(sorted(folder.iterdir()))
        if not files:
            raise CheckpointError(f"{folder} is empty: there is nothing to save of state partition {number}")
        if time.monotonic() - began_s > GRACE_S:
            limit = f"longer than {GRACE_S / 3600:g} hours: its first objects may be removed by now"
            raise CheckpointError(f"{self.shown}: saving state partition {number} took {limit}")
        self._table_digests[number] = upload.table_digests
        manifest = Manifest(f"{generation.name_prefix(about)}{save}.json", about, files)
        self._objects.put(f"{_part(number)}/manifests/{manifest.name}", generation.encode(manifest))
        return SavedGeneration(manifest, upload.sent_bytes)

    def partitions(self) -> list[int]:
        names = (name for name in self._objects.folders() if name[:1] == "p" and name[1:].isdecimal())
        return sorted(int(name[1:]) for name in names)

    def generations(self, number: int) -> list[Manifest]:
        """Return the generations, newest first, complete or not. Log a warning for each unreadable manifest."""
        manifests, broken = self._live_manifests(number)
        for name, error in broken.items():
            if (number, name) not in self._warned:
                _log.warning("%s: a checkpoint of state partition %d is skipped: %s", self.shown, number, error)
                self._warned.add((number, name))
        return manifests

    def broken(self, number: int) -> list[CheckpointBroken]:
        """Return the errors of unreadable manifests."""
        return [*self._live_manifests(number)[1].values()]

    def newest(self, number: int) -> Manifest | None:
        """Return the newest generation whose objects are all listed."""
        generations = self.generations(number)
        listed = self._objects.listing(f"{_part(number)}/objects") if generations else {}
        return next((manifest for manifest in generations if not lacking(manifest, listed)), None)

    def fetch(self, manifest: Manifest, folder: Path) -> None:
        """Fetch a generation into `folder`, which is missing or empty. It is written to a temporary folder and
        renamed, so an interruption leaves no folder. Raise CheckpointBroken with the missing or changed file."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CheckpointError(f"{folder} is not empty: a checkpoint is fetched into a new folder")
        for leftover in folder.parent.glob(f".{folder.name}.fetching-*"):  # of an interrupted fetch
            shutil.rmtree(leftover, ignore_errors=True)
        new = folder.parent / f".{folder.name}.fetching-{uuid.uuid4().hex[:12]}"
        try:
            make_private_folder(folder.parent)
            self._download(manifest).fetch(new)
            new.rename(folder)
        except OSError as error:
            raise CheckpointError(f"cannot write {folder}: {error}") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def fetch_newest(self, number: int, folder: Path) -> Manifest | None:
        """Fetch the newest intact generation, and return its manifest; None without one. Log broken ones."""
        for manifest in self.generations(number):
            try:
                self.fetch(manifest, folder)
            except CheckpointBroken as error:
                _log.warning("%s: a checkpoint of state partition %d is skipped: %s", self.shown, number, error)
            else:
                return manifest
        return None

    def verify(self, manifest: Manifest, checked: dict[str, str | None]) -> list[str]:
        """Return the problems of a generation's files. `checked` keeps the results of objects for later calls."""
        return self._download(manifest).problems(checked)

    def prune(self, number: int, keep: int) -> tuple[int, int]:
        """Remove the generations before the newest `keep` complete ones. Return the numbers of removed generations and
        objects.

        1. Move older manifests to the retired ones, whose write time by the store's clock is the time of pruning. 2.
        Remove objects that are older than the grace period, and that no generation or younger retired manifest names.
        The newest write time in the store counts as the current time: if it is earlier, objects only stay longer. 3.
        Remove retired manifests older than the grace period.

        If a manifest is unreadable, as one of a later version is, its references are unknown: no object is removed."""
        if keep < 1:
            raise UsageError(f"generations of checkpoints to keep: {keep}: give 1 or more")
        objects = self._objects.listing(f"{_part(number)}/objects")
        manifests, broken = self._live_manifests(number)
        complete = [manifest for manifest in manifests if not lacking(manifest, objects)]
        oldest = complete[keep - 1].name if len(complete) >= keep else ""
        pruned = [name for name in (*(one.name for one in manifests), *broken) if name < oldest]
        in_parallel(lambda name: self._retire(number, name), pruned)
        return len(pruned), self._sweep(number, objects)

    def _download(self, manifest: Manifest) -> generation.CheckpointDownload:
        return generation.CheckpointDownload(self._objects, f"{_part(manifest.about.partition)}/objects", manifest)

    def _retire(self, number: int, name: str) -> None:
        old = f"{_part(number)}/manifests/{name}"
        try:
            data = self._objects.get(old, MANIFEST_BYTES_MAX)
        except FileNotFoundError:
            return  # another process has pruned it
        self._objects.put(f"{_part(number)}/retired/{name}", data)
        self._objects.delete(old)

    def _sweep(self, number: int, objects: dict[str, ListedObject]) -> int:
        """Remove unreferenced objects; return their number. Live manifests are read before retired ones are listed, so
        that a manifest which another process retires meanwhile is found among one or the other."""
        part = _part(number)
        manifests = self._objects.listing(f"{part}/manifests")
        live, live_broken = self._manifests(number, "manifests", [*manifests])
        retired = self._objects.listing(f"{part}/retired")
        times_ns = (one.changed_ns for one in (*objects.values(), *manifests.values(), *retired.values()))
        before_ns = max(times_ns, default=0) - int(GRACE_S * 1e9)
        recent_names = {name for name, one in retired.items() if one.changed_ns >= before_ns}
        recent, recent_broken = self._manifests(number, "retired", recent_names)
        used_names = {one.name for one in (*live, *recent)}
        for key in [key for key in self._manifest_cache if key[0] == number and key[1] not in used_names]:
            del self._manifest_cache[key]
        if live_broken or recent_broken:
            return 0
        needed = {name for manifest in (*live, *recent) for name in manifest.objects()}
        removed = [name for name, one in objects.items() if name not in needed and one.changed_ns < before_ns]
        in_parallel(lambda name: self._objects.delete(f"{part}/objects/{name}"), removed)
        expired = sorted(retired.keys() - recent_names)
        in_parallel(lambda name: self._objects.delete(f"{part}/retired/{name}"), expired)
        return len(removed)

    def _live_manifests(self, number: int) -> ManifestList:
        return self._manifests(number, "manifests", self._objects.listing(f"{_part(number)}/manifests"))

    def _manifests(self, number: int, folder: str, names: Iterable[str]) -> ManifestList:
        manifests, broken = list[Manifest](), dict[str, CheckpointBroken]()
        for name in sorted((name for name in names if name.endswith(".json")), reverse=True):
            manifest = self._manifest_cache.get((number, name))
            if manifest is None:
                try:
                    data = self._objects.get(f"{_part(number)}/{folder}/{name}", MANIFEST_BYTES_MAX)
                    manifest = generation.decode(name, data, number)
                except FileNotFoundError:
                    continue  # it was pruned after the listing
                except CheckpointBroken as error:
                    broken[name] = error
                    continue
                self._manifest_cache[number, name] = manifest
            manifests.append(manifest)
        return manifests, broken


def lacking(manifest: Manifest, listed: dict[str, ListedObject]) -> list[str]:
    """Return the objects of a generation that a listing lacks, or shows with another size."""
    objects = manifest.objects().items()
    return [name for name, size in objects if name not in listed or listed[name].size != size]


def _part(number: int) -> str:
    return f"p{number:03d}"


SCRATCH = ".checkpoint-"


class CheckpointSaver:
    """Saver of checkpoints. Temporary folders are in `state_dir`, on the disk of the state, so that tables are linked
    and not copied; those of a killed process are removed. `keep` is the number of generations per partition."""

    def __init__(self, store: CheckpointStore, state_dir: Path, keep: int) -> None:
        self._store, self._state_dir, self._keep = store, state_dir, keep
        for leftover in state_dir.glob(f"{SCRATCH}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def save(self, number: int, make_folder: Callable[[Path], CheckpointOrigin]) -> SavedGeneration:
        """Save the folder that `make_folder` creates, and prune older generations. Raise CheckpointError, OSError
        and the errors of `make_folder`; each leaves the partition's generations unchanged."""
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self._state_dir) as scratch:
            folder = Path(scratch) / _part(number)
            about = make_folder(folder)
            saved = self._store.save(number, folder, about)
        try:
            self._store.prune(number, self._keep)
        except CheckpointError as error:
            _log.warning("old checkpoints of state partition %d stay for now: %s", number, error)
        return saved
