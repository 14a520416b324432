"""The state directory: one process at a time, a first start that may be killed, and a check that sees what is wrong."""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

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


def test_a_second_command_is_refused_and_touches_nothing(
    engine: Engine, log: Log, reader: Reader, topics: Topics, make_engine: Callable[..., Engine]
) -> None:
    engine.up()
    remember(log, reader)
    # the first one stands still, so that whatever changes is the second one's doing
    engine.pause()
    before = content(engine.state_dir)
    directory = ("--state-dir", engine.state_dir)
    line = b'{"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "x"}\n'
    commands: dict[str, list[str | Path]] = {
        "run": [*make_engine(topics, "--deployment", f"other-{topics.suffix}").words()[3:]],
        "pipe": ["pipe", *directory],
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


def test_a_first_start_that_was_killed_anywhere_starts_again(
    make_engine: Callable[..., Engine], topics: Topics, log: Log, reader: Reader
) -> None:
    def reached(files: int) -> bool:
        """Whether so many files are there, under the directory's own name or one beside it."""
        beside = engine.state_dir.parent.glob(f"*{engine.state_dir.name}*/**/*")
        return sum(path.is_file() for path in beside) >= files

    for files in (2, 6):  # of the 7 that an empty one has
        engine = make_engine(topics, "--deployment", f"{files}-{topics.suffix}", name=f"first-{files}-")
        engine.start()
        engine.until(partial(reached, files), "so far")
        engine.kill()
        engine.up()
        reader.alive = engine.running
        if files < 6:
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


def one_of_each_kind(folder: Path) -> Iterator[Path]:
    """Of what a start reads of a partition."""
    for pattern in ("p*/*.sst", "p*/MANIFEST-*", "p*/OPTIONS-*"):
        if found := sorted(path for path in folder.glob(pattern) if path.stat().st_size):
            yield max(found, key=lambda path: path.stat().st_size)


def test_a_flipped_byte_is_seen_by_verify_or_does_no_harm(engine: Engine, log: Log, reader: Reader) -> None:
    """What verify does not see stays flipped over the start at the end."""
    for _ in range(2):  # what the first run wrote is in tables by the second
        engine.up()
        remember(log, reader)
        assert engine.stop().code == 0
    assert engine.state("verify").code == 0
    seen = []
    for path in one_of_each_kind(engine.state_dir):
        whole = path.read_bytes()
        place = len(whole) // 3
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        ended = engine.state("verify")
        assert ended.plain, f"{path}: {ended}"
        if ended.code:
            seen.append(path.suffix)
            path.write_bytes(whole)
    assert ".sst" in seen
    engine.up()
    found = check(log, reader)
    assert found.clean(), found
