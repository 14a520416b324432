"""Shares of the file descriptors of a process."""

import resource
from pathlib import Path

import pytest

from recallflow import process
from recallflow.state.database import SharedMemory
from recallflow.state.partition import Partition
from tests.unit.state.member import KEYRING


def limited(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    found = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: found.append(limits))
    return found


@pytest.mark.parametrize("limit", [256, 1_024, 4_096, 20_000, 1_048_576])
@pytest.mark.parametrize("partitions", [1, 4, 16])
def test_shares_leave_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch, limit: int, partitions: int) -> None:
    limited(monkeypatch, limit, limit)
    state = partitions * process.database_files(partitions)
    used = process.connections_most() + process.backlog() + state
    assert used <= limit * 7 / 8 or not process.descriptors_suffice(partitions)


def test_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = limited(monkeypatch, 1_024, 4_096)
    process.raise_descriptor_limit()
    process.raise_descriptor_limit()
    assert found == [(1_024, 4_096), (4_096, 4_096)]


def test_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed")

    limited(monkeypatch, 256, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "setrlimit", refuse)
    process.raise_descriptor_limit()
    assert process.descriptor_limit() == 256


def test_database_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "descriptor_limit", lambda: 1_024)
    with Partition(tmp_path / "p000", 0, KEYRING, SharedMemory(8), lock_wait_s=0):
        (options,) = (tmp_path / "p000").glob("OPTIONS-*")
        assert "max_open_files=64\n" in options.read_text()
