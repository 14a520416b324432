"""What an applied event put out is kept until no start can ask for it again, and not longer."""

from pathlib import Path
from typing import Any

import pytest

from recallflow.flows.settings import Settings
from recallflow.operators import outbox
from recallflow.outputs import DeadLetter, Receipted
from recallflow.records import Position, Record
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.searching import Pieces
from tests.unit.operators.harness import MEMORIES, Harness, ReadPlace, make_event, receipts

EACH = 4  # events between two snapshots: receipts, and one that is refused by the state


def came(engine: Harness) -> list[tuple[int, str]]:
    """What came out for the next events: the offset, and a receipt's outcome or an error's code."""
    found = []
    for output in engine.read(MEMORIES, EACH):
        match output:
            case Receipted():
                found.append((output.position.offset, receipts([output])[0]["outcome"]))
            case DeadLetter():
                found.append((output.position.offset, output.error.code))
    return found


def event(at: int) -> dict[str, Any]:
    if at % EACH == 0:
        return make_event("memory.update", at, memory_id="nobody's", content="Tea")
    return make_event("memory", at, id=f"m{at}", content=f"Bike {at}", receipt=True)


def kept(engine: Harness) -> int:
    return sum(key.startswith(keys.OUTBOX) for key, _ in engine.records())


@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("whole", [3, 4, 7])
def test_outputs_come_again_from_any_recent_snapshot(tmp_path: Path, whole: int, back: int) -> None:
    engine = Harness(tmp_path / "s")
    engine.write(MEMORIES, *(event(at) for at in range(whole * EACH)))
    first = []
    snapshots: list[ReadPlace | None] = [None]
    for _ in range(whole):
        first += came(engine)
        snapshots.append(engine.mark())
    assert len(first) == whole * EACH
    engine.kill(snapshots[whole - back])  # within the last snapshot, or right behind it
    again = [output for _ in range(back) for output in came(engine)]
    assert again == first[-back * EACH :]


def test_the_outbox_does_not_grow(tmp_path: Path) -> None:
    engine = Harness(tmp_path / "s")
    engine.write(MEMORIES, *(event(at) for at in range(8 * EACH)))
    for _ in range(8):
        came(engine)
        engine.mark()
        assert kept(engine) <= 2 * EACH


def test_key_equal_to_the_records_is_not_stored(tmp_path: Path) -> None:
    record = Record(Position(MEMORIES, 0, 7), b"{}", 0, key=b"acme/ann@example.com")
    outputs = [
        Receipted(record.position, 0, b"acme/ann@example.com", b"{}"),
        Receipted(record.position, 1, b"another's", b"{}"),
    ]
    fingerprint = Settings(partitions=1).fingerprint(Settings().load_embedder())
    with StateDirectory.open(tmp_path / "s", fingerprint, 1024 * 1024) as directory:
        partition = directory.partition(0)
        stored = outbox.encode(partition, record, outputs)
        partition.stage(stored)
        assert outbox.read(partition, record) == outputs
    (value,) = stored.values()
    assert not Pieces([b"ann@example.com"]).within(value or b"")
