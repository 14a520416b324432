"""What a run of recall_quality shows: tables, a document with everything measured, and a plot."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.locomo import Conversation

SHOWN = ("any@10", "all@10", "nDCG@10")
MOST_CONVERSATIONS = 20  # that are shown one by one
BARS = 0.8  # of a kind's width
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


Sets = Mapping[str, Sequence[Conversation]]
Runs = Mapping[str, Sequence[Result]]  # by kind


def heading(sets: Sets) -> str:
    """What the figures are over."""
    sizes = [["kind", "conversations", "memories", "questions"]]
    for name, conversations in sets.items():
        memories = sum(len(one.turns) for one in conversations)
        questions = sum(len(one.questions) for one in conversations)
        sizes.append([name, *map("{:,}".format, (len(conversations), memories, questions))])
    return f"# Recall quality\n\n{_table(sizes)}\n\n{NOTE}"


def report(embedder: str, runs: Runs) -> str:
    """The tables of one embedder: a row for each kind, the engines side by side; and the seconds that it took."""
    run = list(dict.fromkeys(one.engine for one in _every(runs) if not one.skipped))
    reasons = {one.engine: one.skipped for one in _every(runs) if one.skipped}
    parts = [f"## {embedder}: {' / '.join(SHOWN)}", _table(_rows(runs, run, _shown))]
    parts += [f"{name}: {reason}" for name, reason in reasons.items() if name not in run]
    return "\n\n".join([*parts, f"### {embedder}: ingest s / questions s", _table(_rows(runs, run, _seconds))])


def _every(runs: Runs) -> Iterator[Result]:
    for results in runs.values():
        yield from results


def _rows(runs: Runs, engines: Sequence[str], shown: Callable[[Result], str]) -> list[list[str]]:
    rows = [["kind", *engines]]
    for kind, results in runs.items():
        cells = {one.engine: one.skipped or shown(one) for one in results}
        rows.append([kind, *(cells.get(engine, "") for engine in engines)])
    return rows


def _shown(result: Result) -> str:
    return " / ".join(f"{result.figures['overall'][name]:.3f}".removeprefix("0") for name in SHOWN)


def _seconds(result: Result) -> str:
    return f"{result.ingest_s:.1f} / {result.questions_s:.1f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def document(sets: Sets, runs: Mapping[str, Runs], *, quick: bool) -> dict[str, Any]:
    """Everything measured, with what it takes to judge it later."""
    return {
        "benchmark": "recall_quality",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "packages": {name: _version(name) for name in PACKAGES},
        "note": NOTE,
        "kinds": {
            name: {
                "conversations": len(conversations),
                "memories": sum(len(one.turns) for one in conversations),
                "questions": sum(len(one.questions) for one in conversations),
            }
            for name, conversations in sets.items()
        },
        "embedders": {
            embedder: {name: [_figures(one) for one in results] for name, results in found.items()}
            for embedder, found in runs.items()
        },
    }


def _figures(result: Result) -> dict[str, Any]:
    """All of it, but for what single stores of a session or a few memories come to."""
    found = asdict(result)
    if len(result.figures.get("by_conversation", ())) > MOST_CONVERSATIONS:
        del found["figures"]["by_conversation"]
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def plot(runs: Mapping[str, Runs], path: Path) -> None:
    """Bars of nDCG@10 per kind and engine, one panel per embedder."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2 * len(runs)), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharey=True, squeeze=False)[:, 0]
    for panel, (embedder, found) in zip(panels, runs.items(), strict=True):
        engines = list(dict.fromkeys(one.engine for one in _every(found) if not one.skipped))
        for at, engine in enumerate(engines):
            heights = [_height(results, engine) for results in found.values()]
            places = [place + (at + 0.5) * BARS / len(engines) - BARS / 2 for place in range(len(found))]
            panel.bar(places, heights, BARS / len(engines), label=engine)
        panel.set_xticks(range(len(found)), [*found])
        panel.set(title=embedder, ylim=(0, 1), ylabel="nDCG@10")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, loc="upper left", ncols=3, fontsize=8)
    figure.savefig(path, dpi=120)


def _height(results: Sequence[Result], engine: str) -> float:
    return next((one.figures["overall"]["nDCG@10"] for one in results if one.engine == engine and not one.skipped), 0.0)
