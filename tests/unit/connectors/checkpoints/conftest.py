"""Stores in a folder and behind S3's protocol, and state partitions to save."""

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Checkpoint, Options, Rdict

from recallflow.connectors.checkpoints.generation import CheckpointOrigin
from recallflow.connectors.checkpoints.store import CheckpointStore
from tests.s3_server import S3Server

SOURCE = "memory.events:3"


class Grown:
    """A real RocksDB that grows, of which folders are made as `run` makes them."""

    def __init__(self, path: Path, first: int = 0) -> None:
        self.offset = first - 1
        self._path = path
        self._made = 0
        self._db: Any = Rdict(str(path), Options(raw_mode=True))

    def grow(self, records: int) -> None:
        for _ in range(records):
            self.offset += 1
            key = self.offset.to_bytes(8, "big")
            self._db[key] = hashlib.shake_256(key + self._path.name.encode()).digest(640)
        self._db.flush()

    def folder(self) -> Path:
        self._made += 1
        folder = self._path.with_name(f"{self._path.name}-{self._made}")
        Checkpoint(self._db).create_checkpoint(str(folder))
        (folder / "secret.json").write_text(f'{{"of": "{self._path.name}"}}')
        return folder

    def about(self, created_ms: int = 0) -> CheckpointOrigin:
        return about(self.offset, created_ms, self._path.name)

    def close(self) -> None:
        self._db.close()


def about(offset: int, created_ms: int = 0, run_id: str = "run") -> CheckpointOrigin:
    applied = {SOURCE: offset} if offset >= 0 else {}
    return CheckpointOrigin(
        8, 3, 16, SOURCE, applied, "acme", run_id, created_ms, {"embedder": "hash-384", "partitions": 16}
    )


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def objects(root: Path, part: str = "p003/objects") -> dict[str, Path]:
    """The objects of a store in a folder, by name."""
    folder = root / part
    return {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}


def age(root: Path, hours: float) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            changed_ns = path.stat().st_mtime_ns - int(hours * 3600e9)
            os.utime(path, ns=(changed_ns, changed_ns))


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as credentials, S3Server(credentials) as server:
        yield server


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return (tmp_path / "store").as_uri()
    server: S3Server = request.getfixturevalue("s3")
    return server.url(uuid.uuid4().hex)


@pytest.fixture
def store(url: str) -> CheckpointStore:
    return CheckpointStore.open(url)


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[Callable[..., Grown]]:
    made = list[Grown]()

    def make(name: str = "db", records: int = 20, first: int = 0) -> Grown:
        made.append(Grown(tmp_path / name, first))
        made[-1].grow(records)
        return made[-1]

    yield make
    for one in made:
        one.close()
