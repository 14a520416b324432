"""Reading the memory graph: how long a query takes around a hub, and whether what the graph adds is evidence.
Called by `python -m benchmarks.graph`."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from benchmarks.conversation_events import TENANT, BrokenRunError, message_lines, query_lines
from benchmarks.locomo import Conversation
from recallflow.control import Rollout
from recallflow.decisions import History
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings

K, EXPANSION_K = 10, 5
HOPS = (1, 2, 3)
LINKS = 50_000  # of the hub
ASKED = 50  # queries a figure is the median of


def read(conversations: Sequence[Conversation], links: int) -> dict[str, Any]:
    """Both, printed and as figures."""
    figures: dict[str, Any] = {
        "hub": hub(conversations, links),
        "evidence": evidence(conversations, Settings(partitions=1)),
    }
    print(f"asking around a hub of {links:,} links, median ms")
    for name, value in figures["hub"].items():
        print(f"  {name:<22} {value:8.1f}")
    print(
        f"evidence in the answer, any / all: {K} ranked, {K + EXPANSION_K} ranked, {K} and up to {EXPANSION_K} expanded"
    )
    for category, ways in figures["evidence"].items():
        shown = "  ".join(f"{name} {rates['any']:.3f}/{rates['all']:.3f}" for name, rates in ways.items())
        print(f"  {category:<12} {shown}")
    return figures


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
    _check(processed, len(queries))
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


# ---------------------------------------------------------------------- evidence


def evidence(conversations: Iterable[Conversation], settings: Settings) -> dict[str, dict[str, dict[str, float]]]:
    """By question category: how often any, and all, of a question's evidence is in the answer; of as many memories
    without the graph (`baseline`), with it (`graph_1_hops`, …), and the ranked ones alone (`ranked`)."""
    found: dict[str, dict[str, list[tuple[bool, bool]]]] = defaultdict(lambda: defaultdict(list))
    for conversation in conversations:
        for name, k, chosen in _ways():
            queries = [orjson.dumps(orjson.loads(q) | {"k": k} | chosen) for q in query_lines(conversation, "hybrid")]
            processed = process([*message_lines(conversation), *queries], settings, None, canary())
            _check(processed, len(queries))
            for question, response in zip(conversation.questions, processed.responses, strict=True):
                ids = {memory["id"] for memory in response["memories"]}
                hit = bool(question.evidence & ids), question.evidence <= ids
                found[question.category][name].append(hit)
                found["all"][name].append(hit)
    return {
        category: {name: _rates(hits) for name, hits in sorted(ways.items())}
        for category, ways in sorted(found.items())
    }


def _ways() -> Iterator[tuple[str, int, dict[str, Any]]]:
    yield "ranked", K, {}
    yield "baseline", K + EXPANSION_K, {}
    for hops in HOPS:
        yield f"graph_{hops}_hops", K, {"strategy": "hybrid_graph", "traversal_depth": hops}


def _rates(hits: Sequence[tuple[bool, bool]]) -> dict[str, float]:
    return {
        "any": statistics.mean(any_ for any_, _ in hits),
        "all": statistics.mean(all_ for _, all_ in hits),
        "questions": len(hits),
    }


def _check(processed: Processed, queries: int) -> None:
    """Figures of a run that refused a line, or answered with less than was asked for, would mean nothing."""
    bad = [r for r in processed.responses if r["status"] != "ok" or r.get("fallback") is not None]
    if processed.rejected or bad or len(processed.responses) != queries:
        raise BrokenRunError(f"{processed.rejected[:1]} {bad[:1]} {len(processed.responses)} of {queries}")
