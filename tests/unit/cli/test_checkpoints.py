"""`recallflow checkpoints`: listing and verifying a store."""

from pathlib import Path

import orjson
import pytest

from recallflow.connectors.checkpoints.manifest import CheckpointOrigin
from recallflow.connectors.checkpoints.store import CheckpointStore
from tests.unit.cli.harness import Cli, assert_error, parsed


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return a store with two generations of one state partition, and one of another."""
    url = (tmp_path / "store").as_uri()
    store, folder = CheckpointStore.open(url), tmp_path / "folder"
    folder.mkdir()
    for number, offset in ((0, 7), (0, 1_234), (11, -1)):
        (folder / "1.sst").write_bytes(b"%d" % offset * 5)
        about = CheckpointOrigin(
            8, number, 16, f"memory.events:{number}", {f"memory.events:{number}": offset}, "acme", "run", 0, {}
        )
        store.save(number, folder, about)
    return url


def test_generations_are_listed_newest_first(cli: Cli, url: str) -> None:
    done = cli("checkpoints", "list", url)
    assert (done.returncode, done.stderr) == (0, "")
    names, *rows = (line.split() for line in done.stdout.splitlines())
    assert names == ["partition", "offset", "created", "deployment", "bytes", "generation"]
    assert [row[:5] for row in rows] == [
        ["0", "1,234", "1970-01-01T00:00:00Z", "acme", "20"],
        ["0", "7", "1970-01-01T00:00:00Z", "acme", "5"],
        ["11", "-1", "1970-01-01T00:00:00Z", "acme", "10"],
    ]
    listed = parsed(cli("checkpoints", "list", url, "--json").stdout)
    assert [(one["partition"], one["offset"], one["source"]) for one in listed] == [
        (0, 1234, "memory.events:0"), (0, 7, "memory.events:0"), (11, -1, "memory.events:11"),
    ]  # fmt: skip


def test_verify_reads_every_object_and_names_the_damaged(cli: Cli, url: str, tmp_path: Path) -> None:
    done = cli("checkpoints", "verify", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 generations of 3 objects\n")
    (of_the_other,) = (tmp_path / "store" / "p011" / "objects").iterdir()
    of_the_other.write_bytes(b"-1-1-1-1-2")
    last = max((tmp_path / "store" / "p000" / "manifests").iterdir())
    last.write_bytes(b"{")
    done = cli("checkpoints", "verify", url, "--json")
    assert done.returncode == 1
    found = orjson.loads(done.stdout)
    assert (found["generations"], found["objects"]) == (2, 2)
    assert [problem.split(": ")[0] for problem in found["problems"]] == ["p000", "p011"]
    assert "SHA-256" in found["problems"][1]
    assert cli("checkpoints", "verify", url).stdout.splitlines()[:2] == found["problems"]


def test_missing_store_is_named(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "mistyped").as_uri()
    assert_error(cli("checkpoints", "verify", url), 1, url)
    assert_error(cli("checkpoints", "list", url), 0, url)
    assert not (tmp_path / "mistyped").exists()
    assert_error(cli("checkpoints", "list", "ftp://host/x"), 2, "scheme: ftp")
