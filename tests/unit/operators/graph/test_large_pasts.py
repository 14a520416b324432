"""What it costs an event to keep or to drop what the graph was: no more than it changes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recallflow.operators import work
from recallflow.operators.graph import changes
from recallflow.state.hot_graph import Staged
from recallflow.state.partition import Partition, Values
from recallflow.state.verify import verify
from tests.unit.operators.harness import MEMORIES, Harness, make_event, several

SHARE = 200
RECORDS_A_LINK = 4  # at most: the records that a step changes for each link of its share
WITNESSES, EDGES, VERSIONS, TAGS = 4, 60, 12, 20
FORGET: tuple[str, dict[str, Any]] = ("memory.forget", {"memory_id": "hub"})
UPDATE: tuple[str, dict[str, Any]] = ("memory.update", {"memory_id": "w0", "content": "and nothing else"})


class Looked(dict[bytes, bytes | None]):
    """What an event staged, which counts how many records are gone through. `all`: of every event so far."""

    all: list["Looked"] = []

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.all.append(self)

    def __iter__(self) -> Iterator[bytes]:
        self.count += len(self)
        return super().__iter__()

    def items(self) -> Any:
        self.count += len(self)
        return super().items()


@pytest.fixture
def said() -> list[dict[str, Any]]:
    """A memory that had very many edges, and has some; each version had other tags."""
    told = [make_event("memory", id=f"w{n}", content=f"witness {n}") for n in range(WITNESSES)]
    told.append(make_event("memory", id="hub", content="the hub"))
    for witness in range(WITNESSES):
        edges = [
            {"source": "hub", "target": f"entity:E{witness} {n}", "type": "about", "evidence": f"w{witness}"}
            for n in range(EDGES)
        ]
        told.append(make_event("graph.edges", edges=edges))
    told += [make_event("memory.update", memory_id=f"w{n}", content="else") for n in range(1, WITNESSES)]
    for version in range(VERSIONS):
        tags = [f"{version} {n}" for n in range(TAGS)]
        told.append(make_event("memory.update", memory_id="hub", content=f"the hub {version}", tags=tags))
    return told


@pytest.fixture
def make_harness(tmp_path: Path) -> Iterator[Callable[[], Harness]]:
    with several(tmp_path, Harness) as make:
        yield make


def test_forget_step_changes_a_bounded_share_of_a_past(
    make_harness: Callable[[], Harness], said: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stepped = make_harness(), make_harness()
    whole.run(MEMORIES, *said, make_event(FORGET[0], **FORGET[1]))
    stepped.run(MEMORIES, *said)
    changed: list[int] = []
    stage = Partition.stage

    def counted(partition: Partition, values: Values, *rest: Any) -> None:
        changed.append(len(values))
        stage(partition, values, *rest)

    monkeypatch.setattr(Partition, "stage", counted)
    monkeypatch.setattr(work, "SHARE", SHARE)
    stepped.run(MEMORIES, make_event(FORGET[0], **FORGET[1]))
    stepped.advance_to_end()
    assert max(changed) < RECORDS_A_LINK * SHARE < sum(changed)
    assert stepped.hash() == whole.hash()
    stepped.stop()
    assert verify(stepped.path).problems == []
    stepped.start()


@pytest.mark.parametrize(("kind", "fields"), [UPDATE, FORGET], ids=str)
def test_staged_records_are_not_scanned_per_edge(
    make_harness: Callable[[], Harness],
    said: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    fields: dict[str, Any],
) -> None:
    harness = make_harness()
    harness.run(MEMORIES, *said)
    monkeypatch.setattr(Looked, "all", [])
    monkeypatch.setattr(changes, "Staged", lambda: Staged(effects=Looked()))
    harness.run(MEMORIES, make_event(kind, **fields))
    harness.advance_to_end()
    largest = max(Looked.all, key=len)
    assert len(largest) > EDGES
    assert largest.count <= 5 * len(largest)
