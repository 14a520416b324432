"""The loop over lines, cut at its commits by simulated crashes: nothing is lost, and nothing counts twice."""

import gc
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from recallflow.cli.replay_jobs import RejectsFile
from recallflow.connectors.local_inputs import Delivered
from recallflow.errors import LogChanged
from recallflow.flows import embedded as module
from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.settings import Settings
from recallflow.operators import large
from recallflow.outputs import Answer, DeadLetter
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.hot_owner import HotOwners
from recallflow.state.partition import Partition
from tests.event_log import CHANGES, CREATIONS, QUERIES, final_questions, hash_of, kind_of, make_log

LOG, LINES, BATCH = "log", 80, 8
NOW_MS = 1_750_000_000_000
SETTINGS = Settings(embedder="hash", partitions=2, sync_ms=60_000)
OWNER = {"tenant_id": "acme", "user_id": "ann", "timestamp": 0}


class Crash(BaseException):
    """The simulated end of the process."""


class Replay:
    """A log that is replayed into a directory, with its rejects file and its answers by offset."""

    def __init__(self, folder: Path, lines: Sequence[bytes]) -> None:
        folder.mkdir(exist_ok=True)
        self.state_dir, self._lines = folder / "s", lines
        self._rejects = folder / "rejects.jsonl"
        self.answers: dict[int, dict[str, Any]] = {}
        self.resumed: list[int] = []

    def run(self) -> None:
        rejects = RejectsFile(self._rejects)

        def open_feed(offset: int, pass_over: Callable[[bytes], object]) -> Iterator[list[bytes]]:
            self.resumed.append(offset)
            for line in self._lines[:offset]:
                pass_over(line)
            lines = self._lines[offset:]
            return iter([[*lines[at : at + BATCH]] for at in range(0, len(lines), BATCH)])

        def deliver(offset: int, outputs: list[Delivered]) -> None:
            for output in outputs:
                if isinstance(output, DeadLetter):
                    rejects.add(offset + 1, output)
                elif isinstance(output, Answer):
                    self.answers[offset] = orjson.loads(output.body)

        with EmbeddedEngine.open(SETTINGS, self.state_dir) as embedded:
            run_lines(embedded, LOG, open_feed, deliver, is_replayable=True, clock_ms=lambda: NOW_MS)

    def rejected(self) -> list[bytes]:
        return sorted(self._rejects.read_bytes().splitlines())

    def usage(self) -> list[bytes]:
        """Return the stored usage of memories, which the state hash leaves out."""
        with StateDirectory.existing(self.state_dir) as directory:
            stored = [pair for one in directory.existing_partitions() for pair in one.scan(keys.OWNERS)]
        return sorted(value for key, value in stored if keys.split(key)[1] == keys.USAGE)

    def kept(self) -> int:
        """Return the number of outputs that are kept until they are delivered."""
        with StateDirectory.existing(self.state_dir) as directory:
            return sum(len([*one.scan(keys.OUTBOX)]) for one in directory.existing_partitions())


class Crashes:
    """Ends the process before one of its commits, syncs and deliveries: nothing is written from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left: int | None = None
        for owner, name in ((Partition, "commit"), (StateDirectory, "sync"), (RejectsFile, "add")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        monkeypatch.setattr(HotOwners, "pack_tails", lambda *_: None)

    def until_done(self, replay: Replay, steps: Iterator[int]) -> int:
        """Run a replay again and again, with a crash after so many steps. Return the number of crashes."""
        for crashes in count():
            self._left = next(steps)
            try:
                replay.run()
            except Crash:
                gc.collect()  # frames of the crash hold iterators of the database
            else:
                self._left = None
                return crashes
        raise AssertionError

    def _counted(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    self._left = None
                    raise Crash
            return whole(*given, **named)

        return counted


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> Crashes:
    return Crashes(monkeypatch)


def sync_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an hour pass between two looks at the clock."""
    hours = count()
    clock = SimpleNamespace(monotonic=lambda: next(hours) * 3_600.0, time_ns=time.time_ns)
    monkeypatch.setattr(module, "time", clock)


