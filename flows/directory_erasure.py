"""`recallflow erase`: erasure in a closed state directory, and the search for traces of the person in its files."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from recallflow.errors import DecryptionFailed, RecallflowError, SourceError, StateError, StorageError, UsageError
from recallflow.events import PRODUCTION, UserErase
from recallflow.flows.config import Config
from recallflow.flows.embedded import process
from recallflow.flows.export import export
from recallflow.flows.settings import MINUTE_MS, Settings, open_at_rest
from recallflow.kafka_options import KafkaOptions
from recallflow.operators import outbox
from recallflow.owner import Owner, state_partition
from recallflow.process import TimeLimit
from recallflow.records import Position
from recallflow.state import keys
from recallflow.state.description import Fingerprint, describe
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import SEALED, AtRest, Keyring
from recallflow.state.folders import numbers_in, partition_folder, read_secret
from recallflow.state.person import Fields
from recallflow.state.trace_search import Findings, Pieces, RecordFilter, Traces, search_folder

SEARCH_INTERVAL_S = 1.0


class ErasedFolder(NamedTuple):
    had_data: bool  # whether the folder had data of the user
    unpurged: str  # the error of purging: files may still have the data, which no query returns; empty if purged


def erase_directory(config: Config, path: Path, events: Sequence[UserErase]) -> ErasedFolder:
    """Apply erasure events to a directory or a checkpoint, and purge its files. Raise RecallflowError."""
    settings = _settings_of(config.engine, describe(path).fingerprint)
    lines = [event.model_dump_json(exclude_none=True).encode() for event in events]
    at_rest = open_at_rest(config.encryption)
    with StateDirectory.existing(path, at_rest) as directory:
        had_data = any(is_known(directory, event) for event in events)
    processed, unpurged = process(lines, settings, path, models=config.models, at_rest=at_rest), ""
    if processed.rejected:
        raise RecallflowError(processed.rejected[0]["error"]["message"])
    try:
        with StateDirectory.existing(path, at_rest) as directory:
            directory.finish_cleaning()
    except StorageError as error:
        unpurged = str(error)
    return ErasedFolder(had_data, unpurged)


def is_known(directory: StateDirectory, event: UserErase) -> bool:
    number = state_partition(event.tenant_id, event.user_id, directory.fingerprint.partitions)
    return any(map(event.covers, directory.partition(number).owners_of(event.tenant_id, event.user_id)))


def _settings_of(settings: Settings, stored: Fingerprint) -> Settings:
    """Return the settings that the directory was created with, except the models."""
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
    with StateDirectory.existing(path, open_at_rest(config.encryption)) as directory:
        yield from export(directory, tenant_id, user_id, environments)


def append_time(options: KafkaOptions, position: Position) -> int:
    from recallflow.connectors.kafka.messages import time_ms  # the Kafka client is optional
    from recallflow.connectors.kafka.topic_reader import TopicReader

    with TopicReader(options) as reader:
        for message in reader.read_to_end(position.topic, position.partition, position.offset):
            if message.offset() == position.offset:
                return time_ms(message)
    raise SourceError(f"{position} is no longer in its topic")


class TraceSearch(NamedTuple):
    tenant_id: str
    user_id: str
    environments: frozenset[str]
    traces: Traces


def new_trace_search(
    tenant_id: str, user_id: str, environments: Sequence[str], records: Iterator[Mapping[str, Any]]
) -> TraceSearch:
    """Return the search for a person's traces. Raise UsageError if no text is long enough to identify the person."""
    traces, searched = Traces(), {*environments} or {PRODUCTION}
    traces.add({"user_id": user_id})
    for record in records:
        traces.add(record)
        if not environments and isinstance(environment := record.get("environment"), str):
            searched.add(environment)
    if not traces.pieces():
        raise UsageError(
            f"no text of user {user_id} of tenant {tenant_id} is long enough to search for: check both names, give "
            "--export FILE, written by recallflow export before the erasure, or leave out --verify. This call erases "
            "nothing"
        )
    return TraceSearch(tenant_id, user_id, frozenset(searched), traces)


def read_export(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                problem = "not JSON: give a file that recallflow export wrote"
                raise UsageError(f"{path}, line {number}: {problem}") from error
            if isinstance(record, dict):
                yield record


def search(wanted: TraceSearch, folders: Sequence[Path], at_rest: AtRest, patience: TimeLimit) -> Findings:
    """Search every file of the folders for a person's traces. A process may still be cleaning, so folders with findings
    are searched again until patience ends. Pieces found in other users' records or in a new directory are ignored."""
    pieces, between_searches = Pieces(wanted.traces.pieces()), threading.Event()
    findings, to_search = Findings(others=_pieces_of_empty_directory(pieces)), [*folders]
    while True:
        for folder in to_search:
            search_folder(folder, pieces, _record_filter(folder, wanted, at_rest), findings)
        conclusive = findings.conclusive()
        to_search = [folder for folder in to_search if any(path.is_relative_to(folder) for path in conclusive)]
        if not to_search or patience.poll_expired():
            return findings
        between_searches.wait(SEARCH_INTERVAL_S)
        for path in conclusive:
            del findings.found[path]


def _record_filter(folder: Path, wanted: TraceSearch, at_rest: AtRest) -> RecordFilter:
    """Return the functions that decrypt a record of the folder, and decide whether it is another owner's. They use the
    key of the directory, and the keys of partitions that were moved there from other directories."""
    try:
        moved = [read_secret(partition_folder(folder, number)) for number in numbers_in(folder)]
        secrets = {describe(folder).secret, *filter(None, moved)}
        keyrings = [Keyring.opened(secret, folder, at_rest) for secret in secrets]
    except StateError:  # no state directory, or another master key: any record may be the person's
        return RecordFilter()
    owners = [Owner(wanted.tenant_id, environment, wanted.user_id) for environment in wanted.environments]
    own = {keyring.owner(owner) for keyring in keyrings for owner in owners}

    def decrypt(key: bytes, value: bytes) -> bytes:
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
            owner = outbox.owner_of(value.removeprefix(key))  # in a log file the key precedes the value
        return owner is not None and owner not in own

    return RecordFilter(is_others, decrypt)


def _pieces_of_empty_directory(pieces: Pieces) -> set[int]:
    """Return the numbers of pieces that occur in a new directory: words of RocksDB and of recallflow."""
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="recallflow-") as folder:
        fingerprint = Settings(partitions=1).fingerprint(Settings().load_embedder())
        with StateDirectory.open(Path(folder), fingerprint) as directory:
            directory.partitions()
        search_folder(Path(folder), pieces, RecordFilter(), findings)
    return {number for found in findings.found.values() for number in found}
