"""Misrouted records that several deployments forward apply once."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.flows.router import OwningPartitions
from recallflow.flows.settings import Settings
from recallflow.operators.events import Batch, Misrouted, decode
from recallflow.operators.prepare import prepare
from recallflow.operators.step import StateStep
from recallflow.outputs import Output, ReceiptOutput, Reroute
from recallflow.owner import state_partition
from recallflow.records import MOVED_HEADER, Position, Record
from recallflow.state.directory import StateDirectory
from recallflow.state.state_hash import state_hash
from recallflow.state.verify import verify
from tests.unit.operators.harness import CLOCKS, HASHING, answers
from tests.unit.state.member import SEALED

PARTITIONS = 2
HOME = state_partition("acme", "ann", PARTITIONS)
ASTRAY = 1 - HOME
SETTINGS = Settings(partitions=PARTITIONS)
MESSAGE = {"type": "message", "id": "m", "content": "The violin is under the stairs", "receipt": True}
FEEDBACK = {"type": "memory.feedback", "id": "f", "memory_id": "m", "useful": True, "receipt": True}
ERASE = {"type": "user.erase", "id": "e", "receipt": True}


class Log:
    """The memory topic, which deployments read and append forwarded records to."""

    def __init__(self) -> None:
        self.parts: list[list[Record]] = [[] for _ in range(PARTITIONS)]

    def append(self, partition: int, value: bytes, headers: tuple[tuple[str, bytes | None], ...] = ()) -> Position:
        position = Position("log", partition, len(self.parts[partition]))
        now_ms = 1_000 * sum(map(len, self.parts))
        self.parts[partition].append(Record(position, value, now_ms, b"acme/ann", headers=headers))
        return position

    def tell(self, partition: int, event: dict[str, Any], user: str = "ann", **headers: str) -> Position:
        value = orjson.dumps({"tenant_id": "acme", "user_id": user, **event})
        return self.append(partition, value, tuple((name, text.encode()) for name, text in headers.items()))


class Deployment:
    def __init__(self, path: Path, log: Log) -> None:
        self._log, self._homes = log, OwningPartitions(PARTITIONS)
        self._next = [0] * PARTITIONS
        self.directory = StateDirectory.open(path, SETTINGS.fingerprint(HASHING), at_rest=SEALED)
        open_step = StateStep.opener(self.directory, HASHING, SETTINGS.rules(HASHING, "queries"), CLOCKS)
        self._steps = [open_step(number) for number in range(PARTITIONS)]

    def read(self, partition: int) -> list[Output]:
        """Apply the rest of a partition, append forwarded records, and return the other outputs."""
        records = self._log.parts[partition][self._next[partition] :]
        self._next[partition] += len(records)
        items = prepare(HASHING, [self._homes.judge(decode(record)) for record in records])
        outputs = self._steps[partition].take([Batch(partition, items)])
        for output in outputs:
            if isinstance(output, Reroute):
                came = (MOVED_HEADER, str(output.position).encode())
                self._log.append(output.owning_partition, output.record.value, (*(output.record.headers or ()), came))
        return [output for output in outputs if not isinstance(output, Reroute)]

    def rewind(self) -> None:
        self._next = [0] * PARTITIONS

    def ids(self) -> list[str]:
        query = {"type": "memories.list", "tenant_id": "acme", "user_id": "ann", "id": "q"}
        item = decode(Record(Position("queries", HOME, 0), orjson.dumps(query), 0))
        assert not isinstance(item, Misrouted)
        (answer,) = answers(self._steps[HOME].take([Batch(HOME, [item])]))
        return sorted(one["id"] for one in answer["memory_page"]["memories"])

    def repeated(self) -> int:
        return sum(count for (_, reason), count in self.directory.unfit.items() if reason == "repeated")


Make = Callable[[str], Deployment]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def make(tmp_path: Path, log: Log) -> Iterator[Make]:
    with ExitStack() as stack:

        def made(name: str) -> Deployment:
            deployment = Deployment(tmp_path / name, log)
            stack.enter_context(deployment.directory)
            return deployment

        yield made
    for path in tmp_path.iterdir():
        assert verify(path, SEALED).problems == []


def receipts(outputs: list[Output]) -> list[str]:
    found = [orjson.loads(one.body) for one in outputs if isinstance(one, ReceiptOutput)]
    return [f"{one['id']} {one['outcome']} {one['position']}" for one in found]


def test_forwards_of_two_deployments_apply_once(log: Log, make: Make) -> None:
    one, other = make("one"), make("other")
    told = [log.tell(ASTRAY, event) for event in (MESSAGE, FEEDBACK)]
    one.read(ASTRAY)
    first = one.read(HOME)
    once = state_hash(one.directory)
    other.read(ASTRAY)  # later
    assert len(log.parts[HOME]) == 4
    assert receipts(first) == [f"m created {told[0]}", f"f updated {told[1]}"]
    assert (receipts(other.read(HOME)), receipts(one.read(HOME))) == (receipts(first), [])
    assert state_hash(one.directory) == state_hash(other.directory) == once
    assert (one.repeated(), other.repeated()) == (2, 2)


def test_second_forward_of_an_erasure_leaves_later_memories(log: Log, make: Make) -> None:
    one, other = make("one"), make("other")
    log.tell(HOME, MESSAGE)
    erased = log.tell(ASTRAY, ERASE)
    one.read(ASTRAY)
    log.tell(HOME, MESSAGE | {"id": "later"})
    other.read(ASTRAY)
    assert receipts(one.read(HOME))[1] == f"e erased {erased}"
    assert one.ids() == ["later"]


def test_forwarded_record_is_known_after_a_restart(log: Log, make: Make) -> None:
    one = make("one")
    log.tell(ASTRAY, MESSAGE)
    one.read(ASTRAY)
    one.read(HOME)
    one.directory.close()
    again, other = make("one"), make("other")
    other.read(ASTRAY)
    again._next[HOME] = 1
    assert (receipts(again.read(HOME)), again.repeated()) == ([], 1)


def test_forward_that_is_read_again_is_no_repetition(log: Log, make: Make) -> None:
    one = make("one")
    log.tell(ASTRAY, MESSAGE)
    one.read(ASTRAY)
    first = receipts(one.read(HOME))
    one.rewind()
    assert (receipts(one.read(HOME)), one.repeated()) == (first, 0)
