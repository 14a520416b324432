"""Answers do not depend on what is in memory, nor on how it came there: from events, from segments, from entries."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.flows.embedded import Embedded, process
from recallflow.flows.settings import Settings
from recallflow.state import directory, keys, segments
from recallflow.state.hot_owner import HotOwners
from recallflow.state.partition import Partition
from recallflow.state.verify import verify

SEEDS = [11, 12, 13]
LINES = 900
SETTINGS = Settings(partitions=2)
DERIVED = (keys.SEGMENT, keys.REACH, keys.RENEWED)
SCOPE_OF_ALL = {"tenant_id": "acme", "user_id": "ann", "environment": "prod", "timestamp": "2025-12-24T00:00:00Z"}

MakeLog = Callable[..., list[bytes]]
Comparable = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
HashOf = Callable[[Path], str]
Damage = Callable[[bytes], bytes | None]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short log makes some of both sizes."""
    monkeypatch.setattr(segments, "SMALL", 4)
    monkeypatch.setattr(segments, "LARGE", 16)


@pytest.fixture(scope="module")
def questions(final_questions: list[bytes]) -> list[bytes]:
    """Of every kind there is, about now, then, and all that ever was."""
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
    return [*numbered, *(orjson.dumps(orjson.loads(line) | {"id": f"f{n}"}) for n, line in enumerate(final_questions))]


@pytest.fixture(scope="module", params=SEEDS)
def log(request: pytest.FixtureRequest, make_log: MakeLog) -> tuple[int, list[bytes]]:
    return request.param, make_log(request.param, LINES)


def grow(state_dir: Path, seed: int, lines: Sequence[bytes]) -> None:
    """Applies the lines with restarts at random places."""
    cuts = sorted(random.Random(seed).sample(range(len(lines)), 4))
    for first, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        process(lines[first:end], SETTINGS, state_dir)


@contextmanager
def stored(state_dir: Path) -> Iterator[list[Partition]]:
    with Embedded.open(SETTINGS, state_dir) as embedded:
        yield embedded.directory.partitions()


def packed(state_dir: Path) -> dict[bytes, int]:
    """The segments there are and how many memories each reaches over."""
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


def test_hot_cold_evicted_from_segments_and_from_entries_all_say_the_same(
    log: tuple[int, list[bytes]], tmp_path: Path, questions: list[bytes], comparable: Comparable, hash_of: HashOf
) -> None:
    seed, lines = log
    last = len(lines) - 60
    grow(tmp_path / "s", seed, lines[:last])
    assert {*packed(tmp_path / "s").values()} == {4, 16}

    hot = copied(tmp_path / "s", "hot")
    warm = [line for line in questions if b"user.stats" in line]  # their owners are in memory from here on
    from_hot = process([*warm, *lines[last:], *questions], SETTINGS, hot).responses[-len(questions) :]

    process(lines[last:], SETTINGS, tmp_path / "s")
    bare = copied(tmp_path / "s", "bare")
    with stored(bare) as partitions:
        for one in partitions:
            derived = [key for key, _ in one.scan(keys.OWNERS) if keys.split(key)[1] in DERIVED]
            one.stage(dict.fromkeys(derived))
            one.commit()
    evicting = copied(tmp_path / "s", "evicting")
    expected = comparable(process(questions, SETTINGS, bare).responses)
    assert [one["status"] for one in expected].count("ok") > len(expected) / 2
    assert comparable(process(questions, SETTINGS, tmp_path / "s").responses) == expected
    assert comparable(from_hot) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "HotOwners", lambda _: HotOwners(budget_bytes=1))
        assert comparable(process(questions, SETTINGS, evicting).responses) == expected
    assert len({hash_of(tmp_path / name) for name in ("s", "hot", "bare", "evicting")}) == 1
    assert verify(tmp_path / "s").problems == verify(bare).problems == []


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
def test_segments_that_do_not_fit_are_made_again(
    how: Damage, tmp_path: Path, make_log: MakeLog, questions: list[bytes], comparable: Comparable
) -> None:
    grow(tmp_path / "s", 1, make_log(1, 400))
    whole = packed(tmp_path / "s")
    damaged = copied(tmp_path / "s", "damaged")
    damage(damaged, how)
    if how(b"x" * 64) is not None:
        assert all("does not fit: it is made again" in problem for problem in verify(damaged).problems)
        assert len(verify(damaged).problems) == len(whole)
    expected = comparable(process(questions, SETTINGS, tmp_path / "s").responses)
    assert comparable(process(questions, SETTINGS, damaged).responses) == expected
    assert {*packed(damaged).values()} == {4, 16}


def test_a_model_that_segments_are_not_of_makes_its_own(tmp_path: Path, make_log: MakeLog) -> None:
    grow(tmp_path / "s", 1, make_log(1, 300))
    with Embedded.open(SETTINGS, tmp_path / "s") as embedded:
        partition = embedded.directory.partition(0)
        (owner, *_) = (keys.split(key)[0] for key, _ in partition.scan(keys.OWNERS) if keys.split(key)[1] == keys.REACH)
        before = dict(partition.scan(keys.table(owner, keys.SEGMENT)))
        other = segments.Segments(partition, owner, "another", 3)
        assert other.keep(4) == 4
        after = dict(partition.scan(keys.table(owner, keys.SEGMENT)))
    assert before != after


def test_nothing_of_a_forgotten_memory_is_left_in_a_segment(tmp_path: Path) -> None:
    owner = {"tenant_id": "acme", "user_id": "ann", "timestamp": 1}
    told = [owner | {"type": "memory", "id": f"m{n}", "content": f"secret{n} walnut"} for n in range(43)]
    changed = [owner | {"type": "memory.update", "memory_id": f"m{n}", "content": f"changed{n}"} for n in (3, 17)]
    asks = owner | {"type": "recall", "query": "walnut"}
    gone = [owner | {"type": "memory.forget", "memory_id": f"m{n}"} for n in (3, 9, 38, 41)]
    state_dir = tmp_path / "s"
    process([orjson.dumps(one) for one in [*told, asks, *changed]], SETTINGS, state_dir)

    def everything() -> bytes:
        with stored(state_dir) as partitions:
            return b"".join(value for one in partitions for _, value in one.everything())

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


def test_a_segment_that_says_something_else_than_the_entries_is_found(tmp_path: Path, make_log: MakeLog) -> None:
    grow(tmp_path / "s", 1, make_log(1, 300))
    with stored(tmp_path / "s") as partitions:
        for one in partitions:
            found = [key for key, _ in one.scan(keys.OWNERS) if keys.split(key)[1] == keys.SEGMENT]
            if found:
                entries = keys.entry(keys.split(found[0])[0], keys.sequence(found[0][:-8]))
                one.stage({entries: None})
                one.commit()
                break
    assert any("differs from the entries" in problem for problem in verify(tmp_path / "s").problems)
