"""Leaderboard: memory systems on the same conversations, questions, texts and vectors, without an LLM.

    python -m benchmarks.leaderboard [--kinds locomo,group,…] [--data longmemeval=FILE …] [--systems NAME,…]
        [--vectors minilm|static|meaning|hash] [--budgets 500,1000,2000] [--answer-with URL --answer-model NAME]
        [--out FOLDER] [--publish] [--quick]

Writes leaderboard.json, leaderboard.md and leaderboard.png into the folder after each data set. `--publish` does not
run: it writes docs/leaderboard.md and the table of docs/comparison.md from the folder's file. `--quick`: one
conversation of two kinds, hash vectors, no optional packages. `--data`: formats of `data_formats.py`. `--answer-with`:
a service with OpenAI's protocol, whose model answers from each system's memories within each budget, and judges the
answers (`answer_quality.py`; key in OPENAI_API_KEY).
"""

import argparse
import os
import platform
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import orjson
from openai import OpenAI

from benchmarks import budget, kinds
from benchmarks.answer_quality import AnsweringModel
from benchmarks.baselines import BASELINES, Baseline, Remembering, Retriever
from benchmarks.conversation_events import EMBEDDERS, answers, message_lines, model_path, query_lines
from benchmarks.data_formats import READERS
from benchmarks.frameworks import FRAMEWORKS
from benchmarks.locomo import Conversation, MissingDataError, measure
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.model_embedders import load_tiktoken
from recallflow.embedder import Estimate, TokenCounter
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings
from recallflow.queries import K_MAX

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = Path(__file__).parent / "results"
DEFAULT = "recallflow meaning"  # the system that the others are compared with
KINDS = ("locomo", "group", "chinese", "everyday", "assistant_user", "assistant")
SHOWN = ("any@10", "all@10", "nDCG@10")
MEASURE = "nDCG@10"  # compared with DEFAULT
SAMPLES = 4_000
SIGNIFICANT = 0.05
PACKAGES = (
    *("recallflow", "numpy", "faiss-cpu", "onnxruntime", "bm25s", "mem0ai", "qdrant-client", "llama-index-core"),
    *("llama-index-retrievers-bm25", "langchain-classic", "langchain-community", "rank-bm25", "txtai", "chromadb"),
    "lancedb",
)
NOTE = """\
any@10: some evidence is among the first 10 turns; all@10: all of it. A session ranks as its best turn does. Budgets:
share of questions whose whole evidence is among whole turns in rank order that fit into so many tokens; "context": in
recallflow's own context of that size, as whole turns; "correct": answered correctly from those turns by a language
model, if one was chosen. Tokens: of the first 10 turns. Milliseconds: processor time, with embedding; recallflow's last
batch of turns counts with the questions. Differences: nDCG@10 of turns, minus that of recallflow's default; 95 %
interval and two-sided p of a paired bootstrap over conversations and their questions (no correction for the number of
comparisons). Each question follows the earlier ones of its conversation; recallflow counts their answers as usage.
recallflow's weights were fitted to the development conversations of all kinds, so its figures there are optimistic;
`python -m benchmarks.fit_weights` has those of left-out conversations. The file of a run,
`build/leaderboard/leaderboard.json`, has every question, each system's ids, and their measures."""

REPEAT = """\
## Repeat

A system that is not installed is skipped. All of them take 8 GB, most of it for txtai. The last `pip` restores the
PyStemmer that LlamaIndex's package replaces.

```sh
python3 -m venv build/board
build/board/bin/pip install -e '.[bench,static,minilm]' langchain-classic langchain-community rank-bm25
build/board/bin/pip install txtai chromadb lancedb
build/board/bin/pip install 'llama-index-retrievers-bm25>=0.5'
build/board/bin/pip install --no-deps 'PyStemmer>=3,<4'
build/board/bin/python -m benchmarks.leaderboard
build/board/bin/python -m benchmarks.leaderboard --publish
```"""


class Answers(NamedTuple):
    """Turn ids per question, best first, in the order of the conversations, and the processor time that it took."""

    rankings: list[list[str]]
    ingest_s: float
    questions_s: float


