"""Events of results in the engine: each is applied, and undone with its sources."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.events import EnrichmentResult, ShownEntity, ShownMemory
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings
from tests.unit.operators.enrichment.models import OWNER, Scripted, Vectors, memory, request, results

LISBON = memory("told-1", "I live in Lisbon with my cat Tom.", "2026-01-05", name="Ann")
PORTO = memory("told-2", "Last week I moved to Porto, as Annie works there.", "2026-03-02", name="Ann")
TOLD = [
    OWNER
    | {"type": "message", "id": one.memory_id, "session_id": "s1", "name": one.name, "content": one.content}
    | {"timestamp": one.created_at}
    for one in (LISBON, PORTO)
]
SAID: dict[str, Any] = {
    "classify": {"verdicts": [{"memory": "m2", "verdict": "refines", "confidence": 0.9, "evidence": "moved to Porto"}]},
    "extract": {
        "relations": [
            {
                "source": {"kind": source, "name": name}, "type": says, "target": {"kind": kind, "name": target},
                "weight": 0.8, "confidence": 0.9, "evidence": "I moved to Porto", "expires_at": expires,
            }
            for source, name, says, kind, target, expires in (
                ("memory", "m1", "caused_by", "entity", "Annie", None),
                ("memory", "m1", "depends_on", "memory", "m2", "2027-01-01"),
                ("memory", "m1", "conditional_on", "condition", "time:9:30", None),
                ("entity", "Porto", "prefers_over", "entity", "Ann", None),
            )
        ]
    },
    "resolve": {
        "verdicts": [
            {"name": f"n{n}", "entity": "e1", "verdict": "same", "confidence": 0.9, "evidence": "as Annie works there"}
            for n in range(1, 4)
        ]
    },
    "facts": {
        "facts": [
            {
                "message": "m1", "content": "Ann has lived in Porto since February 2026, without Tom.", "kind": "event",
                "confidence": 0.9, "evidence": "I moved to Porto", "entities": [{"name": "Ann", "type": "person"}],
                "valid_from": "2026-02-20", "valid_to": None,
            }
        ]
    },
    "categorise": {"assigned": [{"memory": "m1", "category": "homes", "confidence": 0.9}]},
    "summarise_category": {"summary": "Ann moved to Porto."},
    "summarise_episode": {"summary": "Ann told that she moved to Porto."},
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Processed]:
    """Applies events, each asking for a receipt, on one state directory."""

    def apply(*events: dict[str, Any]) -> Processed:
        lines = [orjson.dumps(event if event["type"] == "recall" else event | {"receipt": True}) for event in events]
        return process(lines, Settings(partitions=1), tmp_path / "state")

    return apply


def enriched(tasks: Sequence[str], about: Sequence[ShownMemory] = (PORTO,), **fields: Any) -> EnrichmentResult:
    known = ShownEntity(key="entity:anna silva", name="Anna Silva")
    beside: dict[str, Any] = {"similar": [LISBON], "recent": [LISBON], "entities": [known]} | fields
    (result,) = results([request(tasks, *about, **beside)], Scripted(**SAID), Vectors(), {"homes": ""})
    assert (result.failures, result.refused) == ([], {"no_evidence": 2} if "resolve" in tasks else {})
    return result


def outcomes(processed: Processed) -> list[str]:
    assert processed.rejected == []
    return [receipt["outcome"] for receipt in processed.receipts]


@pytest.mark.parametrize(
    ("task", "count", "outcome"),
    [
        ("classify", 1, "updated"), ("extract", 4, "updated"), ("resolve", 1, "updated"), ("facts", 1, "created"),
        ("categorise", 1, "updated"), ("summarise_category", 1, "updated"),
    ],
)  # fmt: skip
def test_result_events_apply_once_and_not_after_deletion(
    run: Callable[..., Processed], task: str, count: int, outcome: str
) -> None:
    fields: dict[str, Any] = {"category": "homes"} if task == "summarise_category" else {}
    events = enriched([task], **fields).events
    assert len(events) == count
    assert outcomes(run(*TOLD, *events))[2:] == [outcome] * count
    assert {*outcomes(run(*events))} <= {"duplicate", "unchanged"}
    forgotten = run(OWNER | {"type": "memory.forget", "memory_id": "told-2"}, *enriched_again(events))
    assert outcomes(forgotten) == ["forgotten", *["outdated"] * count]


def enriched_again(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event | {"id": f"again-{number}"} for number, event in enumerate(events)]
