"""`recallflow erase`: what it does to a directory that is not in use."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from recallflow.brokers.options import KafkaOptions
from recallflow.errors import RecallflowError, SourceError, StorageError
from recallflow.events import UserErase
from recallflow.flows.config import Config
from recallflow.flows.embedded import process
from recallflow.flows.encryption import open_at_rest
from recallflow.flows.export import export
from recallflow.flows.settings import MINUTE_MS, Settings
from recallflow.owner import state_partition
from recallflow.records import Position
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.directory import StateDirectory, describe
from recallflow.state.fingerprint import Fingerprint
from recallflow.state.person import Fields


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
