"""Cleaned files contain no erased bytes, and pending cleaning is not forgotten."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from recallflow.owner import Owner
from recallflow.records import Position
from recallflow.state import database, keys
from recallflow.state.partition import Counts, Partition
from tests.unit.state.member import KEYRING

ANN, BO, CY = (Owner("acme", "prod", name) for name in ("ann", "bo", "cy"))
SECRET = b"walnut-secret"
Opened = Callable[..., Partition]


def fill(partition: Partition, owner: Owner, text: bytes, first: int, count: int) -> None:
    key = KEYRING.owner(owner)
    partition.begin_owner(owner, KEYRING.owner(owner))
    values = {keys.entry(key, seq): text + b" %d " % seq + os.urandom(500) for seq in range(first, first + count)}
    partition.stage({**values})
    partition.commit()
    partition.keep({keys.segment(key, first, first + count): text + os.urandom(5_000)})


def erase(partition: Partition, owner: Owner, offset: int = 0) -> None:
    user = KEYRING.user(owner.tenant_id, owner.user_id)
    partition.erase([KEYRING.owner(owner)], user, {}, Position("log", 0, offset), Counts(0, 0))


def files_with(folder: Path, text: bytes = SECRET) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and text in path.read_bytes())


def test_erased_data_is_in_no_file(opened: Opened, tmp_path: Path) -> None:
    partition = opened()
    for first in range(0, 4_000, 1_000):
        for owner, text in ((BO, b"violin"), (ANN, SECRET), (CY, b"violin")):
            fill(partition, owner, text, first, 1_000)
        if first == 1_000:
            partition._db.flush()
            partition._db.compact_range(None, None)
        elif first == 2_000:
            partition = opened()
    wrapped = partition._db.get(keys.owner_key(KEYRING.owner(ANN)))
    assert len(files_with(tmp_path)) >= 3
    erase(partition, ANN)
    assert files_with(tmp_path)
    assert len(partition.cleaning) == 1
    partition.clean()
    assert files_with(tmp_path) == files_with(tmp_path, wrapped) == []
    assert len(partition.cleaning) == 0
    left = {keys.split(key)[0] for key, _ in partition.scan(keys.OWNERS)}
    assert left == {KEYRING.owner(BO), KEYRING.owner(CY)}
    assert len([*partition.scan(keys.table(KEYRING.owner(BO), keys.ENTRY))]) == 4_000
    assert [key for key, _ in opened().scan(keys.UNCLEANED)] == []


def test_other_deletions_are_purged_from_files(opened: Opened, tmp_path: Path) -> None:
    partition, sent = opened(), keys.outbox(bytes(16), 5)
    partition.stage({sent: SECRET})
    partition.commit()
    partition._db.flush()
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    partition.erase([KEYRING.owner(ANN)], bytes(16), {sent: None}, Position("log", 0, 0), Counts(0, 0))
    partition.clean()
    assert files_with(tmp_path) == []


def test_all_deletions_of_an_erasure_are_in_rewritten_files() -> None:
    ann, user = KEYRING.owner(ANN), KEYRING.user("acme", "ann")
    deleted = [keys.head(ann), keys.usage(ann, 2**63), keys.work(ann), keys.owner_key(ann), keys.user_owner(user, ann)]
    stretches = [*database._stretches([keys.uncleaned(ann, user)])]
    for key in [*deleted, keys.outbox(bytes(16), 0), keys.outbox(b"\xff" * 16, 2**63)]:
        assert any(first <= key < end for first, end in stretches), key


def test_files_that_are_still_read_count_as_not_cleaned(opened: Opened, tmp_path: Path) -> None:
    partition = opened()
    fill(partition, ANN, SECRET, 0, 2_000)
    partition._db.flush()
    reader = partition.scan(keys.OWNERS)
    next(reader)
    erase(partition, ANN)
    partition.cleaning.close()  # waits for no reader
    assert not partition.cleaning.run()
    assert files_with(tmp_path)
    assert len(partition.cleaning) == 1
    reader.close()  # type: ignore[attr-defined]
    partition = opened()
    assert len(partition.cleaning) == 1
    assert partition.cleaning.run()
    assert files_with(tmp_path) == []


def test_user_erased_again_is_cleaned_again(opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = opened()
    fill(partition, ANN, SECRET, 0, 100)
    erase(partition, ANN)
    clean, rounds = type(partition.cleaning)._clean, 0

    def clean_and_erase(*given: object) -> bool:
        nonlocal rounds
        rounds += 1
        done = clean(*given)  # type: ignore[arg-type]
        if rounds == 1:
            fill(partition, ANN, SECRET, 0, 100)
            partition._db.flush()
            erase(partition, ANN, 1)
            assert files_with(tmp_path)
        return done

    monkeypatch.setattr(type(partition.cleaning), "_clean", clean_and_erase)
    partition.clean()
    assert rounds == 2
    assert files_with(tmp_path) == []
    assert len(opened().cleaning) == 0
