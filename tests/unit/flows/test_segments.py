"""Answers are the same whether owners are in memory, and whether they come from events, segments or entries."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.flows.embedded import EmbeddedEngine, process
from recallflow.flows.settings import Settings
from recallflow.state import directory, keys, segments
from recallflow.state.hot_owner import HotOwners
from recallflow.state.partition import Partition
from recallflow.state.verify import verify
from tests.event_log import comparable, final_questions, hash_of, make_log

LINES = 220
SETTINGS = Settings(partitions=2)
DERIVED = (keys.SEGMENT, keys.SEGMENTS_END, keys.STALE)
SCOPE_OF_ALL = {"tenant_id": "acme", "user_id": "ann", "environment": "prod", "timestamp": "2025-12-24T00:00:00Z"}

Damage = Callable[[bytes], bytes | None]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a short log make segments of both sizes."""
    monkeypatch.setattr(segments, "SMALL", 4)
    monkeypatch.setattr(segments, "LARGE", 16)


def questions() -> list[bytes]:
    """Return questions of every kind, about the present, the past and all versions."""
    told: list[dict[str, Any]] = [
        {"type": "graph.status"},
        {"type": "graph.trace", "query": "Who took the ferry to Porto?"},
        {"type": "graph.explore", "nodes": ["anchor", "tag:a", "entity:porto"], "hops": 2},
        {"type": "recall", "query": "ferry", "explain": True, "max_tokens": 400, "k": 20},
        {"type": "recall", "query": "ferry", "strategy": "hybrid_graph", "traversal_depth": 2},
        {"type": "recall", "query": "ferry", "include_history": True},
        {"type": "recall", "query": "ferry", "filters": {"tags": ["a"]}},
        {"type": "recall", "query": "ferry", "as_of": {"ingestion_time": "2025-01-04T00:00:00Z"}},
        {"type": "recall", "query": "ferry", "as_of": {"event_time": "2025-01-04T00:00:00Z"}},
    ]
    numbered = [orjson.dumps(one | SCOPE_OF_ALL | {"id": f"q{n}"}) for n, one in enumerate(told)]
    return [
        *numbered,
        *(orjson.dumps(orjson.loads(line) | {"id": f"f{n}"}) for n, line in enumerate(final_questions()[:18])),
    ]


QUESTIONS = questions()


def grow(state_dir: Path, seed: int, lines: Sequence[bytes]) -> None:
    """Apply the lines with restarts at random places."""
    cuts = sorted(random.Random(seed).sample(range(len(lines)), 4))
    for first, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        process(lines[first:end], SETTINGS, state_dir)


@contextmanager
def stored(state_dir: Path) -> Iterator[list[Partition]]:
    with EmbeddedEngine.open(SETTINGS, state_dir) as embedded:
        yield embedded.directory.partitions()


def packed(state_dir: Path) -> dict[bytes, int]:
    with stored(state_dir) as partitions:
        found = [key for one in partitions for key, _ in one.scan(keys.OWNERS) if keys.split(key)[1] == keys.SEGMENT]
    return {key: keys.sequence(key) - keys.sequence(key[:-8]) for key in found}


def damage(state_dir: Path, how: Damage) -> None:
    with stored(state_dir) as partitions:
        for one in partitions:
            found = [(key, value) for key, value in one.scan(keys.OWNERS) if keys.split(key)[1] == keys.SEGMENT]
            one.stage({key: how(value) for key, value in found})
            one.commit()


