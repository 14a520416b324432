"""The description of a state directory: the settings that shape its data, its wrapped secret, and the topics that it
reads. All are small files, which are readable without keys and without opening a partition."""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import orjson

from recallflow.credentials import MasterKey
from recallflow.errors import MasterKeyError, RecallflowError, SettingsMismatch, StateError, UsageError
from recallflow.language.analysis import ANALYSIS
from recallflow.private_files import make_private_folder, restrict
from recallflow.state import keys
from recallflow.state.encryption import SECRET_BYTES, AtRest, StoredSecret
from recallflow.state.files import read_checked, storage_errors, write_checked
from recallflow.state.folders import numbers_in, partition_folder, read_secret, write_secret
from recallflow.state.lock import LOCK, locked
from recallflow.state.partition import other_format

DESCRIPTION = "recallflow.json"
RESTORING = "recallflow.json.restoring"  # the description while a checkpoint is being restored
TOPICS = "topics.json"  # names and ids of the input topics, written before the first record is applied
MOVED = "moved.json"  # an empty marker in directories that gave or got moved partitions
# Log names in positions of records without a topic: calls of this process, and lines that one command reads.
CALLERS_LOG, SINGLE_RUN_LOG = "local", "lines"


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


def check_settings(path: Path, stored: Fingerprint, configured: Fingerprint) -> None:
    """Raise SettingsMismatch if a directory was created with other settings than the configured ones."""
    differences = _differences(stored, configured)
    if stored.analysis != configured.analysis:
        raise SettingsMismatch(
            f"{path} was built with the text analysis {stored.analysis!r}, this recallflow has "
            f"{configured.analysis!r}: use the version that built it, or replay the log into a new directory"
        )
    if differences:
        other_model = (stored.embedder, stored.dimension) != (configured.embedder, configured.dimension)
        how = " (recallflow reembed computes the vectors of an embedding service for it)" if other_model else ""
        settings = [f"{name} is {was!r} there and {now!r} in the configuration" for name, was, now in differences]
        raise SettingsMismatch(
            f"{path} was created with other settings: {'; '.join(settings)}. "
            f"Use the settings it was created with, or replay the log into a new directory{how}"
        )


def _differences(one: Fingerprint, other: Fingerprint) -> list[tuple[str, object, object]]:
    others = asdict(other)
    return [(name, value, others[name]) for name, value in asdict(one).items() if value != others[name]]


class DirectoryDescription(NamedTuple):
    """The settings with which a state directory was created, and its stored secret."""

    fingerprint: Fingerprint
    secret: StoredSecret


@contextlib.contextmanager
def hold(path: Path, *, create: bool = False) -> Iterator[None]:
    """Lock a state directory, and optionally create it. Raise StateError for a folder with other contents."""
    with storage_errors(path):
        is_new = not (path / DESCRIPTION).exists()
        # A folder of members' directories is refused before the lock, because their supervisor holds the lock.
        if is_new and not create and _inner_directories(path):
            raise _no_directory(path)
        if is_new and not (path / LOCK).exists():
            if not create:
                raise _no_directory(path)
            make_private_folder(path)
            _check_new(path)
            restrict(path)  # an existing empty folder becomes a state directory
    with locked(path):
        yield


def adopt_partition_count(path: Path, configured: Fingerprint) -> Fingerprint:
    """Return the configured settings, with the partition count of the directory if it exists. Raise StateError."""
    if not (path / DESCRIPTION).exists():
        return configured
    return replace(configured, partitions=describe(path).fingerprint.partitions)


def describe(path: Path) -> DirectoryDescription:
    """Read the description of a state directory, without a key. Raise UsageError or StateError."""
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
        return StateError(f"a restore of {path} was interrupted: restore it again")
    if not path.exists():
        return UsageError(absence_message(path))
    if inner := _inner_directories(path):
        problem = f"{path} is no state directory, but contains state directories of members"
        return StateError(f"{problem}: give one of {', '.join(map(str, inner))}")
    return StateError(f"{path} is no state directory: it has no {DESCRIPTION}")


def _inner_directories(path: Path) -> list[Path]:
    return sorted(one.parent for one in path.glob(f"*/{DESCRIPTION}"))


def absence_message(path: Path) -> str:
    """Return the error message for a missing state directory. It suggests one with a similar name."""
    siblings = [one.name for one in _inner_directories(path.absolute().parent)]
    hints = [f"did you mean {path.with_name(one)}?" for one in get_close_matches(path.name, siblings, 1)]
    hint = "".join(hints) or "give the directory that `run` or `--create` wrote"
    return f"there is no state directory {path}; {hint}"


def create_description(path: Path, fingerprint: Fingerprint, at_rest: AtRest) -> None:
    """Describe a new state directory, with a new secret. Raise StateError for a folder with other contents."""
    secret = StoredSecret.wrapped(secrets.token_bytes(SECRET_BYTES), at_rest.master_key)
    with storage_errors(path):
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


def reads_topics(state_dir: Path) -> bool:
    return (state_dir / TOPICS).exists()


def read_topic_ids(state_dir: Path) -> dict[str, str]:
    """Return the id of each topic that a directory reads, by name. Empty for a directory that has read no topic."""
    if not reads_topics(state_dir):
        return {}
    registry = read_checked(state_dir / TOPICS)
    return {topic: registry["ids"].get(topic, "") for topic in registry["read"].values()}


def record_move(source: Path, target: Path) -> None:
    """Record in both directories that partitions were moved, and copy the source's topics to the target."""
    for path in (source, target):
        write_checked(path / MOVED, {})
    if reads_topics(source) and not reads_topics(target):
        write_checked(target / TOPICS, read_checked(source / TOPICS))


def rewrap(path: Path, at_rest: AtRest, master_key: MasterKey) -> None:
    """Wrap the secrets of an encrypted state directory, and of folders moved into it, with another master key. Each is
    replaced atomically, the directory's own last, so that an interrupted run can be repeated with the same two keys.
    Raise MasterKeyError if either key is unusable."""
    with hold(path):
        stored = describe(path)
        if stored.secret.master_key is None:
            raise MasterKeyError(f"{path} is not encrypted: replay the log into a new directory with a master key")
        folders = [partition_folder(path, number) for number in numbers_in(path)]
        own_secrets = {folder: secret for folder in folders if (secret := read_secret(folder)) is not None}
        rewrapped = dict[StoredSecret, StoredSecret]()  # by old form: folders often share one
        for owner, secret in {path: stored.secret, **own_secrets}.items():
            if secret not in rewrapped:
                rewrapped[secret] = _rewrapped(owner, secret, at_rest.master_key, master_key)
        with storage_errors(path):
            for folder, secret in own_secrets.items():
                write_secret(folder, rewrapped[secret])
            write_description(path, stored._replace(secret=rewrapped[stored.secret]))


def _rewrapped(path: Path, secret: StoredSecret, old: MasterKey | None, new: MasterKey) -> StoredSecret:
    if secret.master_key == new.name != (old and old.name):
        secret.opened(path, new)  # an interrupted earlier run wrapped it
        return secret
    wrapped = StoredSecret.wrapped(secret.opened(path, old), new)
    wrapped.opened(path, new)  # if the new key cannot unwrap, writing this secret would lose the directory
    return wrapped
