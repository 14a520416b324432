"""`recallflow checkpoints`: what a store of checkpoints holds, and whether it is what was saved."""

from pathlib import Path

import orjson
import pytest

from recallflow.connectors.checkpoints.manifest import About
from recallflow.connectors.checkpoints.store import CheckpointStore
from tests.unit.cli.harness import Cli


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two generations of one state partition, and one of another."""
    url = (tmp_path / "store").as_uri()
    store, folder = CheckpointStore.open(url), tmp_path / "folder"
    folder.mkdir()
    for number, offset in ((0, 7), (0, 1_234), (11, -1)):
        (folder / "1.sst").write_bytes(b"%d" % offset * 5)
        about = About(
            8, number, 16, f"memory.events:{number}", {f"memory.events:{number}": offset}, "acme", "run", 0, {}
        )
        store.save(number, folder, about)
    return url


def test_generations_are_listed_the_newest_first(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest's workers may set: a row is one line in a pipe
    done = cli("checkpoints", "list", url)
    assert (done.returncode, done.stderr) == (0, "")
    names, *rows = (line.split() for line in done.stdout.splitlines())
    assert names == ["partition", "offset", "created", "deployment", "bytes", "generation"]
    assert [row[:5] for row in rows] == [
        ["0", "1,234", "1970-01-01T00:00:00Z", "acme", "20"],
        ["0", "7", "1970-01-01T00:00:00Z", "acme", "5"],
        ["11", "-1", "1970-01-01T00:00:00Z", "acme", "10"],
    ]
    listed = [orjson.loads(line) for line in cli("checkpoints", "list", url, "--json").stdout.splitlines()]
    assert [(one["partition"], one["offset"], one["source"]) for one in listed] == [
        (0, 1234, "memory.events:0"),
        (0, 7, "memory.events:0"),
        (11, -1, "memory.events:11"),
    ]


def test_every_object_is_read_and_all_that_is_wrong_is_said(cli: Cli, url: str, tmp_path: Path) -> None:
    done = cli("checkpoints", "verify", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "3 generations of 3 objects\neverything was read, and is what was saved\n"
    (of_the_other,) = (tmp_path / "store" / "p011" / "objects").iterdir()
    of_the_other.write_bytes(b"-1-1-1-1-2")
    last = max((tmp_path / "store" / "p000" / "manifests").iterdir())
    last.write_bytes(b"{")
    done = cli("checkpoints", "verify", url, "--json")
    assert done.returncode == 1
    found = orjson.loads(done.stdout)
    assert (found["generations"], found["objects"]) == (2, 2)
    assert [problem.split(": ")[0] for problem in found["problems"]] == ["p000", "p011"]
    assert found["problems"][1].endswith("is not what was saved: its SHA-256 is another")
    assert cli("checkpoints", "verify", url).stdout.splitlines()[:2] == found["problems"]


def test_where_there_is_nothing_it_is_said(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "mistyped").as_uri()
    done = cli("checkpoints", "verify", url)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"recallflow: {url}: there are no checkpoints\n")
    assert cli("checkpoints", "list", url).stderr == f"recallflow: {url}: there are no checkpoints\n"
    assert not (tmp_path / "mistyped").exists()
    done = cli("checkpoints", "list", "ftp://host/x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("recallflow: URL of checkpoints (ftp://host/x): scheme: ftp is none of ")
