"""What a run of recall_quality shows: tables, a document with everything measured, and a plot."""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.locomo import Conversation

SHOWN = ("any@10", "all@10", "nDCG@10")
PACKAGES = (
    *("recallflow", "bytewax", "bm25s", "PyStemmer", "faiss-cpu", "numpy", "onnxruntime", "tokenizers"),
    *("fastembed", "model2vec", "mem0ai", "qdrant-client"),
)
NOTE = """\
Nothing is fitted in this run: as far as it goes, every conversation is a left-out one. Weights that were fitted to
these conversations, here or elsewhere, make their figures optimistic; then the leave-one-conversation-out figure of
that fit is the one that counts.
Seconds are wall time over all conversations with embedding, and for recallflow with loading the model. A conversation's
questions are asked one after the other of one state, so what earlier answers taught it (usage) is in play."""


@dataclass(frozen=True, slots=True)
class Result:
    """One engine over all conversations. `skipped` says why there are no figures."""

    engine: str
    figures: dict[str, Any]
    ingest_s: float = 0.0
    questions_s: float = 0.0
    skipped: str | None = None


def heading(conversations: Sequence[Conversation]) -> str:
    """What the figures are over."""
    messages = sum(len(one.turns) for one in conversations)
    questions = sum(len(one.questions) for one in conversations)
    return (
        f"# Recall quality\n\n{len(conversations)} conversations, {messages} messages, {questions} questions.\n{NOTE}"
    )


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
