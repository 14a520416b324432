"""A state directory with the steps of its open partitions, as in a process that gains and loses partitions."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import orjson

from recallflow.connectors.master_keys import LocalMasterKey
from recallflow.flows.settings import Settings
from recallflow.operators.events import by_partition, decode, partition_by_owner
from recallflow.operators.prepare import prepare
from recallflow.operators.step import StateStep
from recallflow.outputs import Output
from recallflow.records import Position, Record
from recallflow.state.database import shared_options
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest, Keyring
from recallflow.state.partition import Partition
from recallflow.state.state_hash import state_hash
from tests.unit.operators.harness import CLOCKS, HASHING, answers

KEY, OTHER = (LocalMasterKey(bytes([number] * 32)) for number in (1, 2))
SEALED = AtRest(KEY)
KEYRING = Keyring(bytes(32))
PARTITIONS = 4
EVERY = range(PARTITIONS)
SETTINGS = Settings(partitions=PARTITIONS)
USERS = [f"u{number}" for number in range(12)]
EACH = 5
Event = dict[str, Any]


def open_partition(folder: Path, files_of: int = 1) -> closing[Partition]:
    """Open the partition `p000` with the options of a process with `files_of` partitions."""
    return closing(Partition(folder / "p000", 0, KEYRING, shared_options(files_of)))


def told(first: int = 0, count: int = EACH) -> list[Event]:
    return [
        {"type": "message", "tenant_id": "acme", "user_id": user, "id": f"{user} {number}", "session_id": "s",
         "content": f"walnut {number} of {user}", "timestamp": number * 1_000}
        for number in range(first, first + count)
        for user in USERS
    ]  # fmt: skip


class Member:
    """Its log has as many partitions as the state, and each event is in that of its user."""

    def __init__(self, path: Path, at_rest: AtRest = UNENCRYPTED) -> None:
        fingerprint = SETTINGS.fingerprint(HASHING)
        self.directory = StateDirectory.open(path, fingerprint, SETTINGS.cache_bytes, at_rest=at_rest)
        self._open_step = StateStep.opener(self.directory, HASHING, SETTINGS.rules(HASHING, "queries"), CLOCKS)
        self._steps = dict[int, StateStep]()
        self._offsets = [0] * PARTITIONS

    @classmethod
    @contextmanager
    def on(cls, path: Path, at_rest: AtRest = UNENCRYPTED) -> Iterator[Self]:
        member = cls(path, at_rest)
        try:
            yield member
        finally:
            member.close()

    def close(self) -> None:
        self._steps.clear()
        self.directory.close()

    def take(self, *numbers: int) -> None:
        for number in numbers:
            self._steps[number] = self._open_step(number)
            partition = self.directory.partition(number)
            self._offsets[number] = 1 + partition.applied.get(f"log:{number}", -1)

    def give(self, *numbers: int) -> None:
        for number in numbers:
            self._steps.pop(number).close()

    def run(self, events: Sequence[Event], topic: str = "log") -> list[Output]:
        items = prepare(HASHING, [decode(Record(Position(topic, 0, 0), orjson.dumps(event), 0)) for event in events])
        outputs: list[Output] = []
        for _, batch in by_partition(items, partial(partition_by_owner, partitions=PARTITIONS)):
            if (step := self._steps.get(batch.partition)) is None:
                continue
            first = self._offsets[batch.partition]
            self._offsets[batch.partition] += len(batch.items)
            self.directory.partition(batch.partition).stage_progress(b"%d" % self._offsets[batch.partition])
            places = [Position(topic, batch.partition, first + number) for number in range(len(batch.items))]
            outputs += step.apply(
                item._replace(record=item.record._replace(position=place))
                for item, place in zip(batch.items, places, strict=True)
            )
        return outputs

    def ask(self, users: Collection[str] = USERS) -> dict[str, list[str]]:
        asked = [
            {"type": "recall", "tenant_id": "acme", "user_id": user, "id": user, "query": "walnut 3", "k": 3}
            for user in users
        ]
        return {one["query_id"]: [m["id"] for m in one["memories"]] for one in answers(self.run(asked, "queries"))}

    def hash(self) -> str:
        return state_hash(self.directory)
