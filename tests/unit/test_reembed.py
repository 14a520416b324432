"""Texts of a log to embed again, also of records in other partitions: each text once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from recallflow.flows.reembed import MemoryTopicReplay, _Replay
from recallflow.flows.settings import Settings
from recallflow.llm import EmbeddingService
from recallflow.owner import state_partition
from recallflow.records import MOVED_HEADER
from recallflow.state.directory import StateDirectory
from tests.unit.connectors.fake_consumer import Message
from tests.unit.operators.harness import FlatEmbedder

PARTITIONS = 4
HOME = state_partition("acme", "ann", PARTITIONS)
ELSEWHERE = (HOME + 1) % PARTITIONS
SETTINGS = Settings(partitions=PARTITIONS)


class Later(FlatEmbedder):
    """A model behind an API with late vectors."""

    service: EmbeddingService = Mock(spec=EmbeddingService)  # nobody asks it here


EMBEDDER = Later()


class Log:
    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self.messages: list[Message] = []

    def add(self, partition: int, moved_from: Message | None = None, **fields: Any) -> Message:
        """A record; `moved_from`: where it was before an engine sent it on."""
        event = {"type": "memory", "tenant_id": "acme", "user_id": "ann", **fields}
        at = len(self.messages)
        came = (
            () if moved_from is None else ((MOVED_HEADER, f"log:{moved_from.of_partition}:{moved_from.at}".encode()),)
        )
        self.messages.append(Message("log", partition, at, orjson.dumps(event), b"acme/ann", at + 1, headed=came))
        return self.messages[-1]

    def standing(self) -> tuple[dict[str, str], int]:
        """The texts without a vector, by the ids of their memories; and how many records are still astray."""
        rules = SETTINGS.rules(EMBEDDER)
        replay = _Replay(self._directory, EMBEDDER, rules, lambda item: item)
        for message in self.messages:
            replay.apply([message])
        found = [*MemoryTopicReplay(self._directory, 0, 0).missing()]
        assert len({text.memory_id for text in found}) == len(found)
        return {text.memory_id: text.shown for text in found}, len(replay.astray)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with StateDirectory.open(tmp_path, SETTINGS.fingerprint(EMBEDDER), SETTINGS.cache_bytes) as directory:
        yield Log(directory)


def test_forwarded_text_counts_at_its_original_position(log: Log) -> None:
    lost = log.add(ELSEWHERE, content="sent astray", id="a")
    log.add(HOME, type="memory.update", memory_id="a", content="came too early")
    log.add(HOME, lost, content="sent astray", id="a")
    log.add(HOME, content="at home", id="b")
    assert log.standing() == ({"a": "sent astray", "b": "at home"}, 0)


def test_unforwarded_record_is_counted_as_astray(log: Log) -> None:
    log.add(ELSEWHERE, content="nobody saw this", id="a")
    lost = log.add(ELSEWHERE, content="an engine saw that", id="b")
    log.add(HOME, lost, content="an engine saw that", id="b")
    assert log.standing() == ({"b": "an engine saw that"}, 1)
