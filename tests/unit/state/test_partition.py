"""An unreadable database is a storage error on any read; staged writes are read like stored ones."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.errors import StorageError
from recallflow.records import Position
from recallflow.state import keys
from recallflow.state.database import SharedMemory
from recallflow.state.encryption import Keyring
from recallflow.state.partition import Partition

KEYS = [keys.OWNERS + b"%04d" % number for number in range(1_000)]
BLOCK_BYTES = 20_480  # more than the first block, which is read when the database is opened


@pytest.fixture
def damaged(tmp_path: Path) -> Partition:
    """A database with a damaged table behind the first block."""

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
def test_unreadable_record_is_a_storage_error(damaged: Partition, read: Callable[[Partition], object]) -> None:
    with damaged, pytest.raises(StorageError):
        read(damaged)


def test_a_database_that_was_closed_cannot_be_read(damaged: Partition) -> None:
    damaged.close()
    with pytest.raises(StorageError):
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
def test_reads_see_staged_writes(tmp_path: Path, read: Callable[[Partition], dict[bytes, bytes]]) -> None:
    with Partition(tmp_path / "p000", 0, Keyring(b"secret"), SharedMemory(), lock_wait_s=0) as partition:
        partition.stage({FOUR[0]: b"old", FOUR[1]: b"gone", FOUR[2]: b"stays"})
        assert read(partition) == {FOUR[0]: b"old", FOUR[1]: b"gone", FOUR[2]: b"stays"}
        partition.stage({FOUR[0]: b"new", FOUR[1]: None, FOUR[3]: b"added"})
        assert read(partition) == {FOUR[0]: b"new", FOUR[2]: b"stays", FOUR[3]: b"added"}


def test_read_within_a_batch_splits_no_event(tmp_path: Path) -> None:
    path, position = tmp_path / "p000", Position("log", 0, 7)
    with Partition(path, 0, Keyring(b"secret"), SharedMemory(), lock_wait_s=0) as partition:
        partition.stage({KEYS[0]: b"told"}, position)
        list(partition.scan(keys.OWNERS))
    with Partition(path, 0, Keyring(b"secret"), SharedMemory(), lock_wait_s=0) as partition:  # nobody called `commit`
        assert partition.get(KEYS[0]) == b"told"
        assert partition.is_applied(position)


@pytest.fixture(scope="module")
def one_partition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Partition]:
    with Partition(tmp_path_factory.mktemp("state") / "p000", 0, Keyring(bytes(32)), SharedMemory(), 0.0) as partition:
        yield partition


OWNER, OTHER = bytes(16), bytes(15) + b"\x01"
NAMES = [bytes(16), bytes(15) + b"\xff", b"\xff" * 16]
SOME_KEYS = [
    *(keys.episode(owner, name, at) for owner in (OWNER, OTHER) for name in NAMES for at in (0, 2**64 - 1)),
    *(keys.member(owner, name, 1) for owner in (OWNER, OTHER) for name in NAMES),
    *(keys.entry(owner, seq) for owner in (OWNER, OTHER) for seq in (0, 255, 2**64 - 1)),
    *(keys.head(owner) for owner in (OWNER, OTHER)), keys.unsynced(OWNER, 3), keys.work(OWNER),
    keys.outbox(NAMES[0], 0), keys.outbox(NAMES[0], 2**63),
]  # fmt: skip

STAGED_ELSEWHERE = [keys.episode(OWNER, NAMES[0], 1), keys.member(OWNER, NAMES[0], 1), keys.head(OWNER)]


@given(
    staged=st.lists(st.sampled_from(SOME_KEYS), unique=True, max_size=8),
    bounds=st.lists(
        st.builds(lambda key, size: key[:size], st.sampled_from(SOME_KEYS), st.integers(1, 42)), max_size=5
    ),
)
def test_range_scan_sees_staged_records(one_partition: Partition, staged: list[bytes], bounds: list[bytes]) -> None:
    partition = one_partition
    partition.stage({key: b"staged" if key in staged else None for key in {*SOME_KEYS, *STAGED_ELSEWHERE}})
    for prefix in bounds:
        assert [key for key, _ in partition.scan(prefix)] == sorted(key for key in staged if key.startswith(prefix))
        partition.stage(dict.fromkeys(staged, b"staged"))  # the scan may have committed it
    for first, end in pairwise(sorted(bounds)):
        assert [key for key, _ in partition.scan_range(first, end)] == sorted(k for k in staged if first <= k < end)
        partition.stage(dict.fromkeys(staged, b"staged"))


@pytest.mark.parametrize(
    "prefix",
    [
        keys.table(OTHER, keys.UNSYNCED), keys.table(OWNER, keys.UNSYNCED),
        keys.table(OWNER, keys.EPISODE) + NAMES[1], keys.members(OWNER, NAMES[1]),
    ],
)  # fmt: skip
def test_scan_without_staged_keys_commits_nothing(one_partition: Partition, prefix: bytes) -> None:
    partition = one_partition
    partition.stage(dict.fromkeys(SOME_KEYS))
    partition.commit()
    partition.sync()
    partition.stage(dict.fromkeys(STAGED_ELSEWHERE, b""))
    assert list(partition.scan(prefix)) == []
    assert not partition.unsynced  # so it wrote nothing either
