"""Recall quality on every kind of chat: the flow itself beside cosine, BM25, their fusion and mem0, with one embedder.

    python -m benchmarks.recall_quality [--embedder hash|meaning|static|minilm|all] [--kinds locomo,assistant,…]
        [--stores whole,session,small] [--modes hybrid,relevance] [--without author,date]
        [--min KIND:NAME=VALUE …] [--no-mem0] [--quick] [--json FILE] [--save]

One message, or fact, is one memory. `--stores session` makes each session an owner of its own, `small` stores of 1 to
10 memories around the evidence. A kind in other stores is called `locomo/session`. `--min` is a gate for the first of
the modes: VALUE is a number, or an engine whose figure counts (`assistant/small:nDCG@10=bm25`); `*` is every kind.
Nothing is fitted here; see the note that is printed with the figures.
"""

import argparse
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import orjson

from benchmarks.baselines import BASELINES, Embedder, Remembering, Retriever
from benchmarks.conversation_events import EMBEDDERS, TOLD, answers, message_lines, model_path, query_lines
from benchmarks.kinds import KINDS, by_session, load, small_stores
from benchmarks.locomo import DEPTHS, Conversation, MissingDataError, Score, score, summarise
from benchmarks.recall_gates import Gate, missed, parse_gate
from benchmarks.recall_report import Result, document, heading, plot, report
from recallflow.connectors.embedders import load_embedder
from recallflow.errors import EmbedderError
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings
from recallflow.queries import Mode

RESULTS = Path(__file__).parent / "results"
STORES = ("whole", "session", "small")

Sets = Mapping[str, Sequence[Conversation]]


@dataclass(frozen=True, slots=True)
class Asked:
    """Turn ids per question, best first, conversation by conversation, and the wall time it took."""

    rankings: list[list[str]]
    ingest_s: float
    questions_s: float


def ask_flow(mode: str, settings: Settings, without: Collection[str], conversations: Sequence[Conversation]) -> Asked:
    """The flow on an empty state: the whole log of all conversations first, then every question.

    The flow pulls lines as it goes, so the moment it asks for the first query splits ingest from questions, to within
    one batch.
    """
    first_query_at = 0.0

    def lines() -> Iterator[bytes]:
        nonlocal first_query_at
        for conversation in conversations:
            yield from message_lines(conversation, without)
        first_query_at = time.perf_counter()
        for conversation in conversations:
            yield from query_lines(conversation, mode)

    began = time.perf_counter()
    processed = process(lines(), settings)
    ended = time.perf_counter()
    return Asked(_rankings(processed, conversations), first_query_at - began, ended - first_query_at)


def _rankings(processed: Processed, conversations: Sequence[Conversation]) -> list[list[str]]:
    responses = iter(processed.responses)
    rankings = []
    for conversation in conversations:
        own = Processed([*islice(responses, len(conversation.questions))], processed.rejected)
        rankings += answers(own, conversation)
    return rankings


def ask_baseline(retriever: Retriever, conversations: Sequence[Conversation]) -> Asked:
    """The same of a baseline."""
    rankings: list[list[str]] = []
    ingest_s = questions_s = 0.0
    for conversation in conversations:
        began = time.perf_counter()
        retriever.ingest(conversation.turns)
        ingested = time.perf_counter()
        rankings += [retriever.search(question.text, max(DEPTHS)) for question in conversation.questions]
        ingest_s += ingested - began
        questions_s += time.perf_counter() - ingested
    return Asked(rankings, ingest_s, questions_s)


def judged(engine: str, asked: Asked, conversations: Sequence[Conversation]) -> Result:
    """What the rankings are worth."""
    every = [(conversation, question) for conversation in conversations for question in conversation.questions]
    scores: list[Score] = [score(*of, ranked) for of, ranked in zip(every, asked.rankings, strict=True)]
    return Result(engine, summarise(scores), asked.ingest_s, asked.questions_s)


def run_all(settings: Settings, chosen: argparse.Namespace, sets: Sets) -> dict[str, list[Result]]:
    """Every engine with one embedder, by set of conversations."""
    loaded = Remembering(load_embedder(settings.embedder, settings.model_path))
    results = {}
    for name, conversations in sets.items():
        found = baselines(name, loaded, conversations, chosen.no_mem0)
        for left_out in ((), tuple(chosen.without)) if chosen.without else ((),):
            for mode in chosen.modes:
                engine = f"recallflow {mode}" + (f", without {' and '.join(left_out)}" if left_out else "")
                print(f"{settings.embedder}, {name}: {engine} …", file=sys.stderr)
                found.append(judged(engine, ask_flow(mode, settings, left_out, conversations), conversations))
        results[name] = found
    return results


