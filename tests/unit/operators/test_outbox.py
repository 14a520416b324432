"""What an applied event put out is kept until no start can ask for it again, and not longer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.connectors.embedders import load_embedder
from recallflow.flows.settings import Settings
from recallflow.operators.decode import decode
from recallflow.operators.events import Batch
from recallflow.operators.partition import Clocks, PartitionLogic
from recallflow.operators.prepare import prepare
from recallflow.operators.snapshot import Snapshot
from recallflow.outputs import DeadLetter, Receipted
from recallflow.records import Position, Record
from recallflow.state import keys
from recallflow.state.directory import StateDirectory

MakeEvent = Callable[..., dict[str, Any]]

SETTINGS = Settings(partitions=1)
EMBEDDER = load_embedder("hash")
EACH = 4  # events between two snapshots: receipts, and one that is refused by the state


class Engine:
    """The state step on one log, without Bytewax. Its snapshots are numbered from 0; number 0 is before everything."""

    def __init__(self, path: Path, make_event: MakeEvent) -> None:
        self._path = path
        self._make_event = make_event
        self.snapshots: list[Snapshot | None] = [None]
        self.start(0)

    def start(self, number: int) -> None:
        """Begins from a snapshot, on all that was committed until now."""
        self.directory = StateDirectory.open(self._path, SETTINGS.fingerprint(EMBEDDER), SETTINGS.cache_bytes)
        rules = SETTINGS.rules(EMBEDDER, query_topic="queries", input_ends=False)
        clocks = Clocks(timer=lambda: 0.0, now_ms=lambda: 0)
        self._logic = PartitionLogic.builder(self.directory, EMBEDDER, rules, clocks)(self.snapshots[number])

    def feed(self, offsets: range) -> list[tuple[int, str]]:
        """Takes in events; returns what came out: the offset, and a receipt or an error's code."""
        records = [Record(Position("memories", 0, at), orjson.dumps(self._event(at)), append_ms=at) for at in offsets]
        items = prepare(EMBEDDER, [decode(record) for record in records])
        outputs, _ = self._logic.on_batch([Batch(0, items)])
        told = []
        for output in outputs:
            match output:
                case Receipted():
                    told.append((output.position.offset, orjson.loads(output.body)["outcome"]))
                case DeadLetter():
                    told.append((output.position.offset, output.error.code))
        return told

    def _event(self, at: int) -> dict[str, Any]:
        if at % EACH == 0:
            return self._make_event("memory.update", at, memory_id="nobody's", content="Tea")
        return self._make_event("memory", at, id=f"m{at}", content=f"Bike {at}", receipt=True)

    def snapshot(self) -> None:
        self.snapshots.append(self._logic.snapshot())

    def kept(self) -> int:
        return sum(1 for _ in self.directory.partition(0).scan(keys.OUTBOX))


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("whole", [3, 4, 7])
def test_outputs_come_again_from_any_snapshot_that_a_start_may_begin_with(
    tmp_path: Path, make_event: MakeEvent, whole: int, back: int
) -> None:
    """An epoch is committed some time after its snapshot: by the next one perhaps, by the one after surely."""
    engine = Engine(tmp_path / "s", make_event)
    first = []
    for number in range(whole):
        first += engine.feed(range(number * EACH, (number + 1) * EACH))
        engine.snapshot()
    assert len(first) == whole * EACH
    engine.directory.close()  # killed within the last snapshot, or right behind it

    engine.start(whole - back)
    again = range((whole - back) * EACH, whole * EACH)
    assert engine.feed(again) == [output for output in first if output[0] in again]
    engine.directory.close()


def test_the_outbox_does_not_grow(tmp_path: Path, make_event: MakeEvent) -> None:
    engine = Engine(tmp_path / "s", make_event)
    for number in range(8):
        engine.feed(range(number * EACH, (number + 1) * EACH))
        engine.snapshot()
        assert engine.kept() <= 2 * EACH
    engine.directory.close()
