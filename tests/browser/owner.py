"""The memories of one person, as events: few, to be looked at closely."""

from collections.abc import Iterator
from typing import Any

from tests.browser.large_graph import HOUR_MS, START_MS

OWNER = {"tenant_id": "acme", "user_id": "ann"}
SCRIPT = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'> [here](javascript:alert(1)) \u202eexe.gnp"
QUOTE = "my knee hurts 🦵 after long runs"
DAY_MS = 24 * HOUR_MS


def close_up() -> Iterator[dict[str, Any]]:
    """A dozen memories: relations with evidence, an expiry, a superseded one, and texts that pose as markup."""
    yield _message("m1", 0, "s1", f"I went to Doctor Lee because {QUOTE}")
    yield _message("m2", HOUR_MS, "s1", "Doctor Lee says to swim instead of running for a month")
    yield _message("m3", 2 * HOUR_MS, "s1", SCRIPT)
    yield _memory(
        "m4", DAY_MS, content="Ann swims at Harbour Pool on Tuesdays",
        entities=[{"name": "Harbour Pool", "type": "place"}, {"name": "Doctor Lee", "type": "person"}],
        relations=[{"source": "Doctor Lee", "type": "recommends", "target": "Harbour Pool", "weight": 0.8}],
        tags=["sport"], topics=["health"], project_id="knee",
    )  # fmt: skip
    yield _memory("m5", 2 * DAY_MS, content="Ann's knee is fine again", topics=["health"], tags=["sport"])
    yield _memory("m6", 3 * DAY_MS, content="Ann prefers tea", category="food")
    for number in range(3):
        yield _message(
            f"n{number}", (5 + number) * DAY_MS, f"later{number}", f"Tickets for concert {number} are bought"
        )
    edges = [
        _edge("m1", "m2", "caused_by", evidence=QUOTE, confidence=0.9, weight=0.7),
        _edge("m5", "m1", "supersedes", confidence=0.95),
        _edge("m2", "m4", "depends_on", expires_at=START_MS + 900 * DAY_MS),
    ]
    yield OWNER | {"type": "graph.edges", "id": "e1", "timestamp": START_MS + 4 * DAY_MS, "edges": edges}


def moves() -> Iterator[dict[str, Any]]:
    """A statement, and one that replaces it, of the user `mover`."""
    for number, content in enumerate(("I live in Porto", "I moved to Lisbon, I live in Lisbon now")):
        yield _memory(f"move{number}", 2 * number * DAY_MS, content=content, user_id="mover")


def _message(id_: str, at_ms: int, session: str, content: str) -> dict[str, Any]:
    return OWNER | {
        "type": "message", "id": id_, "timestamp": START_MS + at_ms, "session_id": session, "name": "Ann",
        "content": content,
    }  # fmt: skip


def _memory(id_: str, at_ms: int, **fields: Any) -> dict[str, Any]:
    return OWNER | {"type": "memory", "id": id_, "timestamp": START_MS + at_ms} | fields


def _edge(source: str, target: str, type_: str, **fields: Any) -> dict[str, Any]:
    return {"source": source, "target": target, "type": type_} | fields