def ask_flow(settings: Settings, conversations: Sequence[Conversation], mode: str = "hybrid", k: int = 20) -> Answers:
    """Return the answers of the flow on an empty state: first all messages, then all questions.

    The flow reads lines when it needs them. Its first read of a query ends ingest, to within one batch.
    """
    first_query_at = 0.0

    def lines() -> Iterator[bytes]:
        nonlocal first_query_at
        for conversation in conversations:
            yield from message_lines(conversation)
        first_query_at = time.process_time()
        for conversation in conversations:
            yield from query_lines(conversation, mode, k)

    began = time.process_time()
    processed = process(lines(), settings)
    ended = time.process_time()
    rankings, at = list[list[str]](), 0
    for conversation in conversations:
        own = processed.responses[at : at + len(conversation.questions)]
        rankings += answers(Processed(own, processed.rejected), conversation)
        at += len(own)
    return Answers(rankings, first_query_at - began, ended - first_query_at)


def ask_baseline(retriever: Retriever, conversations: Sequence[Conversation], k: int = 20) -> Answers:
    """Return the answers of another system."""
    rankings: list[list[str]] = []
    ingest_s = questions_s = 0.0
    for conversation in conversations:
        began = time.process_time()
        retriever.ingest(conversation.turns)
        ingested = time.process_time()
        rankings += [retriever.search(question.text, k) for question in conversation.questions]
        ingest_s += ingested - began
        questions_s += time.process_time() - ingested
    return Answers(rankings, ingest_s, questions_s)


def judge(conversation: Conversation, number: int, ranked: Sequence[str], budgets: Sequence[int],
          counter: TokenCounter) -> dict[str, float]:  # fmt: skip
    """Return every measure of one ranking."""
    evidence, turns = conversation.questions[number].evidence, {turn.id: turn for turn in conversation.turns}
    sizes = [counter.count_tokens(turns[name].memory) for name in ranked]
    measures = measure(ranked, evidence) | {"tokens": float(sum(sizes[:10]))}
    sessions = [*dict.fromkeys(turns[name].session for name in ranked)]
    of_sessions = measure(sessions, frozenset(turns[name].session for name in evidence & turns.keys()))
    measures |= {f"session {name}": value for name, value in of_sessions.items()}
    for limit in budgets:
        chosen, _ = budget.fill(zip(ranked, sizes, strict=True), limit)
        measures[f"all in {limit}"] = float(evidence <= chosen)
    return measures


def compare(mine: Sequence[float], reference: Sequence[float], groups: Sequence[str]) -> dict[str, float]:
    """Return difference, 95 % interval and two-sided p of a paired bootstrap of conversations, then questions."""
    rng, differences = np.random.default_rng(0), np.subtract(mine, reference)
    own = [differences[np.array(groups) == name] for name in dict.fromkeys(groups)]
    drawn, total, count = rng.integers(len(own), size=(SAMPLES, len(own))), np.zeros(SAMPLES), np.zeros(SAMPLES)
    for number, values in enumerate(own):
        for column in drawn.T:
            rows = np.flatnonzero(column == number)
            total[rows] += values[rng.integers(len(values), size=(len(rows), len(values)))].sum(axis=1)
            count[rows] += len(values)
    means = total / count
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    p = 2 * (1 + min((means <= 0).sum(), (means >= 0).sum())) / (SAMPLES + 1)
    return {"difference": float(differences.mean()), "low": low, "high": high, "p": min(float(p), 1.0)}


# ---------------------------------------------------------------------- systems


def systems(vectors: str) -> dict[str, Baseline | Settings]:
    """Return the systems by name: settings of recallflow, or another system with vectors of one model."""
    own = {f"recallflow {name}": Settings(embedder=name, model_path=_model(name)) for name in EMBEDDERS}
    named = {
        "cosine": f"dense {vectors}",
        "bm25": "BM25, stemmed",
        "bm25, content words": "BM25, content words",
        "rrf": "reciprocal rank fusion",
    }
    return own | {named.get(one.name, one.name): one for one in (*BASELINES, *FRAMEWORKS)}


def _model(name: str) -> Path | None:
    try:
        return model_path(name, None)
    except MissingDataError:
        return None


