"""Evidence per token: the share of questions whose evidence is in a context of 500, 1,000 and 2,000 tokens.

    python -m benchmarks.budget [--embedder hash] [--kinds locomo,assistant,…] [--tokens 500,1000,2000] [--no-mem0]
        [--quick] [--json FILE]

"Some" counts questions with at least one evidence memory in the context, "all" those with every one. A memory counts if
its text is in the context, from itself or from a memory of the same text. A long text counts as well if the context has
its best passage; "whole" counts whole texts alone. BM25 and mem0 fill the same budget with whole memories by rank, and
skip a memory that does not fit. Tokens are counted alike for all (`operators/recall/context.py`).
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

import orjson

from benchmarks import kinds
from benchmarks.baselines import BASELINES, Remembering
from benchmarks.conversation_events import embedder_arguments, embedder_settings, message_lines, query_lines
from benchmarks.locomo import Conversation
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.model_embedders import load_tiktoken
from recallflow.embedder import token_counter
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.queries import K_MAX

COMPARED = ("bm25", "mem0")
RANKED = 200  # memories that a baseline ranks
MEASURES = ("some", "all", "all, whole", "tokens", "memories")


class Filled(NamedTuple):
    """The texts in a context, those of them that are whole, and the tokens used."""

    texts: frozenset[str]
    whole: frozenset[str]
    tokens: int

    @classmethod
    def whole_texts(cls, names: Iterable[str], tokens: int, texts: Mapping[str, str]) -> Self:
        """Return a context of whole memories. `texts` are those of all memories by name."""
        found = frozenset(texts[name] for name in names)
        return cls(found, found, tokens)


def ask_flow(settings: Settings, conversation: Conversation, tokens: int, k: int = K_MAX) -> list[Filled]:
    """Return the context of each question, by the flow."""
    lines = [
        orjson.dumps(orjson.loads(line) | {"max_tokens": tokens}) for line in query_lines(conversation, "hybrid", k)
    ]
    processed = process([*message_lines(conversation), *lines], settings)
    texts = {turn.id: turn.content for turn in conversation.turns}
    found = []
    for response in processed.responses:
        items = [(texts[item["id"]], item["content"]) for item in response["context"]["relevant_items"]]
        whole = frozenset(text for text, shown in items if shown.endswith(text))
        found.append(Filled(frozenset(text for text, _ in items), whole, response["context"]["token_count"]))
    return found


def fill(sizes: Iterable[tuple[str, int]], tokens: int) -> tuple[frozenset[str], int]:
    """Return the ranked memories that fit into the budget, and the tokens used. `sizes` are names with their tokens."""
    chosen, spent = set[str](), 0
    for name, size in sizes:
        if spent + size <= tokens:
            chosen.add(name)
            spent += size
    return frozenset(chosen), spent


def measure(conversations: Sequence[Conversation], filled: Sequence[Sequence[Filled]]) -> dict[str, float]:
    """Return the means over all questions."""
    rows = []
    for conversation, contexts in zip(conversations, filled, strict=True):
        texts = {turn.id: turn.content for turn in conversation.turns}
        for question, context in zip(conversation.questions, contexts, strict=True):
            evidence = {texts[name] for name in question.evidence}
            held = evidence & context.texts
            rows.append((bool(held), held == evidence, evidence <= context.whole, context.tokens, len(context.texts)))
    return dict(zip(MEASURES, map(fmean, zip(*rows, strict=True)), strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    parser = embedder_arguments(__doc__)
    parser.add_argument("--kinds", default=",".join(kinds.KINDS))
    parser.add_argument("--tokens", default="500,1000,2000")
    parser.add_argument("--k", type=int, default=K_MAX, help="memories of the answer")
    parser.add_argument("--no-mem0", action="store_true", help="leave mem0 out")
    parser.add_argument("--quick", action="store_true", help="one conversation of two kinds, 1,000 tokens, no mem0")
    chosen = parser.parse_args(argv)
    if chosen.quick:
        chosen.kinds, chosen.tokens = "locomo,assistant", "1000"
    settings, figures = embedder_settings(chosen), dict[str, Any]()
    embedder = load_embedder(settings.embedder, settings.model_path)
    counter, loaded = token_counter(load_tiktoken(), embedder), Remembering(embedder)
    print(f"{settings.embedder}; {' / '.join(MEASURES)}; tokens by {counter.counted_by}")
    for kind in chosen.kinds.split(","):
        conversations = kinds.load(kind)[: 1 if chosen.quick else None]
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
        texts = [{turn.id: turn.content for turn in one.turns} for one in conversations]
        sizes = [{turn.id: counter.count_tokens(turn.memory) for turn in one.turns} for one in conversations]
        for tokens in map(int, chosen.tokens.split(",")):
            filled = {"recallflow": [ask_flow(settings, one, tokens, chosen.k) for one in conversations]}
            for name, ranked_by in rankings.items():
                filled[name] = [
                    [Filled.whole_texts(*fill(((one, size[one]) for one in ids), tokens), text) for ids in every]
                    for every, size, text in zip(ranked_by, sizes, texts, strict=True)
                ]
            for name, contexts in filled.items():
                figures[f"{kind} {tokens} {name}"] = found = measure(conversations, contexts)
                print(
                    f"{kind:<18} {tokens:5} {name:<11}",
                    " / ".join(f"{value:.3f}" for value in found.values()),
                    flush=True,
                )
    if chosen.json:
        Path(chosen.json).write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
