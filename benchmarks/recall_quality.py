"""Recall quality on LoCoMo: the flow itself beside cosine, BM25, their fusion and mem0, all with the same embedder.

    python -m benchmarks.recall_quality [--embedder hash|minilm|all] [--modes relevance,hybrid] [--quick] [--json FILE]

One message is one memory. Nothing is fitted here; see the note that is printed with the figures.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import orjson

from benchmarks.baselines import BASELINES, Retriever
from benchmarks.locomo import DEPTHS, Conversation, MissingDataError, Score, load, score, shared, summarise
from recallflow.connectors.embedders import load_embedder
from recallflow.errors import EmbedderError
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings
from recallflow.queries import Mode

EMBEDDERS = ("hash", "minilm")
SHOWN = ("any@10", "all@10", "nDCG@10")
RESULTS = Path(__file__).parent / "results"
TENANT = "locomo"
PACKAGES = (
    *("recallflow", "bytewax", "bm25s", "PyStemmer", "faiss-cpu", "numpy", "onnxruntime", "tokenizers"),
    *("fastembed", "mem0ai", "qdrant-client"),
)
NOTE = """\
Nothing is fitted in this run: as far as it goes, every conversation is a left-out one. Weights that were fitted to
these conversations, here or elsewhere, make their figures optimistic; then the leave-one-conversation-out figure of
that fit is the one that counts.
Seconds are wall time over all conversations with embedding, and for recallflow with loading the model. A conversation's
questions are asked one after the other of one state, so what earlier answers taught it (usage) is in play."""


class BrokenRunError(Exception):
    """The engine refused a line or did not answer as asked: figures from such a run would mean nothing."""


@dataclass(frozen=True, slots=True)
class Result:
    """One engine over all conversations. `skipped` says why there are no figures."""

    engine: str
    figures: dict[str, Any]
    ingest_s: float = 0.0
    questions_s: float = 0.0
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Turn ids per question of one conversation, best first, and the wall time it took."""

    rankings: list[list[str]]
    ingest_s: float
    questions_s: float


def message_lines(conversation: Conversation) -> list[bytes]:
    """The conversation as message events."""
    return [
        orjson.dumps(
            {
                "type": "message",
                "id": turn.id,
                "tenant_id": TENANT,
                "user_id": conversation.id,
                "session_id": turn.session,
                "timestamp": turn.time,
                "role": "user",
                "name": turn.speaker,
                "content": turn.content,
            }
        )
        for turn in conversation.turns
    ]


def query_lines(conversation: Conversation, mode: str) -> list[bytes]:
    """One recall per question, asked the day after the last message."""
    asked_at = max(turn.time for turn in conversation.turns) + timedelta(days=1)
    return [
        orjson.dumps(
            {
                "type": "recall",
                "id": f"question-{number}",
                "tenant_id": TENANT,
                "user_id": conversation.id,
                "timestamp": asked_at,
                "query": question.text,
                "k": max(DEPTHS),
                "mode": mode,
            }
        )
        for number, question in enumerate(conversation.questions)
    ]


def answers(processed: Processed, conversation: Conversation) -> list[list[str]]:
    """Turn ids per question, best first. Raises where the flow did anything but answer every question in full."""
    if processed.rejected:
        raise BrokenRunError(f"{conversation.id}: {len(processed.rejected)} lines rejected: {processed.rejected[:3]}")
    if len(processed.responses) != len(conversation.questions):
        raise BrokenRunError(
            f"{conversation.id}: {len(processed.responses)} responses to {len(conversation.questions)} questions"
        )
    known = {turn.id for turn in conversation.turns}
    return [_answer(response, number, known) for number, response in enumerate(processed.responses)]


