"""Snapshots of which any byte is another one."""

import pickle

import pytest

from recallflow.checked import Checked, unpickled
from recallflow.connectors.kafka.order import Place
from recallflow.connectors.kafka.sink import Delivered
from recallflow.connectors.kafka.source import Offsets
from recallflow.errors import StorageError
from recallflow.operators import async_call
from recallflow.operators.async_call import logic

KINDS: list[Checked | None] = [
    Offsets({"memory.events:0": Place(1_900_017, 70_000, 5, (1_900_019,)), "query.events:0": Place(255)}),
    Delivered(1_900_017, ((b"memory.events:0:5", b"1"),), "an id"),
    logic.Snapshot("key", (("item", async_call.Completed("item", 300)), ("another", None))),
    None,
]


@pytest.mark.parametrize("kept", KINDS, ids=lambda kept: f"{type(kept).__module__}.{type(kept).__qualname__}")
def test_a_flipped_byte_is_told_or_changes_nothing(kept: Checked | None) -> None:
    whole = pickle.dumps(kept)
    assert unpickled(whole) == kept
    assert type(unpickled(whole)) is type(kept)
    told = 0
    for place in range(len(whole)):
        for flip in (*(1 << bit for bit in range(8)), 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            try:
                assert unpickled(bytes(damaged)) == kept, (place, flip)
            except StorageError:
                told += 1
    assert told > 0.9 * 9 * len(whole) or kept is None  # the rest is marks of the pickle's that say nothing


def test_it_is_told_without_our_way_to_unpickle() -> None:
    """As Bytewax does it."""
    whole = pickle.dumps(Delivered(17, (), "id"))
    place = whole.index(b"\x11", len(whole) // 2)
    with pytest.raises(StorageError, match="not what was written"):
        pickle.loads(whole[:place] + b"\x12" + whole[place + 1 :])
