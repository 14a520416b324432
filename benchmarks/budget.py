"""Evidence per token: the share of questions whose evidence is in a context of 500, 1,000 and 2,000 tokens.

    python -m benchmarks.budget [--embedder hash] [--kinds locomo,assistant,…] [--tokens 500,1000,2000] [--no-mem0]
        [--quick] [--json FILE]

"Some" counts questions with at least one evidence memory in the context, "all" those with every one. A memory counts if
its text is in the context, from itself or from a memory of the same text. A long text counts as well if the context has
its best passage; "whole" counts whole texts alone. BM25 and mem0 fill the same budget with whole memories by rank, and
skip a memory that does not fit. For all, the texts alone are counted, without authors and dates, by one counter.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks import kinds
from benchmarks.baselines import BASELINES, Remembering
from benchmarks.command_line import names_of, reported_errors, token_limits, write_json
from benchmarks.conversation_events import FlowStore, embedder_arguments, embedder_settings
from benchmarks.locomo import Conversation
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.model_embedders import load_tiktoken
from recallflow.embedder import token_counter
from recallflow.queries import K_MAX

COMPARED = ("bm25", "mem0")
RANKED = 400  # memories that another system returns: more than the largest budget holds
MEASURES = ("some", "all", "all, whole", "tokens", "memories")


class Filled(NamedTuple):
    """Memories in a context: the text shown of each by id, and the tokens of the texts."""

    shown: Mapping[str, str]
    tokens: int


def fill(ranked: Iterable[tuple[str, str]], limit: int, count: Callable[[str], int]) -> Filled:
    """Return the ranked memories that fit into the limit. `ranked` are ids with texts."""
    shown, tokens = dict[str, str](), 0
    for name, text in ranked:
        if tokens + (size := count(text)) <= limit:
            shown[name] = text
            tokens += size
    return Filled(shown, tokens)


def contexts(store: FlowStore, limit: int, count: Callable[[str], int], k: int = K_MAX) -> list[list[Filled]]:
    """Return recallflow's contexts by conversation and question."""
    return [
        [
            fill(((one["id"], one["content"]) for one in response["context"]["relevant_items"]), limit, count)
            for response in processed.responses
        ]
        for processed in store.ask(k=k, max_tokens=limit)[0]
    ]


def evidence_in(filled: Filled, evidence: frozenset[str], texts: Mapping[str, str]) -> tuple[bool, bool, bool]:
    """Return whether some, all, and all whole texts of the evidence are in a context. `texts` are those of all memories
    by id."""
    wanted, shown = {texts[name] for name in evidence}, {texts[name] for name in filled.shown}
    whole = {texts[name] for name, text in filled.shown.items() if text.endswith(texts[name])}
    return not wanted.isdisjoint(shown), wanted <= shown, wanted <= whole


def measure(conversations: Sequence[Conversation], filled: Sequence[Sequence[Filled]]) -> dict[str, float]:
    """Return the means over all questions."""
    rows = []
    for conversation, of in zip(conversations, filled, strict=True):
        texts = {turn.id: turn.content for turn in conversation.turns}
        for question, one in zip(conversation.questions, of, strict=True):
            rows.append((*evidence_in(one, question.evidence, texts), one.tokens, len(one.shown)))
    return dict(zip(MEASURES, map(fmean, zip(*rows, strict=True)), strict=True))


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    parser = embedder_arguments(__doc__)
    parser.add_argument("--kinds", type=names_of(kinds.KINDS), default=kinds.KINDS)
    parser.add_argument("--tokens", type=token_limits, default=[500, 1000, 2000])
    parser.add_argument("--k", type=int, default=K_MAX, help="memories of the answer")
    parser.add_argument("--no-mem0", action="store_true", help="leave mem0 out")
    parser.add_argument("--quick", action="store_true", help="one conversation of two kinds, 1,000 tokens, no mem0")
    chosen = parser.parse_args(argv)
    if chosen.quick:
        chosen.kinds, chosen.tokens = ("locomo", "assistant"), [1000]
    settings, every_kind = embedder_settings(chosen), {one: kinds.load(one) for one in chosen.kinds}
    figures = dict[str, Any]()
    embedder = load_embedder(settings.embedder, settings.model_path)
    counter, loaded = token_counter(load_tiktoken(), embedder), Remembering(embedder)
    count = cache(counter.count_tokens)
    print(f"{settings.embedder}; {' / '.join(MEASURES)}; tokens by {counter.counted_by}")
    for kind, every in every_kind.items():
        conversations = every[: 1 if chosen.quick else None]
        rankings = dict[str, list[list[list[str]]]]()
        for baseline in BASELINES:
            if baseline.name not in COMPARED or (baseline.name == "mem0" and (chosen.no_mem0 or chosen.quick)):
                continue
            if reason := baseline.unavailable():
                print(f"{kind}, {baseline.name}: {reason}", file=sys.stderr)
                continue
            retriever = baseline.build(loaded)
            rankings[baseline.name] = [[] for _ in conversations]
            for conversation, ranked in zip(conversations, rankings[baseline.name], strict=True):
                retriever.ingest(conversation.turns)
                ranked += [retriever.search(question.text, RANKED) for question in conversation.questions]
        store = FlowStore(settings, conversations)
        texts = [{turn.id: turn.content for turn in one.turns} for one in conversations]
        for tokens in chosen.tokens:
            filled = {"recallflow": contexts(store, tokens, count, chosen.k)}
            for name, ranked_by in rankings.items():
                filled[name] = [
                    [fill(((one, of[one]) for one in ids), tokens, count) for ids in rows]
                    for rows, of in zip(ranked_by, texts, strict=True)
                ]
            for name, found_by in filled.items():
                figures[f"{kind} {tokens} {name}"] = found = measure(conversations, found_by)
                means = " / ".join(f"{value:.3f}" for value in found.values())
                print(f"{kind:<18} {tokens:5} {name:<11} {means}", flush=True)
    write_json(figures, chosen.json)


if __name__ == "__main__":
    main()
