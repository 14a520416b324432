"""The description of a state directory: the settings that shape its data, its wrapped secret, and the logs that it
holds. All are small files, which are readable without keys and without opening a partition."""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import orjson

from recallflow.credentials import MasterKey
from recallflow.errors import MasterKeyError, RecallflowError, SettingsMismatch, StateError, StorageError, UsageError
from recallflow.language import ANALYSIS
from recallflow.private_files import make_private_folder, restrict
from recallflow.state import keys
from recallflow.state.encryption import SECRET_BYTES, AtRest, StoredSecret
from recallflow.state.files import read_checked, write_checked
from recallflow.state.folders import numbers_in, partition_folder, read_secret, write_secret
from recallflow.state.lock import LOCK, locked
from recallflow.state.partition import other_format

DESCRIPTION = "recallflow.json"
RESTORING = "recallflow.json.restoring"  # the description while a checkpoint is being restored
TOPICS = "topics.json"  # the registry of input topics, written before the first record
MOVED = "moved.json"  # in directories between which partitions were moved
CALLERS_LOG, SINGLE_RUN_LOG = "local", "lines"  # names of logs in positions: of calls, and of one command's lines


@dataclass(frozen=True)
class Fingerprint:
    """The settings that shape stored data. State written with other settings cannot be used."""

    partitions: int
    embedder: str
    dimension: int
    episode_gap_ms: int
    similarity_threshold: float
    similarity_max_k: int
    similarity_max_per_memory: int
    analysis: str = ANALYSIS


def check_same(path: Path, one: Fingerprint, other_path: Path, other: Fingerprint) -> None:
    if one != other:
        settings = [f"{name} is {value!r} and {others!r}" for name, value, others in _differences(one, other)]
        raise SettingsMismatch(f"{path} and {other_path} were created with different settings: {'; '.join(settings)}")


def check_settings(path: Path, stored: Fingerprint, given: Fingerprint) -> None:
    """Raise SettingsMismatch if a directory has other settings than the given ones."""
    differing = [f"{name} is {was!r} there and {ours!r} here" for name, was, ours in _differences(stored, given)]
    if stored.analysis != given.analysis:
        raise SettingsMismatch(
            f"{path} was built with the text analysis {stored.analysis!r}, this recallflow has {given.analysis!r}: "
            "use the version that built it, or start with a new directory, which reads the log anew"
        )
    if differing:
        other_model = (stored.embedder, stored.dimension) != (given.embedder, given.dimension)
        how = ", for which recallflow reembed computes the vectors of an embedding service" if other_model else ""
        raise SettingsMismatch(
            f"{path} was created with other settings: {'; '.join(differing)}. "
            f"Use the settings it was created with, or replay the log into a new directory{how}"
        )


def _differences(one: Fingerprint, other: Fingerprint) -> list[tuple[str, object, object]]:
    others = asdict(other)
    return [(name, value, others[name]) for name, value in asdict(one).items() if value != others[name]]


class DirectoryDescription(NamedTuple):
    """The description of a state directory: the settings of its creation, and its stored secret."""

    fingerprint: Fingerprint
    secret: StoredSecret


@contextlib.contextmanager
def hold(path: Path, wait_s: float | None = None, *, create: bool = False) -> Iterator[None]:
    """Lock a state directory, and optionally create it. Raise StateError for a folder with other contents."""
    with using(path):
        is_new = not (path / DESCRIPTION).exists()
        if is_new and not create and _inner_directories(path):  # before the lock, which the members' supervisor holds
            raise _no_directory(path)
        if is_new and not (path / LOCK).exists():
            if not create:
                raise _no_directory(path)
            make_private_folder(path)
            _check_new(path)
            restrict(path)  # an existing empty folder becomes a state directory
    with locked(path, wait_s):
        yield


def adopt_partition_count(path: Path, chosen: Fingerprint) -> Fingerprint:
    """Return the configured fingerprint, with the partition count of an existing directory. Raise StateError."""
    if not (path / DESCRIPTION).exists():
        return chosen
    return replace(chosen, partitions=describe(path).fingerprint.partitions)


def describe(path: Path) -> DirectoryDescription:
    """Return the settings of a state directory's creation. It needs no key."""
    try:
        version = orjson.loads((path / DESCRIPTION).read_bytes())["format_version"]
        if version == keys.FORMAT_VERSION:
            stored = read_checked(path / DESCRIPTION)
            return DirectoryDescription(Fingerprint(**stored["settings"]), StoredSecret.of(stored))
    except (FileNotFoundError, NotADirectoryError):
        raise _no_directory(path) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path / DESCRIPTION} cannot be read ({error}): restore it from a checkpoint") from error
    raise other_format(path, version)


