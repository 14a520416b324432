"""Reading the memory graph: how long a query takes around a hub. Called by `python -m benchmarks.graph`."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from benchmarks.conversation_events import TENANT, BrokenRunError
from benchmarks.locomo import Conversation
from recallflow.control import Rollout
from recallflow.decisions import History
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings

HOPS = (1, 2, 3)
LINKS = 50_000  # of the hub
ASKED = 50  # queries a figure is the median of


def read(conversations: Sequence[Conversation], links: int) -> dict[str, Any]:
    """The figures, printed."""
    figures = hub(conversations, links)
    print(f"asking around a hub of {links:,} links, median ms")
    for name, value in figures.items():
        print(f"  {name:<22} {value:8.1f}")
    return {"hub": figures}


def canary() -> History:
    """Decisions under which the graph is applied."""
    history = History()
    history.add(0, Rollout(type="graph.rollout", tenant_id=TENANT, name="default", mode="canary"))
    return history


# ---------------------------------------------------------------------- hub


def hub(conversations: Sequence[Conversation], links: int) -> dict[str, float]:
    """Median milliseconds of expansion, and of the whole query, by hops. All memories of one owner share one topic, a
    hundred share another, and ten share a tag."""
    asked = [question.text for conversation in conversations for question in conversation.questions][:ASKED]
    queries = [_query(f"{hops}-{n}", text, hops) for hops in HOPS for n, text in enumerate(asked)]
    processed = process([*_hub_lines(conversations, links), *queries], Settings(), None, canary())
    check(processed, len(queries))
    figures: dict[str, float] = {}
    for number, hops in enumerate(HOPS):
        answered = processed.responses[number * len(asked) : (number + 1) * len(asked)]
        expand = [response["routing_info"]["stages_ms"]["expand"] for response in answered]
        figures[f"expansion_ms_{hops}_hops"] = statistics.median(expand)
        figures[f"query_ms_{hops}_hops"] = statistics.median(response["processing_time_ms"] for response in answered)
    return figures


def _hub_lines(conversations: Sequence[Conversation], links: int) -> Iterator[bytes]:
    said = [turn.content for conversation in conversations for turn in conversation.turns if turn.content.strip()]
    for n in range(links):
        shared_nodes = {"topics": ["hub", f"topic {n % (links // 100)}"], "tags": [f"tag {n % (links // 10)}"]}
        yield _event("memory", f"m{n}", content=said[n % len(said)], **shared_nodes)


def _event(kind: str, name: str, **fields: Any) -> bytes:
    return orjson.dumps({"type": kind, "id": name, "tenant_id": TENANT, "user_id": "hub", "timestamp": 0} | fields)


def _query(name: str, text: str, hops: int) -> bytes:
    return _event("recall", name, query=text, strategy="hybrid_graph", traversal_depth=hops, explain=False)


def check(processed: Processed, queries: int) -> None:
    """Figures of a run that refused a line, or answered with less than was asked for, would mean nothing."""
    bad = [r for r in processed.responses if r["status"] != "ok" or r.get("fallback") is not None]
    if processed.rejected or bad or len(processed.responses) != queries:
        raise BrokenRunError(f"{processed.rejected[:1]} {bad[:1]} {len(processed.responses)} of {queries}")