def _answer(response: dict[str, Any], number: int, known: set[str]) -> list[str]:
    # A degraded answer came from another embedder or fewer steps than the row of the table names.
    if response["status"] != "ok":
        raise BrokenRunError(f"not a full answer: {_brief(response)}")
    if response["query_id"] != f"question-{number}":
        raise BrokenRunError(f"expected the answer to question-{number}: {_brief(response)}")
    ranked = [memory["id"] for memory in response["memories"]]
    if not known.issuperset(ranked) or len(set(ranked)) != len(ranked):
        raise BrokenRunError(f"memories that were never told, or one twice: {_brief(response)} {ranked}")
    return ranked


def _brief(response: dict[str, Any]) -> dict[str, Any]:
    return {key: response.get(key) for key in ("query_id", "status", "error", "fallback", "warnings")}


def ask_flow(mode: str, settings: Settings, conversation: Conversation) -> Asked:
    """The flow on an empty state: the whole log first, then every question.

    The flow pulls lines as it goes, so the moment it asks for the first query splits ingest from questions, to within
    one batch.
    """
    messages, queries = message_lines(conversation), query_lines(conversation, mode)
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
    embedder: str, model_path: Path | None, modes: Sequence[str], conversations: Sequence[Conversation], no_mem0: str
) -> list[Result]:
    """Every engine with one embedder. `no_mem0` is why mem0 is left out, or empty."""
    results = []
    loaded = load_embedder(embedder, model_path)
    for baseline in BASELINES:
        print(f"{embedder}: {baseline.name} …", file=sys.stderr)
        reason = (no_mem0 if baseline.name == "mem0" else "") or baseline.unavailable()
        if reason:
            results.append(Result(baseline.name, {}, skipped=reason))
        else:
            ask = partial(ask_baseline, baseline.build(loaded))
            results.append(measured(baseline.name, ask, conversations))
    settings = Settings(embedder=embedder, model_path=model_path)
    for mode in modes:
        print(f"{embedder}: recallflow {mode} …", file=sys.stderr)
        results.append(measured(f"recallflow {mode}", partial(ask_flow, mode, settings), conversations))
    return results


def report(embedder: str, results: Sequence[Result]) -> str:
    """The tables of one embedder."""
    overall = [["engine", *SHOWN, "ingest s", "questions s"]]
    for one in results:
        if one.skipped:
            overall.append(_skipped(one, len(overall[0])))
        else:
            seconds = f"{one.ingest_s:.1f}", f"{one.questions_s:.1f}"
            overall.append([one.engine, *_shown(one.figures["overall"]), *seconds])
    parts = [f"## {embedder}", _table(overall), _ratios(results)]
    for group in ("category", "conversation"):
        parts += [f"### {embedder} by {group}: {' / '.join(SHOWN)}", _table(_grouped(results, f"by_{group}"))]
    return "\n\n".join(parts)


def _grouped(results: Sequence[Result], group: str) -> list[list[str]]:
    groups = next(one.figures[group] for one in results if not one.skipped)
    rows = [["engine", *(f"{name} ({figures['questions']})" for name, figures in groups.items())]]
    for one in results:
        if one.skipped:
            rows.append(_skipped(one, len(rows[0])))
        else:
            rows.append([one.engine, *(" / ".join(_shown(figures)) for figures in one.figures[group].values())])
    return rows


def _shown(figures: dict[str, float]) -> list[str]:
    return [f"{figures[name]:.3f}" for name in SHOWN]