def run_kind(conversations: Sequence[Conversation], chosen: argparse.Namespace,
             counter: TokenCounter) -> tuple[dict[str, Any], list[dict[str, Any]]]:  # fmt: skip
    """Return the figures of each system on one data set, and every question with every system's ids and measures."""
    asked = [(one, number) for one in conversations for number in range(len(one.questions))]
    every: list[dict[str, Any]] = [
        {"conversation": one.id, "question": number, "category": one.questions[number].category,
         "evidence": sorted(one.questions[number].evidence), "systems": {}}
        for one, number in asked
    ]  # fmt: skip
    shared = Remembering(load_embedder(chosen.vectors, _model(chosen.vectors)))
    began = time.process_time()
    shared.embed([turn.memory for one in conversations for turn in one.turns])
    embedded = time.process_time()
    shared.embed([one.questions[number].text for one, number in asked])
    seconds = embedded - began, time.process_time() - embedded
    memories, found, rows = sum(len(one.turns) for one in conversations), dict[str, Any](), dict[str, Any]()
    for name, system in systems(chosen.vectors).items():
        if reason := _skipped(name, system, chosen):
            found[name] = {"skipped": reason}
            continue
        print(f"  {name} …", file=sys.stderr, flush=True)
        if isinstance(system, Settings):
            done = ask_flow(system, conversations, k=K_MAX)
        else:
            done = ask_baseline(system.build(shared), conversations, K_MAX)
            if not name.lower().startswith("bm25"):
                done = done._replace(ingest_s=done.ingest_s + seconds[0], questions_s=done.questions_s + seconds[1])
        judged = [judge(*of, ids, chosen.budgets, counter) for of, ids in zip(asked, done.rankings, strict=True)]
        rows[name] = judged
        for entry, ids, measures in zip(every, done.rankings, judged, strict=True):
            values = {key: round(measures[key], 3) for key in (*SHOWN, f"session {MEASURE}", "tokens")}
            entry["systems"][name] = {"ids": ids[:10], **values}
        found[name] = {key: fmean(one[key] for one in judged) for key in judged[0]} | {
            **_answered(asked, done.rankings, chosen, counter),
            "ms per question": 1000 * done.questions_s / len(asked),
            "ms per memory": 1000 * done.ingest_s / memories,
        }
        if name == DEFAULT and isinstance(system, Settings):
            for size in chosen.budgets:
                contexts = [budget.ask_flow(system, one, size) for one in conversations]
                found[name][f"context of {size}"] = budget.measure(conversations, contexts)["all, whole"]
    groups = [one.id for one, _ in asked]
    for name in rows.keys() - {DEFAULT} if DEFAULT in rows else ():
        mine, reference = ([one[MEASURE] for one in rows[which]] for which in (name, DEFAULT))
        found[name]["versus"] = compare(mine, reference, groups)
    return found, every


def _answered(asked: Sequence[tuple[Conversation, int]], rankings: Sequence[Sequence[str]], chosen: argparse.Namespace,
              counter: TokenCounter) -> dict[str, float]:  # fmt: skip
    """Return the share of correct answers within each budget, if a model was chosen and the data has answers."""
    if chosen.answer_with is None:
        return {}
    model = AnsweringModel(OpenAI(base_url=chosen.answer_with), chosen.answer_model)
    found = dict[str, float]()
    for limit in chosen.budgets:
        contexts = []
        for (conversation, number), ranked in zip(asked, rankings, strict=True):
            turns = {turn.id: turn for turn in conversation.turns}
            kept, _ = budget.fill(((name, counter.count_tokens(turns[name].memory)) for name in ranked), limit)
            contexts.append((conversation.questions[number], [turn for turn in conversation.turns if turn.id in kept]))
        if (correct := model.share_correct(contexts)) is not None:
            found[f"correct in {limit}"] = correct
    return found


def _skipped(name: str, system: Baseline | Settings, chosen: argparse.Namespace) -> str | None:
    """Return why a system does not run here, or None."""
    if chosen.systems and not any(part in name.lower() for part in chosen.systems):
        return "not chosen"
    if isinstance(system, Settings):
        needs_model = system.embedder in ("static", "minilm")
        if needs_model and not chosen.quick:
            return None if system.model_path else f"no model in {os.environ.get('RECALLFLOW_SHARED', 'shared')}/models"
    else:
        needs_model = bool(system.modules)
        if not chosen.quick:
            return system.unavailable()
    return "optional (--quick)" if needs_model else None


# ---------------------------------------------------------------------- page


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first row is its head."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _versus(one: Mapping[str, Any]) -> str:
    if "versus" not in one:
        return "reference"
    versus = one["versus"]
    p = "< .001" if versus["p"] < 0.001 else f"= {share(versus['p'])}"
    return f"{versus['difference']:+.3f} [{versus['low']:+.3f}, {versus['high']:+.3f}], p {p}"


