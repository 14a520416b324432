"""Shared by tests of log readers: an export on disk, read by a command and applied by the engine."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import orjson

from recallflow.connectors.logs.log_format import ImportScope
from recallflow.connectors.logs.registry import Registry
from recallflow.connectors.logs.sources import open_source
from recallflow.errors import InvalidRecord
from recallflow.fields import parse_time
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.parsing import parse

ANN = {"tenant_id": "acme", "user_id": "ann"}


@dataclass
class Read:
    """Decodable `events`, refused lines, and counts of skipped entries."""

    format: str
    lines: list[bytes]
    events: list[dict[str, Any]]
    refused: list[bytes]
    skipped: Counter[str]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [one for one in self.events if one["type"] != "memory.update"]

    @property
    def updates(self) -> list[dict[str, Any]]:
        return [one for one in self.events if one["type"] == "memory.update"]

    def column(self, field: str) -> list[Any]:
        return [one.get(field) for one in self.messages]


def read(path: Path, **scope: Any) -> Read:
    """Read an export of a recognised format twice; both results must be equal."""
    logs, _ = Registry().logs_of(open_source(path))
    given = ImportScope(**ANN | scope)
    lines = [line for log in logs for line in log.read(given)]
    again = ImportScope(**ANN | scope)
    assert ([line for log in logs for line in log.read(again)], again.skipped) == (lines, given.skipped)
    events, refused = [], []
    for line in lines:
        try:
            parse(line)
        except InvalidRecord:
            refused.append(line)
        else:
            events.append(orjson.loads(line))
    ids = [one["id"] for one in events]
    assert len(set(ids)) == len(ids)
    return Read(logs[0].format.name, lines, events, refused, +given.skipped)


def ms(moment: str) -> int:
    return parse_time(moment)


def times(found: Iterable[dict[str, Any]]) -> list[int]:
    return [parse_time(one["timestamp"]) for one in found]


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@dataclass
class Kept:
    """An engine that applies logs one after the other. `outcomes` counts its receipts."""

    state_dir: Path

    def take(self, lines: Iterable[bytes]) -> Counter[str]:
        asked = [orjson.dumps(orjson.loads(line) | {"receipt": True}) for line in lines]
        done = process(asked, Settings(partitions=1), self.state_dir)
        outcomes = Counter(one["outcome"] for one in done.receipts)
        outcomes.update(one["error"]["code"] for one in done.rejected)
        return outcomes

    def contents(self, user: str = "ann") -> list[str]:
        query = ANN | {"type": "memories.list", "user_id": user, "id": "q", "limit": 100}
        done = process([orjson.dumps(query)], Settings(partitions=1), self.state_dir)
        return [one["content"] for one in reversed(done.responses[0]["memory_page"]["memories"])]

    def versions(self, memory_id: str, user: str = "ann") -> list[str]:
        query = ANN | {"type": "memory.history", "user_id": user, "id": "q", "memory_id": memory_id}
        done = process([orjson.dumps(query)], Settings(partitions=1), self.state_dir)
        return [one["content"] for one in done.responses[0]["versions"]]
