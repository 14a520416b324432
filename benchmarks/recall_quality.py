"""Recall quality on every kind of chat: recallflow, cosine, BM25, their fusion and mem0, with one embedder.

    python -m benchmarks.recall_quality [--embedder hash|meaning|static|minilm|all] [--kinds locomo,assistant,…]
        [--stores whole,session,small] [--modes hybrid,relevance] [--no-mem0] [--quick] [--json FILE]

One message, or fact, is one memory. `--stores session` makes each session an owner of its own, `small` stores of 1 to
10 memories around the evidence. Nothing is fitted here. Weights that were fitted to these conversations make the
figures optimistic; `benchmarks.fit_weights` has those of left-out conversations. Seconds are processor time.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from benchmarks.baselines import BASELINES, Remembering
from benchmarks.command_line import names_of, reported_errors, write_json
from benchmarks.conversation_events import EMBEDDERS, FlowStore, embedder_arguments, model_path
from benchmarks.kinds import KINDS, by_session, load, small_stores
from benchmarks.leaderboard import Answers, ask_baseline, ask_flow
from benchmarks.leaderboard_page import SHOWN, share, table
from benchmarks.locomo import Conversation, score, summarise
from recallflow.connectors.embedders import load_embedder
from recallflow.flows.settings import Settings
from recallflow.queries import Mode

STORES = ("whole", "session", "small")


def judged(done: Answers, conversations: Sequence[Conversation]) -> dict[str, Any]:
    """Return the measures of the rankings."""
    every = [(conversation, question) for conversation in conversations for question in conversation.questions]
    scores = [score(*of, ranked) for of, ranked in zip(every, done.rankings, strict=True)]
    return {**summarise(scores), "ingest_s": done.ingest_s, "questions_s": done.questions_s}


def run_all(settings: Settings, name: str, conversations: Sequence[Conversation], modes: Sequence[str],
            *, mem0: bool) -> dict[str, Any]:  # fmt: skip
    """Return the measures of every engine with one embedder. mem0 would need a database for each small store."""
    shared, found = Remembering(load_embedder(settings.embedder, settings.model_path)), dict[str, Any]()
    for baseline in BASELINES:
        if baseline.name == "mem0" and (not mem0 or "/" in name):
            continue
        if reason := baseline.unavailable():
            print(f"{baseline.name}: {reason}", file=sys.stderr)
        else:
            print(f"{settings.embedder}, {name}: {baseline.name} …", file=sys.stderr)
            found[baseline.name] = judged(ask_baseline(baseline.build(shared), conversations), conversations)
    store = FlowStore(settings, conversations)
    for mode in modes:
        print(f"{settings.embedder}, {name}: recallflow {mode} …", file=sys.stderr)
        found[f"recallflow {mode}"] = judged(ask_flow(store, mode), conversations)
    return found


def load_stores(kinds: Sequence[str], stores: Sequence[str], *, quick: bool) -> dict[str, Sequence[Conversation]]:
    """Return the conversations by kind and stores: `locomo`, `locomo/session`."""
    sets: dict[str, Sequence[Conversation]] = {}
    for kind in kinds:
        whole = load(kind)[: 1 if quick else None]
        every = {"whole": whole, "session": [store for one in whole for store in by_session(one)]}
        every["small"] = small_stores(whole)
        sets |= {kind if name == "whole" else f"{kind}/{name}": every[name] for name in stores}
    return sets


def report(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with a row for each kind and a column for each engine, and one of the seconds."""
    engines = [*dict.fromkeys(engine for found in runs.values() for engine in found)]
    shares, seconds = [["kind (questions)", *engines]], [["kind: ingest s / questions s", *engines]]
    for kind, found in runs.items():
        means = {engine: one["overall"] for engine, one in found.items()}
        shown = {engine: " / ".join(share(one[name]) for name in SHOWN) for engine, one in means.items()}
        took = {engine: f"{one['ingest_s']:.1f} / {one['questions_s']:.1f}" for engine, one in found.items()}
        count = next(iter(means.values()))["questions"]
        shares.append([f"{kind} ({count:,})", *(shown.get(engine, "") for engine in engines)])
        seconds.append([kind, *(took.get(engine, "") for engine in engines)])
    return f"{' / '.join(SHOWN)}\n\n{table(shares)}\n\n{table(seconds)}"


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    parser = embedder_arguments(__doc__, "all")
    parser.set_defaults(embedder="all")
    parser.add_argument("--kinds", type=names_of(KINDS), default=KINDS)
    parser.add_argument("--stores", type=names_of(STORES), default=STORES[:1])
    parser.add_argument("--modes", type=names_of(get_args(Mode)), default=("hybrid", "relevance"))
    parser.add_argument("--no-mem0", action="store_true", help="leave mem0 out")
    parser.add_argument("--quick", action="store_true", help="the first conversation of each kind, hash, without mem0")
    chosen = parser.parse_args(argv)
    if chosen.quick and chosen.embedder == "all":
        chosen.embedder = "hash"
    names, figures = EMBEDDERS if chosen.embedder == "all" else (chosen.embedder,), dict[str, Any]()
    sets = load_stores(chosen.kinds, chosen.stores, quick=chosen.quick)
    for name in names:
        settings = Settings(embedder=name, model_path=model_path(name, chosen.model_path))
        figures[name] = {
            kind: run_all(settings, kind, of, chosen.modes, mem0=not (chosen.quick or chosen.no_mem0))
            for kind, of in sets.items()
        }
        print(f"## {name}\n\n{report(figures[name])}", flush=True)
    write_json(figures, chosen.json)


if __name__ == "__main__":
    main()