@pytest.mark.parametrize("settles", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_crashes_at_any_commits_change_nothing(
    tmp_path: Path, crashes: Crashes, monkeypatch: pytest.MonkeyPatch, seed: int, settles: bool
) -> None:
    """Most lines have no id, so that a line that is applied twice changes the hash."""
    asked = [line for line in final_questions() if kind_of(line) == "recall"]
    lines = make_log(seed, LINES, nameless=[*CREATIONS, *CHANGES, *QUERIES])
    lines = [line for at, told in enumerate(lines) for line in (told, asked[at % len(asked)])[: 1 + (at % 4 == 3)]]
    whole, cut = Replay(tmp_path / "whole", lines), Replay(tmp_path / "cut", lines)
    if settles:
        sync_each_batch(monkeypatch)
    whole.run()
    draw = Random(seed)
    # Without settled positions every run begins at the first line: later crashes fall further behind.
    steps = (draw.randint(4, 24) if settles else 6 * n + draw.randint(3, 9) for n in count())
    assert crashes.until_done(cut, steps) >= 3
    assert hash_of(cut.state_dir) == hash_of(whole.state_dir)
    assert cut.rejected() == whole.rejected()
    assert cut.answers.keys() == {number for number, line in enumerate(lines) if kind_of(line) in QUERIES}
    assert cut.answers.keys() == whole.answers.keys()
    assert cut.usage() == whole.usage()
    assert (max(cut.resumed) > 0) is settles
    assert cut.kept() == whole.kept() == 0


def test_finished_replay_reads_nothing_again(tmp_path: Path) -> None:
    lines = make_log(1, 30)
    replay = Replay(tmp_path, lines)
    replay.run()
    replay.run()
    assert replay.resumed == [0, len(lines)]


@pytest.mark.parametrize(
    "changed",
    [
        lambda lines: [lines[0], b"{}", *lines[2:]],
        lambda lines: lines[:5],
        lambda lines: [lines[0], lines[1][:-1], lines[1][-1:] + lines[2], *lines[3:]],
    ],
    ids=["edited", "cut", "other_line_ends"],
)
def test_changed_log_is_refused(tmp_path: Path, changed: Callable[[list[bytes]], list[bytes]]) -> None:
    lines = make_log(1, 30)
    Replay(tmp_path, lines).run()
    before = hash_of(tmp_path / "s")
    with pytest.raises(LogChanged):
        Replay(tmp_path, [*changed(lines), *make_log(2, 5)]).run()
    assert hash_of(tmp_path / "s") == before


def test_stepwise_event_continues_after_a_crash(
    tmp_path: Path, crashes: Crashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "READ_MAX", 2)
    monkeypatch.setattr(large, "STEP_WEIGHT", 3)
    sync_each_batch(monkeypatch)
    said = [{"type": "message", "id": f"m{n}", "session_id": "s", "content": f"tea {n}"} | OWNER for n in range(24)]
    forget = {"type": "memory.forget", "filter": {"session_id": "s"}, "receipt": True} | OWNER
    later = {"type": "message", "id": "later", "session_id": "s", "content": "coffee"} | OWNER
    lines = [orjson.dumps(event) for event in (*said, forget, later)]
    whole, cut = Replay(tmp_path / "whole", lines), Replay(tmp_path / "cut", lines)
    whole.run()
    assert crashes.until_done(cut, iter([*range(4, 20), 1_000])) > 3
    assert hash_of(cut.state_dir) == hash_of(whole.state_dir)


def test_older_partition_folder_reads_missing_lines_again(tmp_path: Path) -> None:
    """The folder of one state partition is restored from a copy. The other passes over the lines."""
    lines = make_log(4, 90, nameless=[*CREATIONS, *CHANGES])
    first, whole = Replay(tmp_path / "s", lines[:45]), Replay(tmp_path / "whole", lines)
    whole.run()
    first.run()
    shutil.copytree(first.state_dir / "p001", tmp_path / "copy")
    grown = Replay(tmp_path / "s", lines)
    grown.run()
    shutil.rmtree(grown.state_dir / "p001")
    (tmp_path / "copy").rename(grown.state_dir / "p001")
    assert hash_of(grown.state_dir) != hash_of(whole.state_dir)
    grown.run()
    assert grown.resumed == [45, 45]
    assert hash_of(grown.state_dir) == hash_of(whole.state_dir)
