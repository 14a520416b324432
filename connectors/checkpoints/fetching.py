"""Files on their way from the store: every piece is checked before it counts."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from recallflow.connectors.checkpoints.manifest import File, digest_of, pieces_of
from recallflow.connectors.checkpoints.objects import Objects
from recallflow.connectors.checkpoints.parallel import in_parallel
from recallflow.errors import CheckpointBroken
from recallflow.private_files import FILE_MODE, make_private_folder


class Fetching:
    """Of one generation. `folder`: of its objects."""

    def __init__(self, objects: Objects, folder: str, generation: str) -> None:
        self._objects = objects
        self._folder = folder
        self._generation = generation

    def fetch(self, files: Iterable[File], target: Path) -> None:
        """Writes them into a new folder, and makes them survive a power cut. Raises CheckpointBroken, and OSError where
        they cannot be written."""
        make_private_folder(target)
        kept = [*files]
        for file in kept:
            (target / file.name).touch(FILE_MODE)
        in_parallel(
            lambda part: self._write(target, *part), [(file, *part) for file in kept for part in pieces_of(file)]
        )
        in_parallel(_sync, [*(target / file.name for file in kept), target])

    def problems(self, files: Iterable[File], known: dict[str, str | None]) -> list[str]:
        """What is wrong with each file, if anything."""
        found = in_parallel(lambda file: self._problem(file, known), files)
        return [problem for problem in found if problem is not None]

    def _write(self, target: Path, file: File, piece: str, start: int, size: int) -> None:
        data = self._piece(file, piece, size)
        with (target / file.name).open("r+b") as written:
            written.seek(start)
            written.write(data)

    def _problem(self, file: File, known: dict[str, str | None]) -> str | None:
        for piece, _, size in pieces_of(file):
            if piece not in known:
                try:
                    self._piece(file, piece, size)
                    known[piece] = None
                except CheckpointBroken as error:
                    known[piece] = str(error)
            if (problem := known[piece]) is not None:
                return problem
        return None

    def _piece(self, file: File, piece: str, size: int) -> bytes:
        try:
            data = self._objects.get(f"{self._folder}/{piece}", size + 1)
        except FileNotFoundError:
            raise self._broken(file, piece, "is missing") from None
        if len(data) != size:
            raise self._broken(file, piece, f"has {'more' if len(data) > size else len(data)} than {size} bytes")
        if hashlib.sha256(data).hexdigest() != digest_of(piece):
            raise self._broken(file, piece, "is not what was saved: its SHA-256 is another")
        return data

    def _broken(self, file: File, piece: str, what: str) -> CheckpointBroken:
        return CheckpointBroken(f"{self._generation}: file {file.name}: object {self._folder}/{piece} {what}")


def _sync(path: Path) -> None:
    """Makes a file, or the names in a folder, survive a power cut."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
