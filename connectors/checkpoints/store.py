"""Checkpoint store of state partitions: save a generation, find the newest, fetch it."""

import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from recallflow.connectors.checkpoints import generation
from recallflow.connectors.checkpoints.generation import MANIFEST_BYTES_MAX, CheckpointOrigin, Manifest, in_parallel
from recallflow.connectors.checkpoints.objects import ListedObject, Objects, locate, retry
from recallflow.errors import CheckpointBroken, CheckpointError, UsageError
from recallflow.private_files import make_private_folder
from recallflow.process import OUTAGE_S

GRACE_S = 24 * 3600.0  # limit of a save or a fetch; unreferenced objects are removed after it

NEVER = ListedObject(0, 0)

_log = logging.getLogger(__name__)


class SavedGeneration(NamedTuple):
    """Saved generation. `sent_bytes` excludes the manifest."""

    manifest: Manifest
    sent_bytes: int
    sent_objects: int


class PruneCounts(NamedTuple):
    generations: int
    objects: int


class GenerationList(NamedTuple):
    """Generations of a partition, newest first, and unreadable manifests with their errors."""

    generations: list[Manifest]
    broken: dict[str, CheckpointBroken]


class CheckpointStore:
    """Checkpoint store of one deployment. Several processes may save, fetch and prune at once.

    No object is written twice, because each save gives unique names to the objects that it sends. It reuses objects
    that a generation names at that moment. A pruned generation leaves its objects for the grace period, and so do
    unreferenced objects; a save that takes longer fails. So pruning never removes objects of a generation in use."""

    def __init__(self, objects: Objects, grace_s: float = GRACE_S) -> None:
        self._objects, self._grace_s = objects, grace_s
        self._read = dict[tuple[int, str], Manifest]()  # a cache: manifests are immutable
        self._hashed = dict[int, generation.TableDigests]()
        self._noted = set[tuple[int, str]]()

    @classmethod
    def open(
        cls, url: str, stopping: threading.Event | None = None, patience_s: float = OUTAGE_S, *, create: bool = False
    ) -> Self:
        """Open a store. Raise UsageError for a wrong URL, and CheckpointError where the store is unreachable.

        Args:
            stopping: event that ends retries.
            create: make the folder of a `file:` URL; from then on the store is unavailable while the folder is
                missing."""
        stopping = stopping or threading.Event()
        location = retry(stopping, patience_s, "checkpoints", "find the store", lambda: locate(url))
        return cls(Objects(location, stopping, patience_s, create=create))

    @property
    def shown(self) -> str:
        """Return the URL for messages."""
        return self._objects.shown

    def save(self, number: int, folder: Path, about: CheckpointOrigin) -> SavedGeneration:
        """Save a folder of constant files, a RocksDB checkpoint, as a generation.

        1. Find the complete objects of existing generations. 2. Send missing pieces. 3. Write the manifest, which makes
        the generation visible. An interruption before leaves unreferenced objects, which a later `prune` removes."""
        if about.partition != number:
            raise ValueError(f"state partition {number} is saved as {about.partition}")
        began_s = time.monotonic()
        save = uuid.uuid4().hex[:12]
        listed = self._objects.listing(f"{_part(number)}/objects")
        has = {
            generation.digest_of(name): name
            for manifest in self._found(number).generations
            for name, size in manifest.objects().items()
            if name in listed and listed[name].size == size
        }
        sending = generation.CheckpointUpload(
            self._objects, f"{_part(number)}/objects", save, has, self._hashed.get(number, {})
        )
        files = sending.send(sorted(folder.iterdir()))
        if not files:
            raise CheckpointError(f"{folder} is empty: there is nothing to save of state partition {number}")
        if time.monotonic() - began_s > self._grace_s:
            raise CheckpointError(
                f"{self.shown}: saving state partition {number} took longer than {self._grace_s / 3600:g} hours: its "
                "first objects may be removed by now"
            )
        self._hashed[number] = sending.hashed
        manifest = Manifest(f"{generation.stem(about)}{save}.json", about, files)
        self._objects.put(f"{_part(number)}/manifests/{manifest.name}", generation.encode(manifest))
        return SavedGeneration(manifest, sending.sent_bytes, sending.sent_objects)

    def partitions(self) -> list[int]:
        names = (name for name in self._objects.folders() if name[:1] == "p" and name[1:].isdecimal())
        return sorted(int(name[1:]) for name in names)

    def generations(self, number: int) -> list[Manifest]:
        """Return the generations, newest first, complete or not. Log a warning for each unreadable manifest."""
        found = self._found(number)
        for name, error in found.broken.items():
            if (number, name) not in self._noted:
                _log.warning("%s: a checkpoint of state partition %d is left out: %s", self.shown, number, error)
                self._noted.add((number, name))
        return found.generations

    def broken(self, number: int) -> list[CheckpointBroken]:
        """Return the errors of unreadable manifests."""
        return [*self._found(number).broken.values()]

    def newest(self, number: int) -> Manifest | None:
        """Return the listed complete generation with the most applied records of its `source`."""
        generations = self.generations(number)
        listed = self._objects.listing(f"{_part(number)}/objects") if generations else {}
        return next((manifest for manifest in generations if not lacking(manifest, listed)), None)

    def fetch(self, manifest: Manifest, folder: Path) -> None:
        """Fetch a generation into `folder`, which is missing or empty. It is written to a temporary folder and
        renamed, so an interruption leaves no folder. Raise CheckpointBroken with the missing or changed file."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CheckpointError(f"{folder} is not empty: a checkpoint is fetched into a new folder")
        for left in folder.parent.glob(f".{folder.name}.fetching-*"):  # left by an interrupted fetch
            shutil.rmtree(left, ignore_errors=True)
        new = folder.parent / f".{folder.name}.fetching-{uuid.uuid4().hex[:12]}"
        try:
            make_private_folder(folder.parent)
            self._fetching(manifest).fetch(manifest.files, new)
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
                _log.warning("%s: a checkpoint of state partition %d is passed over: %s", self.shown, number, error)
            else:
                return manifest
        return None

    def verify(self, manifest: Manifest, known: dict[str, str | None]) -> list[str]:
        """Return the problems of each file of a generation. `known` holds the results of shared objects."""
        return self._fetching(manifest).problems(manifest.files, known)

    def prune(self, number: int, keep: int) -> PruneCounts:
        """Keep the newest `keep` complete generations and all newer ones; remove the others.

        1. Move older manifests to the retired ones, whose write time by the store's clock is the time of pruning. 2.
        Remove objects that are older than the grace period, and that no generation or younger retired manifest names.
        The current time is the newest write time, which is never ahead. 3. Remove retired manifests older than the
        grace period.

        With an unreadable manifest, as of a later version, the references are unknown, and no object is removed."""
        if keep < 1:
            raise UsageError(f"generations of checkpoints to keep: {keep}: give 1 or more")
        part = _part(number)
        objects = self._objects.listing(f"{part}/objects")
        found = self._found(number)
        whole = [manifest for manifest in found.generations if not lacking(manifest, objects)]
        oldest = whole[keep - 1].name if len(whole) >= keep else ""
        beyond = [name for name in (*(one.name for one in found.generations), *found.broken) if name < oldest]
        in_parallel(lambda name: self._retire(number, name), beyond)
        return PruneCounts(len(beyond), self._sweep(number, objects))

    def _fetching(self, manifest: Manifest) -> generation.CheckpointDownload:
        return generation.CheckpointDownload(self._objects, f"{_part(manifest.about.partition)}/objects", manifest.name)

    def _retire(self, number: int, name: str) -> None:
        old = f"{_part(number)}/manifests/{name}"
        try:
            data = self._objects.get(old, MANIFEST_BYTES_MAX)
        except FileNotFoundError:
            return  # another process prunes as well
        self._objects.put(f"{_part(number)}/retired/{name}", data)
        self._objects.delete(old)

    def _sweep(self, number: int, objects: dict[str, ListedObject]) -> int:
        """Remove unreferenced objects. Live manifests are read before retired ones are listed, so a manifest that
        another process retires meanwhile is found in one of both."""
        part = _part(number)
        manifests = self._objects.listing(f"{part}/manifests")
        live, unread = self._manifests(number, "manifests", [*manifests])
        retired = self._objects.listing(f"{part}/retired")
        now_ns = max(one.changed_ns for one in (*objects.values(), *manifests.values(), *retired.values(), NEVER))
        before_ns = now_ns - int(self._grace_s * 1e9)
        young = [name for name, one in retired.items() if one.changed_ns >= before_ns]
        left, unread_left = self._manifests(number, "retired", young)
        known = {one.name for one in (*live, *left)}
        for key in [key for key in self._read if key[0] == number and key[1] not in known]:
            del self._read[key]
        if unread or unread_left:
            return 0
        needed = {name for manifest in (*live, *left) for name in manifest.objects()}
        old = [name for name, one in objects.items() if name not in needed and one.changed_ns < before_ns]
        in_parallel(lambda name: self._objects.delete(f"{part}/objects/{name}"), old)
        gone = sorted(retired.keys() - set(young))
        in_parallel(lambda name: self._objects.delete(f"{part}/retired/{name}"), gone)
        return len(old)

    def _found(self, number: int) -> GenerationList:
        return self._manifests(number, "manifests", [*self._objects.listing(f"{_part(number)}/manifests")])

    def _manifests(self, number: int, folder: str, names: list[str]) -> GenerationList:
        good, broken = list[Manifest](), dict[str, CheckpointBroken]()
        for name in sorted((name for name in names if name.endswith(".json")), reverse=True):
            manifest = self._read.get((number, name))
            if manifest is None:
                try:
                    data = self._objects.get(f"{_part(number)}/{folder}/{name}", MANIFEST_BYTES_MAX)
                    manifest = generation.decode(name, data, number)
                except FileNotFoundError:
                    continue  # it was pruned since it was listed
                except CheckpointBroken as error:
                    broken[name] = error
                    continue
                self._read[number, name] = manifest
            good.append(manifest)
        return GenerationList(good, broken)


def lacking(manifest: Manifest, listed: dict[str, ListedObject]) -> list[str]:
    """Return the objects of a generation that a listing lacks, or shows with another size."""
    objects = manifest.objects().items()
    return [name for name, size in objects if name not in listed or listed[name].size != size]


def _part(number: int) -> str:
    return f"p{number:03d}"


SCRATCH = ".checkpoint-"


class CheckpointSaver:
    """Saver of checkpoints. `state_dir` holds temporary folders, on the disk of the state, so that tables are linked
    and not copied; leftovers of a killed process are removed. `keep` is the number of generations per partition."""

    def __init__(self, store: CheckpointStore, state_dir: Path, keep: int) -> None:
        self._store, self._state_dir, self._keep = store, state_dir, keep
        for left in state_dir.glob(f"{SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)

    def keep(self, number: int, make_folder: Callable[[Path], CheckpointOrigin]) -> SavedGeneration:
        """Save the folder that `make_folder` creates, and prune older generations. Raise CheckpointError, OSError
        and the errors of `make_folder`; the partition's generations are unchanged then."""
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self._state_dir) as scratch:
            folder = Path(scratch) / f"p{number:03d}"
            about = make_folder(folder)
            saved = self._store.save(number, folder, about)
        try:
            self._store.prune(number, self._keep)
        except CheckpointError as error:
            _log.warning("old checkpoints of state partition %d stay for now: %s", number, error)
        return saved
