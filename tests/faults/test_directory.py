"""The state directory: one process at a time, a first start that may be killed, and a check that sees what is wrong."""

import hashlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.torture.checker import check, settled
from benchmarks.torture.engine import Engine, command
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics


def content(folder: Path) -> dict[str, str]:
    """Every file of a folder by the hash of its bytes. A lock's own file counts as well."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def remember(log: Log, reader: Reader, count: int = 20) -> None:
    for number in range(count):
        log.tell(f"user{number % 5}", content=f"walnut number {number}")
        log.ask(f"user{number % 5}", "recall", query="walnut")
    log.flush()
    assert reader.until(lambda: settled(log, reader))


def test_every_second_command_is_refused_and_touches_nothing(
    engine: Engine, log: Log, reader: Reader, topics: Topics, tmp_path: Path, make_engine: Callable[..., Engine]
) -> None:
    engine.up()
    remember(log, reader)
    checkpoint = tmp_path / "checkpoint"
    # the first one stands still, so that whatever changes is the second one's doing
    engine.pause()
    before = content(engine.state_dir)
    directory = ("--state-dir", engine.state_dir)
    line = b'{"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "x"}\n'
    commands: dict[str, list[str | Path]] = {
        "run": [*make_engine(topics, "--deployment", f"other-{topics.suffix}").words()[3:]],
        "remember": ["remember", "a walnut", *directory],
        "pipe": ["pipe", *directory],
        "checkpoint": ["state", "checkpoint", *directory, checkpoint],
        "rebuild": ["state", "rebuild", *directory],
        "restore": ["state", "restore", *directory, tmp_path],
    }
    for name, words in commands.items():
        ended = command(*words, text=line)
        assert ended.code in (1, 2), f"{name}: {ended}"
        assert ended.plain, f"{name}: {ended}"
        assert content(engine.state_dir) == before, name
    engine.go_on()
    remember(log, reader)
    assert engine.stop().code == 0
    engine.up()
    found = check(log, reader)
    assert found.clean(), found
    assert engine.stop().code == 0
    assert engine.state("verify").code == 0


def test_a_first_start_that_was_killed_anywhere_starts_again(
    make_engine: Callable[..., Engine], topics: Topics, log: Log, reader: Reader
) -> None:
    def reached(files: int) -> bool:
        """Whether so many files are there, under the directory's own name or one beside it."""
        beside = engine.state_dir.parent.glob(f"*{engine.state_dir.name}*/**/*")
        return sum(path.is_file() for path in beside) >= files

    for files in (1, 2, 3, 30):
        engine = make_engine(topics, "--deployment", f"{files}-{topics.suffix}", name=f"first-{files}-")
        engine.start()
        engine.until(partial(reached, files), "so far")
        engine.kill()
        engine.up()
        reader.alive = engine.running
        if files < 30:
            engine.kill()
    remember(log, reader)
    found = check(log, reader)
    assert found.clean(), found
    assert engine.stop().code == 0


def test_a_first_start_on_a_full_disk_says_so_and_starts_once_there_is_room(
    engine: Engine, log: Log, reader: Reader
) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096))"
    words = engine.words()
    ended = command(*words[3:], setup=limit)
    assert ended.code == 1, ended
    assert ended.plain, ended
    engine.up()
    remember(log, reader)
    assert engine.stop().code == 0


def kinds_of(folder: Path) -> dict[str, Path]:
    """The largest file of each kind that a start reads: of a partition that holds something, and of recovery."""
    kinds: dict[str, Path] = {}
    for path in sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size):
        name = path.relative_to(folder).parts
        kind = f"{name[0][:1]}/{path.suffix}" if path.suffix in (".sst", ".sqlite3") else f"{path.name.split('-')[0]}"
        if kind not in ("LOG", "LOCK", "IDENTITY", "LOG.old") and not kind.startswith("LOG.") and path.stat().st_size:
            kinds[kind] = path
    return kinds


def test_verify_sees_a_flipped_byte_wherever_a_start_reads_it(engine: Engine, log: Log, reader: Reader) -> None:
    engine.up()
    remember(log, reader)
    assert engine.stop().code == 0
    assert engine.state("verify").code == 0
    unseen = []
    for kind, path in kinds_of(engine.state_dir).items():
        whole = path.read_bytes()
        for place in (len(whole) // 3,):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
            ended = engine.state("verify")
            assert ended.plain, f"{kind}: {ended}"
            if ended.code == 0:
                unseen.append(str(path.relative_to(engine.state_dir)))
        path.write_bytes(whole)
    assert unseen == []
    assert engine.state("verify").code == 0
    engine.up()
    assert check(log, reader).clean()


@pytest.mark.parametrize("lost", ["emptied", "removed", "one file"])
def test_a_recovery_store_that_is_lost_is_named_and_given_up_by_order(
    engine: Engine, log: Log, reader: Reader, topics: Topics, lost: str
) -> None:
    engine.up()
    remember(log, reader)
    assert engine.stop().code == 0
    recovery = engine.state_dir / "recovery"
    if lost == "one file":
        next(path for path in sorted(recovery.iterdir()) if path.is_file()).unlink()
    else:
        shutil.rmtree(recovery)
        if lost == "emptied":
            recovery.mkdir()
    verified = engine.state("verify")
    assert verified.code == 1, verified
    ended = engine.ends()
    assert ended.code == 1, ended
    assert ended.plain, ended
    given_up = engine.state("rebuild", "--give-up-unanswered", *topics.queries())
    assert given_up.code == 0, given_up
    engine.up()
    remember(log, reader)
    found = check(log, reader)
    assert found.clean(), found
