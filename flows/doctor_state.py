"""What `recallflow doctor` looks at on this machine: the state directory and its disk. Nothing there is written."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recallflow.embedder import Embedder
from recallflow.errors import RecallflowError, StateFormatError, UsageError
from recallflow.flows.config import Config
from recallflow.flows.encryption import open_at_rest
from recallflow.flows.finding import Finding, fail, ok, warn
from recallflow.private_files import open_to_others
from recallflow.state.directory import DESCRIPTION, describe, kept_fingerprint
from recallflow.state.fingerprint import check_settings
from recallflow.state.lock import holder
from recallflow.state.looking import unpurged_owners

FREE_LEAST_BYTES, FREE_GOOD_BYTES = 128 * 1024 * 1024, 2 * 1024 * 1024 * 1024
FREE_GOOD_SHARE = 0.1
OTHER_DIRECTORY = "give settings and master key that it was made with, or another directory (--state-dir)"
NEW_DIRECTORY = "keep it until recallflow run has filled another one (--state-dir) from the log"
RESTORE = "restore a checkpoint (recallflow state restore)"


def state_findings(
    config: Config, embedder: Embedder | None, directories: Callable[[Path], Sequence[Path]]
) -> Iterator[Finding]:
    """Examine the state of all processes of `run`.

    Args:
        config: The settings of `run`.
        embedder: None where it cannot be loaded, which another finding says.
        directories: Names the directories that the processes would open, and raises UsageError where the folder that
            is given holds the state of another number of processes.
    """
    path = config.state_dir
    if path is None:
        yield warn("state directory", "none is named, so that it is not looked at", "name it: --state-dir")
        return
    yield _disk(path)
    if not path.exists():
        yield _to_be_made(path)
        return
    try:
        found = directories(path)
    except UsageError as error:
        yield fail("state directory", str(error), "give --processes as the directory was filled, or split or merge it")
        return
    if [*found] == [path]:
        yield from _directory(path, config, embedder)
    else:
        yield from _members(path, found, config, embedder)


def _members(path: Path, found: Sequence[Path], config: Config, embedder: Embedder | None) -> Iterator[Finding]:
    """Examine the directories of several processes: what is true of many of them is one finding."""
    yield from _permissions(path)
    if (used := _used(path)) is not None:  # then its members are at work, each on a directory of its own
        yield used
        return
    filled = [folder for folder in found if (folder / DESCRIPTION).exists()]
    if missing := [folder.name for folder in found if folder not in filled]:
        yield ok("state directory", f"{', '.join(missing)} of {path} are not there yet: a first start makes them")
    others = sorted(one.parent.name for one in path.glob(f"*/{DESCRIPTION}") if one.parent not in found)
    if others:
        todo = "give --processes as the directory was filled, or leave it: their partitions are read again elsewhere"
        yield warn("state directory", f"{len(found)} processes do not use {', '.join(others)} of {path}", todo)
    said = dict[Finding, list[str]]()
    for folder in filled:
        for one in _directory(folder, config, embedder):
            said.setdefault(one, []).append(folder.name)
    yield from (one._replace(check=f"{one.check} of {', '.join(names)}") for one, names in said.items())


def _directory(path: Path, config: Config, embedder: Embedder | None) -> Iterator[Finding]:
    """Examine the state directory of one process."""
    try:
        yield from _tried("state directory", lambda: _described(path, config, embedder), OTHER_DIRECTORY)
    except StateFormatError as error:  # whatever else is in it, we cannot read
        yield fail("state directory", str(error), NEW_DIRECTORY)
        return
    yield from _permissions(path)
    if (used := _used(path)) is not None:
        yield used
        return
    yield ok("lock", "nobody holds it")
    if (path / DESCRIPTION).exists():
        yield from _tried("erasures", lambda: _erasures(path), RESTORE)


def _permissions(path: Path) -> Iterator[Finding]:
    """Warn of a directory that an older version, or somebody by hand, opened to other users of the machine."""
    if path.is_dir() and (wide := open_to_others(path)):
        shown = ", ".join(one.name for one in wide[:3]) + (", …" if len(wide) > 3 else "")
        what = f"other users of this machine may read or change {len(wide)} entries of {path} ({shown})"
        yield warn("permissions", what, f"chmod -R go-rwx {path}")


def _used(path: Path) -> Finding | None:
    """Who holds a directory, where somebody does."""
    try:
        used_by = holder(path)
    except RecallflowError as error:
        return fail("lock", str(error), "give this user the right to read and write there")
    todo = "if that is not the engine, stop it; what it works on is not looked at now"
    return None if used_by is None else warn("lock", f"{path} is in use by {used_by}", todo)


def _tried(check: str, look: Callable[[], Finding], todo: str) -> Iterator[Finding]:
    """`todo`: what to do where it finds fault."""
    try:
        yield look()
    except StateFormatError:
        raise
    except RecallflowError as error:
        yield fail(check, str(error), todo)
    except OSError as error:
        yield fail(check, f"cannot be read: {error}", "give this user the right to read it")


def _to_be_made(path: Path) -> Finding:
    parent = next(one for one in (*path.absolute().parents,) if one.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        return fail("state directory", f"{path} cannot be made in {parent}", "give this user the right to write there")
    return ok("state directory", f"{path} is not there yet: a first start makes it")


def _described(path: Path, config: Config, embedder: Embedder | None) -> Finding:
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return fail("state directory", f"{path} cannot be written to", "give this user the right to")
    if not any(path.iterdir()):
        return ok("state directory", f"{path} is empty: a first start fills it")
    stored = describe(path)
    stored.keyring(path, open_at_rest(config.encryption))
    if embedder is not None:
        check_settings(path, stored.fingerprint, kept_fingerprint(path, config.engine.fingerprint(embedder)))
    encrypted = "" if stored.secret.master_key is None else f", encrypted with {stored.secret.master_key}"
    return ok("state directory", f"{path}: {stored.fingerprint.partitions} state partitions{encrypted}")


def _erasures(path: Path) -> Finding:
    left = unpurged_owners(path, describe(path).fingerprint.partitions)
    if left:
        todo = "start the engine, which cleans them, or: recallflow erase … --verify"
        return warn("erasures", f"files may still hold something of {left} erased users", todo)
    return ok("erasures", "nothing is left to clean")


def _disk(path: Path) -> Finding:
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    used = shutil.disk_usage(there)
    what = f"{used.free:,} of {used.total:,} bytes are free at {there}"
    if used.free < FREE_LEAST_BYTES:
        return fail("disk", what, "free some: without room the engine stops, and nothing acknowledged is lost")
    if used.free < min(FREE_GOOD_BYTES, FREE_GOOD_SHARE * used.total):
        return warn("disk", what, "free some, or move the state directory to a larger disk")
    return ok("disk", what)