def baselines(name: str, embedder: Embedder, conversations: Sequence[Conversation], no_mem0: str) -> list[Result]:
    """What recallflow is compared with. `no_mem0`: why that is left out, or empty; it is of small stores too, of which
    each would be a database of its own."""
    results = []
    for baseline in BASELINES:
        print(f"{embedder.name}, {name}: {baseline.name} …", file=sys.stderr)
        left_out = (no_mem0 or ("left out" if "/" in name else "")) if baseline.name == "mem0" else ""
        if reason := left_out or baseline.unavailable():
            results.append(Result(baseline.name, {}, skipped=reason))
        else:
            asked = ask_baseline(baseline.build(embedder), conversations)
            results.append(judged(baseline.name, asked, conversations))
    return results


def load_sets(kinds: Sequence[str], stores: Sequence[str], *, quick: bool) -> Sets:
    """The conversations asked for, by kind and stores."""
    sets: dict[str, Sequence[Conversation]] = {}
    for kind in kinds:
        whole = load(kind)[: 1 if quick else None]
        every = {"whole": whole, "session": [store for one in whole for store in by_session(one)]}
        every["small"] = small_stores(whole)
        sets |= {kind if name == "whole" else f"{kind}/{name}": every[name] for name in stores}
    return sets


# ---------------------------------------------------------------------- command line


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, refused as a whole where a part of it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recall_quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--embedder", choices=(*EMBEDDERS, "all"), default="all")
    parser.add_argument("--model-path", type=Path, help="the model's folder [the shared folder's]")
    parser.add_argument("--kinds", type=_names(KINDS), default=KINDS, help=f"of chat [{','.join(KINDS)}]")
    parser.add_argument("--stores", type=_names(STORES), default=STORES[:1], help=f"of {', '.join(STORES)} [whole]")
    parser.add_argument("--modes", type=_names(get_args(Mode)), default=("hybrid", "relevance"), help="recall modes")
    parser.add_argument("--without", type=_names(TOLD), default=(), help="ask again of messages without these")
    parser.add_argument("--min", type=parse_gate, action="append", default=[], metavar="KIND:NAME=VALUE")
    parser.add_argument("--quick", action="store_true", help="the first conversation of each kind, hash, without mem0")
    parser.add_argument("--no-mem0", action="store_true", help="leave mem0 out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--save", action="store_true", help=f"write figures and plot to {RESULTS.name}/ too")
    chosen = parser.parse_args(argv)
    chosen.no_mem0 = "left out (--quick)" if chosen.quick else "left out (--no-mem0)" if chosen.no_mem0 else ""
    if chosen.quick and chosen.embedder == "all":
        chosen.embedder = "hash"
    if chosen.model_path and chosen.embedder in ("hash", "all"):
        parser.error("--model-path is one model's: give --embedder static or minilm")
    if chosen.save and chosen.quick:
        parser.error("--save keeps full runs only; give --json FILE with --quick")
    if chosen.save and find_spec("matplotlib") is None:
        parser.error("--save draws a plot: pip install 'recallflow[bench]'")
    return chosen


def _names(known: Sequence[str]) -> Any:
    """Reads names separated by commas, each of them known."""

    def names(text: str) -> tuple[str, ...]:
        given = tuple(text.split(","))
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"no such thing: {', '.join(unknown)} (there are {', '.join(known)})")
        return given

    return names


def main(argv: Sequence[str] | None = None) -> None:
    """Runs, prints, writes, and fails where a gate is missed."""
    chosen = arguments(argv)
    names = EMBEDDERS if chosen.embedder == "all" else (chosen.embedder,)
    try:
        sets = load_sets(chosen.kinds, chosen.stores, quick=chosen.quick)
        every = [Settings(embedder=name, model_path=model_path(name, chosen.model_path)) for name in names]
    except MissingDataError as error:
        sys.exit(str(error))
    print(heading(sets), flush=True)
    runs = {}
    for settings in every:
        try:
            runs[settings.embedder] = run_all(settings, chosen, sets)
        except EmbedderError as error:
            sys.exit(str(error))
        print(f"\n{report(settings.embedder, runs[settings.embedder])}", flush=True)
    save(document(sets, runs, quick=chosen.quick), runs, chosen)
    gated(chosen.min, runs, chosen.modes[0])


def gated(gates: Sequence[Gate], runs: Mapping[str, Mapping[str, list[Result]]], mode: str) -> None:
    """Ends with what is missed, if anything is."""
    short = [f"{name}: {what}" for name, found in runs.items() for what in missed(gates, found, f"recallflow {mode}")]
    if short:
        sys.exit("missed: " + "; ".join(short))


def save(figures: dict[str, Any], runs: Mapping[str, Mapping[str, list[Result]]], chosen: argparse.Namespace) -> None:
    """Writes what the command line asks for."""
    written = orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    if chosen.json:
        chosen.json.write_bytes(written)
    if chosen.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "recall_quality.json").write_bytes(written)
        plot(runs, RESULTS / "recall_quality.png")


if __name__ == "__main__":
    main()
