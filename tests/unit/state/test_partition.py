"""A database that cannot be read says so, whatever way it is read; what was staged is read as if it were stored."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recallflow.errors import StorageError
from recallflow.records import Position
from recallflow.state import keys
from recallflow.state.keyring import Keyring
from recallflow.state.partition import Partition, SharedMemory

KEYS = [keys.OWNERS + b"%04d" % number for number in range(1_000)]
BLOCK_BYTES = 8_192  # more than the first block, which is read when the database is opened


@pytest.fixture
def damaged(tmp_path: Path) -> Partition:
    """A database in whose table, behind the first block, hardly a byte is right."""

    def opened() -> Partition:
        return Partition(tmp_path / "p000", 0, Keyring(b"secret"), SharedMemory(), lock_wait_s=0)

    with opened() as partition:
        draw = np.random.default_rng(7)
        partition.stage({key: draw.bytes(200) for key in KEYS})
        partition.commit()
    opened().close()  # the log of the run before becomes a table
    (table,) = (tmp_path / "p000").glob("*.sst")
    content = bytearray(table.read_bytes())
    middle = slice(BLOCK_BYTES, len(content) // 2)
    content[middle] = bytes(byte ^ 0x5A for byte in content[middle])
    table.write_bytes(content)
    return opened()


@pytest.mark.parametrize(
    "read",
    [
        lambda partition: partition.get(KEYS[200]),
        lambda partition: partition.get_many([KEYS[0], KEYS[200]]),
        lambda partition: list(partition.scan(keys.OWNERS)),
        lambda partition: list(partition.scan_range(KEYS[200], KEYS[210])),
    ],
)
def test_what_cannot_be_read_is_a_storage_error(damaged: Partition, read: Callable[[Partition], object]) -> None:
    with damaged, pytest.raises(StorageError, match=r"state partition 0 cannot be read: .*restore a checkpoint"):
        read(damaged)


def test_a_database_that_was_closed_cannot_be_read(damaged: Partition) -> None:
    damaged.close()
    with pytest.raises(StorageError, match="cannot be read"):
        list(damaged.scan(keys.OWNERS))


EPISODES = keys.table(bytes(16), keys.EPISODE)
SESSION = EPISODES + bytes(16)
FOUR = [keys.episode(bytes(16), bytes(16), number) for number in range(4)]


@pytest.mark.parametrize(
    "read",
    [
        lambda partition: dict(partition.scan(keys.OWNERS)),
        lambda partition: dict(partition.scan(EPISODES)),
        lambda partition: dict(partition.scan(SESSION)),
        lambda partition: dict(partition.scan_range(FOUR[0], keys.after(SESSION))),
        lambda partition: dict(partition.scan_range(keys.row(bytes(16), bytes(16), 0), FOUR[3] + b"0")),
        lambda partition: dict([*partition.scan_back(SESSION)][::-1]),
        lambda partition: {key: partition.get(key) for key in partition.first_keys(SESSION, 3)},
        lambda partition: dict(pair for pair in zip(FOUR, partition.get_many(FOUR), strict=True) if pair[1]),
        lambda partition: {key: value for key in FOUR if (value := partition.get_large(key))},
    ],
)
def test_every_read_sees_what_was_staged_before_it(
    tmp_path: Path, read: Callable[[Partition], dict[bytes, bytes]]
) -> None:
    with Partition(tmp_path / "p000", 0, Keyring(b"secret"), SharedMemory(), lock_wait_s=0) as partition:
        partition.stage({FOUR[0]: b"old", FOUR[1]: b"gone", FOUR[2]: b"stays"})
        assert read(partition) == {FOUR[0]: b"old", FOUR[1]: b"gone", FOUR[2]: b"stays"}
        partition.stage({FOUR[0]: b"new", FOUR[1]: None, FOUR[3]: b"added"})
        assert read(partition) == {FOUR[0]: b"new", FOUR[2]: b"stays", FOUR[3]: b"added"}


def test_a_read_in_the_middle_of_a_batch_splits_no_event(tmp_path: Path) -> None:
    """A scan commits what is staged: of each event its position, too."""
    path, position = tmp_path / "p000", Position("log", 0, 7)
    with Partition(path, 0, Keyring(b"secret"), SharedMemory(), lock_wait_s=0) as partition:
        partition.stage({KEYS[0]: b"told"}, position)
        list(partition.scan(keys.OWNERS))
    with Partition(path, 0, Keyring(b"secret"), SharedMemory(), lock_wait_s=0) as partition:  # nobody called `commit`
        assert partition.get(KEYS[0]) == b"told"
        assert partition.is_applied(position)
