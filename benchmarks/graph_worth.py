"""What the graph adds to an answer, beside what the ranking would have added: evidence found, on every kind of chat.
Called by `python -m benchmarks.graph --part worth`.

Each question is asked for 15 ranked memories, and for 10 and up to 5 of the graph, in runs of their own, as an answer
teaches usage: as it is, one hop far, where only what was stated or given leads to a memory (none of these chats has
any); and with what is worked out too, one to three hops far. `as many`: of the 15 ranked those that the latter has with
one hop.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from unittest.mock import patch

import orjson

from benchmarks.conversation_events import message_lines, query_lines
from benchmarks.graph_read import HOPS, canary, check
from benchmarks.kinds import load
from benchmarks.locomo import Conversation, Question
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.operators.graph import query_graph

K, EXPANSION_K = 10, 5
RANKED, AS_MANY, GRAPH = "ranked", "as many", "graph"

Hit = tuple[bool, bool]
"""Whether any, and all, of a question's evidence is in an answer."""
Rows = dict[str, list[dict[str, Hit]]]


def worth(kinds: Sequence[str], settings: Settings) -> dict[str, Any]:
    """The figures of each kind of chat, printed as they come."""
    figures = {}
    print(f"any / all evidence in the answer: {K + EXPANSION_K} ranked; {K} and up to {EXPANSION_K} of the graph")
    for kind in kinds:
        figures[kind] = of_kind(load(kind), settings)
        for name, found in figures[kind].items():
            shown = "  ".join(f"{way} {any_:.3f}/{all_:.3f}" for way, (any_, all_) in found["ways"].items())
            print(f"{kind:<15} {name:<26} {found['questions']:5}  {shown}", flush=True)
    return {"worth": figures}


def of_kind(conversations: Iterable[Conversation], settings: Settings) -> dict[str, dict[str, Any]]:
    """By question category, by whether one memory or several are the evidence, and of all: the rates of each way."""
    rows: Rows = defaultdict(list)
    for conversation in conversations:
        ranked = _ask(conversation, settings, K + EXPANSION_K)
        graph = _ask(conversation, settings, K, HOPS[0])
        with patch.object(query_graph, "WORKED_OUT_COUNTS", 1.0):
            expanded = {hops: _ask(conversation, settings, K, hops) for hops in HOPS}
        for number, question in enumerate(conversation.questions):
            as_many = ranked[number][: len(expanded[HOPS[0]][number])]
            answers = {RANKED: ranked[number], AS_MANY: as_many, GRAPH: graph[number]}
            hits = {way: _hit(question, answer) for way, answer in answers.items()}
            hits |= {f"{hops} hops": _hit(question, found[number]) for hops, found in expanded.items()}
            for name in ("all", "several" if len(question.evidence) > 1 else "one", question.category):
                rows[name].append(hits)
    return {
        name: {"questions": len(hits), "ways": {way: _rates([hit[way] for hit in hits]) for way in hits[0]}}
        for name, hits in sorted(rows.items())
    }


def _ask(conversation: Conversation, settings: Settings, k: int, hops: int | None = None) -> list[list[str]]:
    """Ids of the memories of each answer, best first; by the graph where there are `hops`."""
    chosen = {} if hops is None else {"strategy": "hybrid_graph", "traversal_depth": hops}
    queries = [orjson.dumps(orjson.loads(line) | {"k": k} | chosen) for line in query_lines(conversation, "hybrid")]
    processed = process([*message_lines(conversation), *queries], settings, None, canary())
    check(processed, len(queries))
    return [[memory["id"] for memory in response["memories"]] for response in processed.responses]


def _hit(question: Question, answer: Sequence[str]) -> Hit:
    return not question.evidence.isdisjoint(answer), question.evidence <= {*answer}


def _rates(hits: Sequence[Hit]) -> tuple[float, float]:
    return statistics.mean(any_ for any_, _ in hits), statistics.mean(all_ for _, all_ in hits)