def copied(state_dir: Path, name: str) -> Path:
    return Path(shutil.copytree(state_dir, state_dir.parent / name))


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.exhaustive)])
def test_hot_cold_and_evicted_owners_give_the_same_answers(tmp_path: Path, seed: int) -> None:
    lines = make_log(seed, LINES)
    last = len(lines) - 40
    grow(tmp_path / "s", seed, lines[:last])
    assert {*packed(tmp_path / "s").values()} == {4, 16}
    hot = copied(tmp_path / "s", "hot")
    warm = [line for line in final_questions() if b"user.stats" in line]  # loads all owners
    from_hot = process([*warm, *lines[last:], *QUESTIONS], SETTINGS, hot).responses[-len(QUESTIONS) :]
    process(lines[last:], SETTINGS, tmp_path / "s")
    bare = copied(tmp_path / "s", "bare")
    with stored(bare) as partitions:
        for one in partitions:
            derived = [key for key, _ in one.scan(keys.OWNERS) if keys.split(key)[1] in DERIVED]
            one.stage(dict.fromkeys(derived))
            one.commit()
    evicting = copied(tmp_path / "s", "evicting")
    expected = comparable(process(QUESTIONS, SETTINGS, bare).responses)
    assert [one["status"] for one in expected].count("ok") > len(expected) / 2
    assert comparable(process(QUESTIONS, SETTINGS, tmp_path / "s").responses) == expected
    assert comparable(from_hot) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "HotOwners", lambda _: HotOwners(budget_bytes=1))
        assert comparable(process(QUESTIONS, SETTINGS, evicting).responses) == expected
    assert len({hash_of(tmp_path / name) for name in ("s", "hot", "bare", "evicting")}) == 1
    assert verify(tmp_path / "s").problems == verify(bare).problems == []


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with segments of both sizes; tests change copies of it."""
    state_dir = tmp_path_factory.mktemp("grown") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SMALL", 4)
        patch.setattr(segments, "LARGE", 16)
        grow(state_dir, 1, make_log(1, LINES))
    return state_dir


@pytest.fixture
def expected(grown: Path, tmp_path: Path, known: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    if not known:
        whole = Path(shutil.copytree(grown, tmp_path / "whole"))
        known.append(comparable(process(QUESTIONS, SETTINGS, whole).responses))
    return known[0]


@pytest.fixture(scope="module")
def known() -> list[list[dict[str, Any]]]:
    return []


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(lambda value: value[: len(value) // 2], id="cut off"),
        pytest.param(lambda value: value[: len(value) // 16 * 8], id="cut off between two numbers"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda value: value[:50] + bytes([value[50] ^ 8]) + value[51:], id="a bit of its header"),
        pytest.param(lambda value: value[:-40] + bytes([value[-40] ^ 8]) + value[-39:], id="a bit of its numbers"),
        pytest.param(lambda value: bytes([value[0] ^ 1]) + value[1:], id="another version"),
        pytest.param(lambda value: value[:4] + bytes([value[4] ^ 8]) + value[5:], id="a bit of its header's length"),
        pytest.param(lambda _: None, id="lost"),
    ],
)
def test_damaged_segments_are_remade(how: Damage, grown: Path, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    whole = packed(grown)
    damaged = Path(shutil.copytree(grown, tmp_path / "damaged"))
    damage(damaged, how)
    if how(b"x" * 64) is not None:
        assert len(verify(damaged).problems) == len(whole)
    assert comparable(process(QUESTIONS, SETTINGS, damaged).responses) == expected
    assert {*packed(damaged).values()} == {4, 16}


def test_another_model_makes_its_own_segments(grown: Path, tmp_path: Path) -> None:
    shutil.copytree(grown, tmp_path / "s")
    with EmbeddedEngine.open(SETTINGS, tmp_path / "s") as embedded:
        partition = embedded.directory.partition(0)
        (owner, *_) = (
            keys.split(key)[0] for key, _ in partition.scan(keys.OWNERS) if keys.split(key)[1] == keys.SEGMENTS_END
        )
        before = dict(partition.scan(keys.table(owner, keys.SEGMENT)))
        other = segments.Segments(partition, owner, "another", 3)
        assert other.pack() == 4
        after = dict(partition.scan(keys.table(owner, keys.SEGMENT)))
    assert before != after


def test_forgotten_memories_leave_nothing_in_segments(tmp_path: Path) -> None:
    owner = {"tenant_id": "acme", "user_id": "ann", "timestamp": 1}
    told = [owner | {"type": "memory", "id": f"m{n}", "content": f"secret{n} walnut"} for n in range(43)]
    changed = [owner | {"type": "memory.update", "memory_id": f"m{n}", "content": f"changed{n}"} for n in (3, 17)]
    asks = owner | {"type": "recall", "query": "walnut"}
    gone = [owner | {"type": "memory.forget", "memory_id": f"m{n}"} for n in (3, 9, 38, 41)]
    state_dir = tmp_path / "s"
    process([orjson.dumps(one) for one in [*told, asks, *changed]], SETTINGS, state_dir)

    def everything() -> bytes:
        with stored(state_dir) as partitions:
            return b"".join(value for one in partitions for _, value in one.scan_range(b"", keys.END))

    held = everything()
    for word in (b"secret3", b"secret9", b"changed3"):
        assert word in held
    process([orjson.dumps(one) for one in gone], SETTINGS, state_dir)
    left = [everything()]
    process([orjson.dumps(asks)], SETTINGS, state_dir)  # makes what is missing again
    left.append(everything())
    for held in left:
        for word in (b"secret3 ", b'secret3"', b"secret9", b"changed3", b"secret38", b"secret41"):
            assert word not in held
    assert b"secret17" in held
    assert verify(state_dir).problems == []


def test_segment_that_differs_from_its_entries_is_reported(grown: Path, tmp_path: Path) -> None:
    shutil.copytree(grown, tmp_path / "s")
    with stored(tmp_path / "s") as partitions:
        for one in partitions:
            found = [key for key, _ in one.scan(keys.OWNERS) if keys.split(key)[1] == keys.SEGMENT]
            if found:
                entries = keys.entry(keys.split(found[0])[0], keys.sequence(found[0][:-8]))
                one.stage({entries: None})
                one.commit()
                break
    assert any("differs from the entries" in problem for problem in verify(tmp_path / "s").problems)
