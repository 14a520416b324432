"""`recallflow erase`: erasure in a directory that is not in use, and the search for traces that are left in files."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from recallflow.background import Patience
from recallflow.brokers.options import KafkaOptions
from recallflow.errors import DecryptionFailed, RecallflowError, SourceError, StateError, StorageError, UsageError
from recallflow.events import PRODUCTION, UserErase
from recallflow.flows.config import Config
from recallflow.flows.embedded import process
from recallflow.flows.export import export
from recallflow.flows.security_settings import open_at_rest
from recallflow.flows.settings import MINUTE_MS, Settings
from recallflow.operators import outbox
from recallflow.owner import Owner, state_partition
from recallflow.records import Position
from recallflow.state import keys
from recallflow.state.at_rest import AtRest
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.ciphers import SEALED
from recallflow.state.directory import StateDirectory, describe
from recallflow.state.fingerprint import Fingerprint
from recallflow.state.folders import numbers_in, partition_folder, read_secret
from recallflow.state.keyring import Keyring
from recallflow.state.person import Fields
from recallflow.state.searching import Findings, Known, Pieces, search_folder
from recallflow.state.traces import Traces

LOOK_S = 1.0  # between two searches


class ErasedFolder(NamedTuple):
    """What became of an erasure in a folder. `held`: whether there was anything to erase. `unpurged`: why files may
    still hold it, though nothing can read it any more; empty where none does."""

    held: bool
    unpurged: str


def erase_directory(config: Config, path: Path, events: Sequence[UserErase]) -> ErasedFolder:
    """Applies the events to a state directory or a checkpoint, and purges its files. Raises StateInUse where a process
    has it open, and RecallflowError where an event is refused."""
    settings = _settings_of(config.engine, describe(path).fingerprint)
    lines = [event.model_dump_json(exclude_none=True).encode() for event in events]
    at_rest = open_at_rest(config.encryption)
    with StateDirectory.existing(path, CACHE_BYTES, at_rest) as directory:
        held = any(is_known(directory, event) for event in events)
    processed = process(lines, settings, path, models=config.models, at_rest=at_rest)
    if processed.rejected:
        raise RecallflowError(processed.rejected[0]["error"]["message"])
    try:
        with StateDirectory.existing(path, CACHE_BYTES, at_rest) as directory:
            directory.finish_cleaning()
    except StorageError as error:
        return ErasedFolder(held, str(error))
    return ErasedFolder(held, "")


def is_known(directory: StateDirectory, event: UserErase) -> bool:
    """Whether anything is held on the user whom the event erases, where it does."""
    number = state_partition(event.tenant_id, event.user_id, directory.fingerprint.partitions)
    return any(map(event.covers, directory.partition(number).owners_of(event.tenant_id, event.user_id)))


def _settings_of(settings: Settings, stored: Fingerprint) -> Settings:
    """The settings that the directory was made with, as far as they are no matter of a model."""
    return replace(
        settings,
        partitions=stored.partitions,
        episode_gap_minutes=stored.episode_gap_ms / MINUTE_MS,
        similarity_threshold=stored.similarity_threshold,
        similarity_max_k=stored.similarity_max_k,
        similarity_max_per_memory=stored.similarity_max_per_memory,
    )


def export_before(
    config: Config, path: Path, tenant_id: str, user_id: str, environments: Sequence[str]
) -> Iterator[Fields]:
    """What a directory holds on a person before it is erased."""
    with StateDirectory.existing(path, CACHE_BYTES, open_at_rest(config.encryption)) as directory:
        yield from export(directory, tenant_id, user_id, environments)


def append_time(options: KafkaOptions, position: Position) -> int:
    """When Kafka took a record in (epoch ms). Raises SourceError."""
    from recallflow.connectors.kafka.messages import time_ms  # Kafka is not everywhere
    from recallflow.connectors.kafka.topic_reader import TopicReader

    with TopicReader(options) as reader:
        for message in reader.read_to_end(position.topic, position.partition, position.offset):
            if message.offset() == position.offset:
                return time_ms(message)
    raise SourceError(f"{position} is not in its topic any more")


class Sought(NamedTuple):
    """A person whose traces are looked for."""

    tenant_id: str
    user_id: str
    environments: frozenset[str]
    traces: Traces


def sought(tenant_id: str, user_id: str, environments: Sequence[str], records: Iterator[Mapping[str, Any]]) -> Sought:
    """The person that records are about: of an export, or events. Raises UsageError where nothing in them is long
    enough to be told from chance."""
    traces, found = Traces(), {*environments} or {PRODUCTION}
    traces.add({"user_id": user_id})
    for record in records:
        traces.add(record)
        if not environments and isinstance(named := record.get("environment"), str):
            found.add(named)
    if not traces.pieces():
        raise UsageError(
            f"nothing that is known of user {user_id} is long enough to be looked for: give --export FILE, what "
            "recallflow export wrote before, or leave out --verify; nothing is erased by this call"
        )
    return Sought(tenant_id, user_id, frozenset(found), traces)


def read_export(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file that `recallflow export` wrote. Raises UsageError."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise UsageError(f"{path}, line {number}: no JSON: give what recallflow export wrote") from error
            if isinstance(record, dict):
                yield record


def search(who: Sought, folders: Sequence[Path], at_rest: AtRest, patience: Patience) -> Findings:
    """Searches every file of the folders: a process may still be cleaning one, so that one in which something is found
    is searched again, until patience ends. A piece that records of others have, or that a directory of nobody has,
    proves nothing."""
    pieces, between_searches = Pieces(who.traces.pieces()), threading.Event()
    findings, left = Findings(others=_of_nobody(pieces)), [*folders]
    while True:
        for folder in left:
            search_folder(folder, pieces, _known(folder, who, at_rest), findings)
        telling = findings.telling()
        left = [folder for folder in left if any(path.is_relative_to(folder) for path in telling)]
        if not left or patience.ended():
            return findings
        between_searches.wait(LOOK_S)
        for path in telling:
            del findings.found[path]


def _known(folder: Path, who: Sought, at_rest: AtRest) -> Known:
    """Tells whose a record of the folder is, and opens what is sealed with the directory's key, or with that of a
    partition which came from another one."""
    keyrings = list[Keyring]()
    try:
        brought = [read_secret(partition_folder(folder, number)) for number in numbers_in(folder)]
        for secret in {describe(folder).secret, *filter(None, brought)}:
            keyrings.append(Keyring.opened(secret, folder, at_rest))
    except StateError:  # no state directory, or another master key's: whatever is in it may be the person's
        return Known()
    owners = [Owner(who.tenant_id, environment, who.user_id) for environment in who.environments]
    own = {keyring.owner(owner) for keyring in keyrings for owner in owners}

    def opened(key: bytes, value: bytes) -> bytes:
        if value[:1] != SEALED or key.startswith(keys.OWNERS):
            return value
        for keyring in keyrings:
            with contextlib.suppress(DecryptionFailed):
                return keyring.cipher.open(key, value)
        return value

    def is_others(key: bytes, value: bytes) -> bool:
        owner = None
        if key.startswith(keys.OWNERS):
            owner, *_ = keys.split(key)
        elif key.startswith(keys.OUTBOX):
            owner = outbox.owner_of(value.removeprefix(key))  # which a log has before it
        return owner is not None and owner not in own

    return Known(is_others, opened)


def _of_nobody(pieces: Pieces) -> set[int]:
    """Pieces that a new directory has: words of RocksDB and of our own."""
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="recallflow-") as folder:
        fingerprint = Settings(partitions=1).fingerprint(Settings().load_embedder())
        with StateDirectory.open(Path(folder), fingerprint, CACHE_BYTES) as directory:
            directory.partitions()
        search_folder(Path(folder), pieces, Known(), findings)
    return {number for found in findings.found.values() for number in found}