def _no_directory(path: Path) -> RecallflowError:
    if (path / RESTORING).exists():
        return StateError(f"{path} holds a restore that was stopped in the middle: restore it again")
    if not path.exists():
        return UsageError(absence_message(path))
    if inner := _inner_directories(path):
        named = ", ".join(map(str, inner))
        return StateError(f"{path} is no state directory, but holds directories of members: give one of {named}")
    return StateError(f"{path} is no state directory: it has no {DESCRIPTION}")


def _inner_directories(path: Path) -> list[Path]:
    return sorted(one.parent for one in path.glob(f"*/{DESCRIPTION}"))


def absence_message(path: Path) -> str:
    """Return the error of a missing state directory, with a similarly named one."""
    siblings = [one.name for one in _inner_directories(path.absolute().parent)]
    near = "".join(f"; did you mean {path.with_name(one)}?" for one in get_close_matches(path.name, siblings, 1))
    return f"there is no state directory {path}{near or '; give the directory that `run` or `--create` wrote'}"


def create_description(path: Path, fingerprint: Fingerprint, at_rest: AtRest) -> None:
    """Describe a new state directory, with a new secret. Raise StateError for a folder with other contents."""
    secret = StoredSecret.wrapped(secrets.token_bytes(SECRET_BYTES), at_rest.master_key)
    with using(path):
        _check_new(path)
        write_description(path, DirectoryDescription(fingerprint, secret))


def write_description(path: Path, description: DirectoryDescription) -> None:
    settings = asdict(description.fingerprint)
    fields = {"format_version": keys.FORMAT_VERSION, "settings": settings, **description.secret.fields()}
    write_checked(path / DESCRIPTION, fields)


def _check_new(path: Path) -> None:
    """Raise StateError for a folder with foreign files. Files of an interrupted first start are allowed."""
    if (path / RESTORING).exists():
        raise _no_directory(path)
    others = {entry.name for entry in path.iterdir()} - {LOCK, f"{DESCRIPTION}.new"}
    if others:
        raise StateError(f"{path} holds other files ({', '.join(sorted(others)[:3])}, …): give an empty or new folder")


@contextlib.contextmanager
def using(path: Path) -> Iterator[None]:
    """Convert system errors about a directory into StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot use {path} as a state directory: {error.strerror}") from error


def reads_topics(state_dir: Path) -> bool:
    return (state_dir / TOPICS).exists()


def read_topic_ids(state_dir: Path) -> dict[str, str]:
    """Return the id of each topic that a directory reads, by name. Empty where it was never given topics to read."""
    if not reads_topics(state_dir):
        return {}
    known = read_checked(state_dir / TOPICS)
    return {topic: known["ids"].get(topic, "") for topic in known["read"].values()}


def record_move(source: Path, target: Path) -> None:
    """Record in both directories that partitions were moved, and copy the source's topics to the target."""
    for path in (source, target):
        write_checked(path / MOVED, {})
    if reads_topics(source) and not reads_topics(target):
        write_checked(target / TOPICS, read_checked(source / TOPICS))


def rewrap(path: Path, at_rest: AtRest, master_key: MasterKey) -> None:
    """Wrap the secret of an encrypted state directory, and those of moved-in folders, with another master key. Each is
    replaced atomically, the directory's own last, so that an interrupted run can be repeated with the same two keys.
    Raise MasterKeyError if either key is unusable."""
    with hold(path):
        stored = describe(path)
        if stored.secret.master_key is None:
            raise MasterKeyError(f"{path} is not encrypted: replay the log into a new directory with a master key")
        folders = [partition_folder(path, number) for number in numbers_in(path)]
        found = {folder: secret for folder in folders if (secret := read_secret(folder)) is not None}
        renewed = dict[StoredSecret, StoredSecret]()  # folders often have the same one, which is wrapped once
        for where, secret in {path: stored.secret, **found}.items():
            if secret not in renewed:
                renewed[secret] = _rewrapped(where, secret, at_rest.master_key, master_key)
        with using(path):
            for folder, secret in found.items():
                write_secret(folder, renewed[secret])
            write_description(path, stored._replace(secret=renewed[stored.secret]))


def _rewrapped(path: Path, secret: StoredSecret, old: MasterKey | None, new: MasterKey) -> StoredSecret:
    if secret.master_key == new.name != (old and old.name):
        secret.opened(path, new)  # done before a kill
        return secret
    wrapped = StoredSecret.wrapped(secret.opened(path, old), new)
    wrapped.opened(path, new)  # with a key that does not unwrap, the directory would be lost
    return wrapped