def _ran(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(
        ((name, one) for name, one in found.items() if "skipped" not in one), key=lambda row: -row[1][MEASURE]
    )


def _filled(one: Mapping[str, Any], limit: int) -> str:
    named = (("context", f"context of {limit}"), ("correct", f"correct in {limit}"))
    further = (f", {label} {share(one[key])}" for label, key in named if key in one)
    return share(one[f"all in {limit}"]) + "".join(further)


def tables(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield heading and table of each data set, best system first."""
    budgets = figures["budgets"]
    head = [
        *("system", " / ".join(SHOWN), f"against {DEFAULT}", "sessions", *(f"{one:,} tokens" for one in budgets)),
        *("tokens, top 10", "ms per question", "ms per memory"),
    ]
    for kind, of in figures["data"].items():
        rows = [head]
        for name, one in _ran(of["systems"]):
            shares = " / ".join(share(one[measured]) for measured in SHOWN)
            sessions = share(one[f"session {MEASURE}"]) if of["sessions"] > of["conversations"] else "one only"
            rows.append([
                f"**{name}**" if name == DEFAULT else name, shares, _versus(one), sessions,
                *(_filled(one, limit) for limit in budgets), f"{one['tokens']:,.0f}",
                f"{one['ms per question']:.1f}", f"{one['ms per memory']:.2f}",
            ])  # fmt: skip
        sizes = f"{of['conversations']} conversations, {of['memories']:,} turns, {of['questions']:,} questions"
        yield f"### {kind}: {sizes}\n\n{table(rows)}"


def verdicts(figures: Mapping[str, Any]) -> str:
    """Return a table of the systems that are ahead of recallflow's default, behind it, or neither, by data set."""
    rows = [["data", "recallflow meaning is ahead of", "is behind", "undecided"]]
    for kind, of in figures["data"].items():
        sides: list[list[str]] = [[], [], []]
        for name, one in _ran(of["systems"]):
            if "versus" in one:
                decided = one["versus"]["p"] < SIGNIFICANT
                sides[2 if not decided else one["versus"]["difference"] > 0].append(name)
        rows.append([kind, *(", ".join(side) or "none" for side in sides)])
    return table(rows)


def page(figures: Mapping[str, Any], image: str = "images/leaderboard.png") -> str:
    """Return the page of a result file."""
    machine, packages = figures["machine"], {name: of for name, of in figures["packages"].items() if of}
    skipped: defaultdict[str, list[str]] = defaultdict(list)
    for kind, of in figures["data"].items():
        for name, one in of["systems"].items():
            if "skipped" in one:
                skipped[f"{name}: {one['skipped']}"].append(kind)
    for kind in sorted({*KINDS} - figures["data"].keys()):
        skipped["data set not in this run"].append(kind)
    left_out = "".join(f"\n- {reason} ({', '.join(which)})" for reason, which in skipped.items()) or "\n- none"
    return "\n\n".join([
        "# Leaderboard",
        "After this page you know how recallflow ranks beside other systems that store texts without an LLM.",
        (f"Measured in {figures['seconds'] / 60:.0f} minutes on {figures['date'][:10]}: {machine['cores']} cores"
        f" ({machine['processor']}), {machine['system']}, Python {machine['python']}. Vectors of the other systems:"
        f" {figures['vectors']}. Token counts: {figures['tokens by']}."),
        f"![nDCG@10 by data set and system]({image})",
        f"## Decided at p < {share(SIGNIFICANT)}\n\n{verdicts(figures)}",
        "## Measures", NOTE, *tables(figures),
        f"## Skipped\n{left_out}",
        REPEAT,
        "## Versions\n\n" + ", ".join(f"{name} {of}" for name, of in packages.items()),
    ]) + "\n"  # fmt: skip


def comparison(text: str, figures: Mapping[str, Any]) -> str:
    """Return the text of docs/comparison.md with the table of these figures."""
    names = [*dict.fromkeys(name for of in figures["data"].values() for name, _ in _ran(of["systems"]))]
    kept = [name for name in names if not name.startswith(("recallflow", "BM25, c"))]
    rows = [["data (questions)", DEFAULT, *kept]]
    for kind, of in figures["data"].items():
        cells = (" / ".join(share(of["systems"][name].get(one, 0.0)) for one in SHOWN) for name in (DEFAULT, *kept))
        rows.append([f"{kind} ({of['questions']:,})", *cells])
    between = re.compile(r"(?<=<!-- leaderboard -->\n).*?(?=<!-- end -->)", re.S)
    return between.sub(lambda _: f"\n{table(rows)}\n\n", text)


def plot(figures: Mapping[str, Any], path: Path) -> None:
    """Draw nDCG@10 with a panel for each data set, best system first."""
    from matplotlib.figure import Figure

    data = figures["data"]
    drawing = Figure(figsize=(12, 3.4 * -(-len(data) // 2)), layout="constrained")
    panels = [*drawing.subplots(-(-len(data) // 2), 2, squeeze=False).flat]
    for number, panel in enumerate(panels):
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_visible(number < len(data))
    for panel, (kind, of) in zip(panels, data.items(), strict=False):
        ran = _ran(of["systems"])[::-1]
        colours = ["#c2410c" if name.startswith("recallflow") else "#94a3b8" for name, _ in ran]
        panel.barh([name for name, _ in ran], [one[MEASURE] for _, one in ran], color=colours)
        panel.set(title=f"{kind}: nDCG@10", xlim=(0, 1))
        panel.tick_params(labelsize=7)
    drawing.savefig(path, dpi=100)


# ---------------------------------------------------------------------- command line


def environment(chosen: argparse.Namespace, counted_by: str) -> dict[str, Any]:
    """Return what a reader needs to judge the figures later."""
    cpu = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.+)", cpu.read_text()) if cpu.exists() else None
    return {
        "benchmark": "leaderboard", "date": datetime.now(UTC).isoformat(timespec="seconds"), "quick": chosen.quick,
        "machine": {"cores": os.cpu_count(), "processor": model[1] if model else platform.machine(),
                    "system": platform.system(), "python": platform.python_version()},
        "packages": {name: _version(name) for name in PACKAGES}, "vectors": chosen.vectors, "budgets": chosen.budgets,
        "tokens by": counted_by, "data": {}, "questions": {},
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write(figures: Mapping[str, Any], folder: Path) -> None:
    """Write the result file, the page, and the plot, if matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "leaderboard.json").write_bytes(orjson.dumps(figures, option=orjson.OPT_APPEND_NEWLINE))
    (folder / "leaderboard.md").write_text(page(figures, "leaderboard.png"))
    if _version("matplotlib"):
        plot(figures, folder / "leaderboard.png")


def publish(folder: Path) -> None:
    """Write the pages of the docs, and the result file without its questions, which take megabytes."""
    figures = orjson.loads((folder / "leaderboard.json").read_bytes())
    kept = {name: one for name, one in figures.items() if name != "questions"}
    (RESULTS / "leaderboard.json").write_bytes(orjson.dumps(kept, option=orjson.OPT_APPEND_NEWLINE))
    (DOCS / "leaderboard.md").write_text(page(figures))
    plot(figures, DOCS / "images" / "leaderboard.png")
    path = DOCS / "comparison.md"
    path.write_text(comparison(path.read_text(), figures))


def data_sets(chosen: argparse.Namespace) -> Iterable[tuple[str, list[Conversation]]]:
    """Yield the data sets that are there: files of the user, or the development conversations."""
    for given in chosen.data:
        form, _, path = given.partition("=")
        yield Path(path).stem, READERS[form](Path(path))
    for kind in () if chosen.data else chosen.kinds.split(","):
        try:
            yield kind, kinds.load(kind)[: 1 if chosen.quick else None]
        except MissingDataError as error:
            print(f"{kind}: {error}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", help=f"development data, by commas (default: {','.join(KINDS)})")
    parser.add_argument("--data", action="append", default=[], metavar="FORMAT=FILE", help=f"of {', '.join(READERS)}")
    parser.add_argument("--systems", type=lambda text: text.lower().split(","), help="parts of names, by commas")
    parser.add_argument("--vectors", choices=EMBEDDERS, help="model of the other systems (default: minilm)")
    parser.add_argument("--budgets", type=lambda text: [*map(int, text.split(","))], default=[500, 1000, 2000])
    parser.add_argument("--answer-with", metavar="URL", help="base URL of a model service with OpenAI's protocol")
    parser.add_argument("--answer-model", metavar="NAME", default="gpt-4o-mini", help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/leaderboard"))
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args(argv)
    if chosen.publish:
        publish(chosen.out)
        return
    chosen.kinds = chosen.kinds or ("locomo,everyday" if chosen.quick else ",".join(KINDS))
    chosen.vectors = chosen.vectors or ("hash" if chosen.quick else "minilm")
    counter: TokenCounter = load_tiktoken() or Estimate()
    figures, began = environment(chosen, counter.counted_by), time.monotonic()
    for kind, conversations in data_sets(chosen):
        print(f"{kind} …", file=sys.stderr)
        found, every = run_kind(conversations, chosen, counter)
        figures["data"][kind] = {
            "conversations": len(conversations), "memories": sum(len(one.turns) for one in conversations),
            "sessions": sum(len({turn.session for turn in one.turns}) for one in conversations),
            "questions": len(every), "systems": found,
        }  # fmt: skip
        figures["questions"][kind] = every
        figures["seconds"] = round(time.monotonic() - began)
        if not chosen.quick:
            write(figures, chosen.out)
    print(page(figures))


if __name__ == "__main__":
    main()
