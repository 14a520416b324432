"""Recall quality on LoCoMo: the flow itself beside cosine, BM25, their fusion and mem0, all with the same embedder.

    python -m benchmarks.recall_quality [--embedder hash|static|minilm|all] [--modes relevance,hybrid]
        [--without author,date] [--quick] [--json FILE]

One message is one memory. Nothing is fitted here; see the note that is printed with the figures.
"""

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import orjson

from benchmarks.baselines import BASELINES, Retriever
from benchmarks.conversation_events import EMBEDDERS, TOLD, answers, message_lines, model_path, query_lines
from benchmarks.locomo import DEPTHS, Conversation, MissingDataError, Score, load, score, shared, summarise
from benchmarks.recall_report import Result, document, heading, plot, report
from recallflow.connectors.embedders import load_embedder
from recallflow.errors import EmbedderError
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.queries import Mode

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Asked:
    """Turn ids per question of one conversation, best first, and the wall time it took."""

    rankings: list[list[str]]
    ingest_s: float
    questions_s: float


def ask_flow(mode: str, settings: Settings, without: Collection[str], conversation: Conversation) -> Asked:
    """The flow on an empty state: the whole log first, then every question.

    The flow pulls lines as it goes, so the moment it asks for the first query splits ingest from questions, to within
    one batch.
    """
    messages, queries = message_lines(conversation, without), query_lines(conversation, mode)
    first_query_at = 0.0

    def lines() -> Iterator[bytes]:
        nonlocal first_query_at
        yield from messages
        first_query_at = time.perf_counter()
        yield from queries

    began = time.perf_counter()
    processed = process(lines(), settings)
    ended = time.perf_counter()
    return Asked(answers(processed, conversation), first_query_at - began, ended - first_query_at)


def ask_baseline(retriever: Retriever, conversation: Conversation) -> Asked:
    """The same of a baseline."""
    began = time.perf_counter()
    retriever.ingest(conversation.turns)
    ingested = time.perf_counter()
    rankings = [retriever.search(question.text, max(DEPTHS)) for question in conversation.questions]
    return Asked(rankings, ingested - began, time.perf_counter() - ingested)


def measured(engine: str, ask: Callable[[Conversation], Asked], conversations: Iterable[Conversation]) -> Result:
    """One engine over all conversations."""
    scores: list[Score] = []
    ingest_s = questions_s = 0.0
    for conversation in conversations:
        asked = ask(conversation)
        ingest_s += asked.ingest_s
        questions_s += asked.questions_s
        pairs = zip(conversation.questions, asked.rankings, strict=True)
        scores += [score(conversation, question, ranked) for question, ranked in pairs]
    return Result(engine, summarise(scores), ingest_s, questions_s)


def run_all(
    settings: Settings,
    modes: Sequence[str],
    without: Sequence[str],
    conversations: Sequence[Conversation],
    no_mem0: str,
) -> list[Result]:
    """Every engine with one embedder. `without`: what messages are not told with, in a second row of each mode.
    `no_mem0` is why mem0 is left out, or empty."""
    results = []
    loaded = load_embedder(settings.embedder, settings.model_path)
    for baseline in BASELINES:
        print(f"{settings.embedder}: {baseline.name} …", file=sys.stderr)
        reason = (no_mem0 if baseline.name == "mem0" else "") or baseline.unavailable()
        if reason:
            results.append(Result(baseline.name, {}, skipped=reason))
        else:
            ask = partial(ask_baseline, baseline.build(loaded))
            results.append(measured(baseline.name, ask, conversations))
    for left_out in ((), tuple(without)) if without else ((),):
        for mode in modes:
            name = f"recallflow {mode}" + (f", without {' and '.join(left_out)}" if left_out else "")
            print(f"{settings.embedder}: {name} …", file=sys.stderr)
            results.append(measured(name, partial(ask_flow, mode, settings, left_out), conversations))
    return results


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, refused as a whole where a part of it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall_quality", description="Recall quality on LoCoMo")
    parser.add_argument("--embedder", choices=(*EMBEDDERS, "all"), default="all")
    parser.add_argument("--model-path", type=Path, help="the model's folder [the shared folder's]")
    parser.add_argument("--modes", default="relevance,hybrid", help="recall modes, separated by commas [%(default)s]")
    parser.add_argument("--without", default="", help="ask again of messages without author, date, or both")
    parser.add_argument("--quick", action="store_true", help="the first conversation only, without mem0")
    parser.add_argument("--no-mem0", action="store_true", help="leave mem0 out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--save", action="store_true", help=f"write figures and plot to {RESULTS.name}/ too")
    chosen = parser.parse_args(argv)
    chosen.modes = chosen.modes.split(",")
    chosen.without = [told for told in chosen.without.split(",") if told]
    if unknown := [told for told in chosen.without if told not in TOLD]:
        parser.error(f"messages have no {', '.join(unknown)} to leave out (there are {', '.join(TOLD)})")
    if chosen.model_path and chosen.embedder in ("hash", "all"):
        parser.error("--model-path is one model's: give --embedder static or minilm")
    if unknown := [mode for mode in chosen.modes if mode not in get_args(Mode)]:
        parser.error(f"no such mode: {', '.join(unknown)} (there are {', '.join(get_args(Mode))})")
    if chosen.save and chosen.quick:
        parser.error("--save keeps full runs only; give --json FILE with --quick")
    if chosen.save and find_spec("matplotlib") is None:
        parser.error("--save draws a plot: pip install 'recallflow[bench]'")
    return chosen


def main(argv: Sequence[str] | None = None) -> None:
    """Runs, prints, writes."""
    chosen = arguments(argv)
    names = EMBEDDERS if chosen.embedder == "all" else (chosen.embedder,)
    try:
        conversations = load(shared("data", "locomo_dev.json"))[: 1 if chosen.quick else None]
        every = [Settings(embedder=name, model_path=model_path(name, chosen.model_path)) for name in names]
    except MissingDataError as error:
        sys.exit(str(error))
    no_mem0 = "left out (--quick)" if chosen.quick else "left out (--no-mem0)" if chosen.no_mem0 else ""
    print(heading(conversations), flush=True)
    runs = {}
    for settings in every:
        try:
            found = run_all(settings, chosen.modes, chosen.without, conversations, no_mem0)
        except EmbedderError as error:
            sys.exit(str(error))
        runs[settings.embedder] = found
        print(f"\n{report(settings.embedder, found)}", flush=True)
    save(document(conversations, runs, quick=chosen.quick), runs, chosen)


def save(figures: dict[str, Any], runs: dict[str, list[Result]], chosen: argparse.Namespace) -> None:
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