def _skipped(result: Result, columns: int) -> list[str]:
    return [result.engine, str(result.skipped), *[""] * (columns - 2)]


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _ratios(results: Sequence[Result]) -> str:
    mem0 = next(one for one in results if one.engine == "mem0")
    if mem0.skipped:
        return f"No ratios to mem0: {mem0.skipped}."
    lines = []
    for one in results:
        if one.engine.startswith("recallflow"):
            pairs = ((name, one.figures["overall"][name] / mem0.figures["overall"][name]) for name in SHOWN)
            lines.append(f"{one.engine} ÷ mem0: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in pairs))
    return "\n".join(lines)


def document(conversations: Sequence[Conversation], runs: dict[str, list[Result]], *, quick: bool) -> dict[str, Any]:
    """Everything measured, with what it takes to judge it later."""
    return {
        "benchmark": "recall_quality",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "packages": {name: _version(name) for name in PACKAGES},
        "note": NOTE,
        "conversations": {
            one.id: {"messages": len(one.turns), "questions": len(one.questions)} for one in conversations
        },
        "embedders": {name: [asdict(one) for one in results] for name, results in runs.items()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def plot(runs: dict[str, list[Result]], path: Path) -> None:
    """Bars of any@10 and all@10 per engine, one panel per embedder."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(runs), 4.2), layout="constrained")
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for panel, (embedder, results) in zip(panels, runs.items(), strict=True):
        shown = [one for one in results if not one.skipped]
        for offset, name, colour in ((-0.2, "any@10", "#2f6f9f"), (0.2, "all@10", "#e0a458")):
            places = [place + offset for place in range(len(shown))]
            heights = [one.figures["overall"][name] for one in shown]
            bars = panel.bar(places, heights, 0.38, label=name, color=colour)
            panel.bar_label(bars, fmt="%.2f", fontsize=8, padding=1)
        panel.set_xticks(range(len(shown)), [one.engine.replace(" ", "\n") for one in shown])
        panel.set(title=embedder, ylim=(0, 1))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("share of questions")
    panels[0].legend(frameon=False, loc="upper left")
    figure.suptitle("LoCoMo: evidence among the first 10 memories (any of it, all of it)")
    figure.savefig(path, dpi=120)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, refused as a whole where a part of it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall_quality", description="Recall quality on LoCoMo")
    parser.add_argument("--embedder", choices=(*EMBEDDERS, "all"), default="all")
    parser.add_argument("--model-path", type=Path, help="MiniLM's folder [the shared folder's]")
    parser.add_argument("--modes", default="relevance,hybrid", help="recall modes, separated by commas [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="the first conversation only, without mem0")
    parser.add_argument("--no-mem0", action="store_true", help="leave mem0 out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    parser.add_argument("--save", action="store_true", help=f"write figures and plot to {RESULTS.name}/ too")
    chosen = parser.parse_args(argv)
    chosen.modes = chosen.modes.split(",")
    if unknown := [mode for mode in chosen.modes if mode not in get_args(Mode)]:
        parser.error(f"no such mode: {', '.join(unknown)} (there are {', '.join(get_args(Mode))})")
    if chosen.save and chosen.quick:
        parser.error("--save keeps full runs only; give --json FILE with --quick")
    if chosen.save and find_spec("matplotlib") is None:
        parser.error("--save draws a plot: pip install 'recallflow[bench]'")
    return chosen


def model_path(embedder: str, given: Path | None) -> Path | None:
    """The folder of the embedder's model, for one that has a model."""
    return given or shared("models", "all-MiniLM-L6-v2") if embedder == "minilm" else None


def heading(conversations: Sequence[Conversation]) -> str:
    """What the figures are over."""
    messages = sum(len(one.turns) for one in conversations)
    questions = sum(len(one.questions) for one in conversations)
    return (
        f"# Recall quality\n\n{len(conversations)} conversations, {messages} messages, {questions} questions.\n{NOTE}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Runs, prints, writes."""
    chosen = arguments(argv)
    names = EMBEDDERS if chosen.embedder == "all" else (chosen.embedder,)
    try:
        conversations = load(shared("data", "locomo_dev.json"))[: 1 if chosen.quick else None]
        paths = {name: model_path(name, chosen.model_path) for name in names}
    except MissingDataError as error:
        sys.exit(str(error))
    no_mem0 = "left out (--quick)" if chosen.quick else "left out (--no-mem0)" if chosen.no_mem0 else ""
    print(heading(conversations), flush=True)
    runs = {}
    for name, path in paths.items():
        try:
            runs[name] = run_all(name, path, chosen.modes, conversations, no_mem0)
        except EmbedderError as error:
            sys.exit(str(error))
        print(f"\n{report(name, runs[name])}", flush=True)
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
