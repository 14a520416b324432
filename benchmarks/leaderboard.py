"""Leaderboard: memory systems on the same conversations and questions, without an LLM.

    python -m benchmarks.leaderboard [--kinds locomo,group,…] [--data longmemeval=FILE …] [--systems NAME,…]
        [--vectors minilm|static|meaning|hash] [--budgets 500,1000,2000] [--answer-with URL --answer-model NAME]
        [--out FOLDER] [--publish [--left-out FILE]] [--quick]

Writes leaderboard.json into the folder after each system, leaderboard.md and leaderboard.png after each data set.
`--publish` does not run: it writes benchmarks/results/leaderboard.json.gz, docs/leaderboard.md and the table of
docs/comparison.md from the folder's file, with the left-out figures of `fit_weights --embedder meaning --json FILE`.
`--quick`: one conversation of two kinds, hash vectors, no optional packages. `--data`: formats of `data_formats.py`.
`--answer-with`: a service with OpenAI's protocol, whose model answers from each system's memories within each budget,
and judges the answers (`answer_quality.py`; key in OPENAI_API_KEY, if the service needs one).
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks import budget, kinds
from benchmarks.answer_quality import AnsweringModel
from benchmarks.baselines import BASELINES, Baseline, Remembering, Retriever
from benchmarks.command_line import names_of, reported_errors, token_limits
from benchmarks.conversation_events import EMBEDDERS, FlowStore, answers, model_path
from benchmarks.data_formats import READERS, load
from benchmarks.frameworks import FRAMEWORKS
from benchmarks.leaderboard_page import MEASURE, SHOWN, TOP, page, plot, publish, summarise
from benchmarks.locomo import Conversation, MissingDataError, Turn, measure
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.model_embedders import load_tiktoken
from recallflow.embedder import Estimate, TokenCounter
from recallflow.flows.embedded import Processed
from recallflow.flows.settings import Settings
from recallflow.queries import K_MAX

KINDS = ("locomo", "group", "chinese", "everyday", "assistant_user", "assistant")
PACKAGES = (
    *("recallflow", "numpy", "faiss-cpu", "onnxruntime", "bm25s", "mem0ai", "qdrant-client", "llama-index-core"),
    *("llama-index-retrievers-bm25", "langchain-classic", "langchain-community", "rank-bm25", "txtai", "chromadb"),
    "lancedb",
)


class Answers(NamedTuple):
    """Turn ids per question, best first: of the measured call, and of a call for as many as possible. The processor
    time of ingest and of the measured calls."""

    rankings: list[list[str]]
    deep: list[list[str]]
    ingest_s: float
    questions_s: float


def ask_flow(store: FlowStore, mode: str = "hybrid", k: int = 20, *, deep: bool = False) -> Answers:
    """Return recallflow's answers."""

    def rankings(asked: Sequence[Processed]) -> list[list[str]]:
        return [ids for one, of in zip(store.conversations, asked, strict=True) for ids in answers(of, one)]

    asked, seconds = store.ask(mode, k)
    return Answers(rankings(asked), rankings(store.ask(mode, K_MAX)[0]) if deep else [], store.ingest_s, seconds)


def ask_baseline(retriever: Retriever, conversations: Sequence[Conversation], k: int = 20, deep: int = 0) -> Answers:
    """Return the answers of another system."""
    done = Answers([], [], 0.0, 0.0)
    for conversation in conversations:
        began = time.process_time()
        retriever.ingest(conversation.turns)
        ingested = time.process_time()
        done.rankings.extend(retriever.search(question.text, k) for question in conversation.questions)
        ended = time.process_time()
        ingest_s, questions_s = done.ingest_s + ingested - began, done.questions_s + ended - ingested
        done = done._replace(ingest_s=ingest_s, questions_s=questions_s)
        if deep:
            done.deep.extend(retriever.search(question.text, deep) for question in conversation.questions)
    return done


def judge(evidence: frozenset[str], turns: Mapping[str, Turn], ranked: Sequence[str], deep: Sequence[str],
          filled: Mapping[int, budget.Filled], count: Callable[[str], int]) -> dict[str, float]:  # fmt: skip
    """Return every measure of one answer. Sessions are ranked by the deep ranking."""
    top, texts = measure(ranked[:TOP], evidence), {name: turn.content for name, turn in turns.items()}
    sessions = [*dict.fromkeys(turns[name].session for name in deep)]
    of_sessions = measure(sessions, frozenset(turns[name].session for name in evidence & turns.keys()))
    found = {name: top[name] for name in SHOWN} | {f"session {MEASURE}": of_sessions[MEASURE]}
    found["tokens"] = sum(count(texts[name]) for name in ranked[:TOP])
    found |= {f"all in {limit}": budget.evidence_in(of, evidence, texts)[2] for limit, of in filled.items()}
    return {name: round(float(value), 4) for name, value in found.items()}


class DataSet:
    """A data set with its questions, each with every system's ids and measures."""

    def __init__(
        self, conversations: Sequence[Conversation], chosen: argparse.Namespace, counter: TokenCounter
    ) -> None:
        self._conversations, self._chosen, self._count = conversations, chosen, cache(counter.count_tokens)
        self._asked = [(one, question) for one in conversations for question in one.questions]
        self._turns = {one.id: {turn.id: turn for turn in one.turns} for one in conversations}
        self.questions: list[dict[str, Any]] = [
            {"conversation": one.id, "question": number, "category": question.category,
             "evidence": sorted(question.evidence), "systems": {}}
            for one in conversations for number, question in enumerate(one.questions)
        ]  # fmt: skip
        memories = [turn.memory for one in conversations for turn in one.turns]
        self.sizes = {
            "conversations": len(conversations), "memories": len(memories), "questions": len(self._asked),
            "sessions": sum(len({turn.session for turn in one.turns}) for one in conversations),
        }  # fmt: skip
        self._embedder = Remembering(load_embedder(chosen.vectors, _model(chosen.vectors)))
        began = time.process_time()
        self._embedder.embed(memories)
        embedded = time.process_time()
        self._embedder.embed([question.text for _, question in self._asked])
        self._embedding_s = embedded - began, time.process_time() - embedded

    def run(self, name: str, system: Baseline | Settings) -> dict[str, float]:
        """Add a system's ids and measures to every question. Return its times."""
        filled = dict[int, list[budget.Filled]]()
        if isinstance(system, Settings):
            store = FlowStore(system, self._conversations)
            done = ask_flow(store, k=TOP, deep=True)
            for limit in self._chosen.budgets:
                filled[limit] = [one for of in budget.contexts(store, limit, self._count) for one in of]
        else:
            done = ask_baseline(system.build(self._embedder), self._conversations, TOP, budget.RANKED)
            if not name.startswith("BM25"):
                ingest_s, questions_s = self._embedding_s
                done = done._replace(ingest_s=done.ingest_s + ingest_s, questions_s=done.questions_s + questions_s)
            for limit in self._chosen.budgets:
                filled[limit] = [self._fill(at, ids, limit) for at, ids in enumerate(done.deep)]
        for at, (entry, (conversation, question)) in enumerate(zip(self.questions, self._asked, strict=True)):
            of_question = {limit: of[at] for limit, of in filled.items()}
            turns, ids = self._turns[conversation.id], done.rankings[at][:TOP]
            judged = judge(question.evidence, turns, ids, done.deep[at], of_question, self._count)
            entry["systems"][name] = {"ids": ids} | judged
        for limit, of in filled.items():
            self._answer(name, limit, of)
        return {
            "ms per question": 1000 * done.questions_s / len(self._asked),
            "ms per memory": 1000 * done.ingest_s / self.sizes["memories"],
        }

    def _fill(self, at: int, ids: Sequence[str], limit: int) -> budget.Filled:
        turns = self._turns[self._asked[at][0].id]
        return budget.fill(((one, turns[one].content) for one in ids), limit, self._count)

    def _answer(self, name: str, limit: int, filled: Sequence[budget.Filled]) -> None:
        """Add the chosen model's answers to the questions that have an expected answer."""
        if (model := self._chosen.model) is None:
            return
        known = [at for at, (_, question) in enumerate(self._asked) if question.answer]
        asked = []
        for at in known:
            (conversation, question), shown = self._asked[at], filled[at].shown
            asked.append((question, [(turn, shown[turn.id]) for turn in conversation.turns if turn.id in shown]))
        for at, answered in zip(known, model.answer_all(asked), strict=True):
            found = self.questions[at]["systems"][name]
            found[f"answer in {limit}"] = answered._asdict()
            found[f"correct in {limit}"] = float(answered.is_correct)


# ---------------------------------------------------------------------- systems


def systems(vectors: str) -> dict[str, Baseline | Settings]:
    """Return the systems by name: settings of recallflow, or another system with vectors of one model."""
    own = {f"recallflow {name}": Settings(embedder=name, model_path=_model(name)) for name in EMBEDDERS}
    named = {
        "cosine": f"dense {vectors}",
        "bm25": "BM25 stemmed",
        "bm25, content words": "BM25 content words",
        "rrf": "reciprocal rank fusion",
    }
    return own | {named.get(one.name, one.name): one for one in (*BASELINES, *FRAMEWORKS)}


def _model(name: str) -> Path | None:
    try:
        return model_path(name, None)
    except MissingDataError:
        return None


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
        "commit": _commit(), "formats": {path.stem: form for form, path in chosen.data},
        "answers": {"url": chosen.answer_with, "model": chosen.answer_model} if chosen.model else None,
        "tokens by": counted_by, "data": {}, "questions": {},
    }  # fmt: skip


def _commit() -> dict[str, Any] | None:
    """Return the commit of this tree, and whether its tracked files have changes. None without git."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        return {"id": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write(figures: Mapping[str, Any], folder: Path) -> None:
    """Write the result file, so that an interrupted run keeps the systems that ended."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "leaderboard.json").write_bytes(orjson.dumps(figures, option=orjson.OPT_APPEND_NEWLINE))


def run(name: str, conversations: Sequence[Conversation], chosen: argparse.Namespace, counter: TokenCounter,
        figures: dict[str, Any]) -> None:  # fmt: skip
    """Add a data set to the figures."""
    print(f"{name} …", file=sys.stderr)
    data = DataSet(conversations, chosen, counter)
    found = dict[str, Any]()
    figures["data"][name] = data.sizes | {"systems": found}
    figures["questions"][name] = data.questions
    for system_name, system in systems(chosen.vectors).items():
        if reason := _skipped(system_name, system, chosen):
            found[system_name] = {"skipped": reason}
            continue
        print(f"  {system_name} …", file=sys.stderr, flush=True)
        found[system_name] = data.run(system_name, system)
        if not chosen.quick:
            write(figures, chosen.out)


def data_sets(chosen: argparse.Namespace) -> dict[str, list[Conversation]]:
    """Return the data sets that are there: files of the user, or the development conversations."""
    found = {path.stem: load(form, path) for form, path in chosen.data}
    for kind in () if chosen.data else chosen.kinds:
        try:
            found[kind] = kinds.load(kind)[: 1 if chosen.quick else None]
        except MissingDataError as error:
            print(f"{kind}: {error}", file=sys.stderr)
    return found


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. Anything that would fail later is a usage error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kinds", type=names_of(kinds.KINDS), help=f"development data, by commas (default: {','.join(KINDS)})"
    )
    parser.add_argument("--data", action="append", default=[], metavar="FORMAT=FILE", help=f"of {', '.join(READERS)}")
    parser.add_argument("--systems", type=lambda text: text.lower().split(","), help="parts of names, by commas")
    parser.add_argument("--vectors", choices=EMBEDDERS, help="model of the other systems (default: minilm)")
    parser.add_argument("--budgets", type=token_limits, default=[500, 1000, 2000])
    parser.add_argument("--answer-with", metavar="URL", help="base URL of a model service with OpenAI's protocol")
    parser.add_argument("--answer-model", metavar="NAME", default="gpt-4o-mini", help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/leaderboard"))
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--left-out", type=Path, metavar="FILE", help="of `fit_weights --json`, for --publish")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args(argv)
    chosen.kinds = chosen.kinds or (("locomo", "everyday") if chosen.quick else KINDS)
    chosen.vectors = chosen.vectors or ("hash" if chosen.quick else "minilm")
    chosen.data = [(form, Path(path)) for form, _, path in (given.partition("=") for given in chosen.data)]
    names, stems = [name.lower() for name in systems(chosen.vectors)], [path.stem for _, path in chosen.data]
    result = chosen.out / "leaderboard.json"
    problems: dict[str, Sequence[object]] = {
        f"--systems: name parts of {', '.join(names)}, not": [
            part for part in chosen.systems or () if not any(part in name for name in names)
        ],
        f"--data: choose a format from {', '.join(READERS)}, not": [
            form for form, _ in chosen.data if form not in READERS
        ],
        "--data: name an existing FILE after FORMAT=, not": [
            path for _, path in chosen.data if str(path) == "." or not path.exists()
        ],
        "--data: rename one of the files of the name": [stem for stem in stems if stems.count(stem) > 1],
        "--out: name a folder, not the file": [chosen.out] * chosen.out.is_file(),
        "--publish: run without it first, which writes": [result] * (chosen.publish and not result.exists()),
        "--publish: install": ["matplotlib"] * (chosen.publish and not _version("matplotlib")),
        "--left-out: write it first by `fit_weights --embedder meaning --json FILE`:": [
            path for path in (chosen.left_out,) if path and not path.is_file()
        ],
    }
    for problem, values in problems.items():
        if values:
            parser.error(f"{problem} {', '.join(map(str, values))}")
    return chosen


@reported_errors()
def main(argv: Sequence[str] | None = None) -> None:
    chosen = _arguments(argv)
    if chosen.publish:
        publish(chosen.out / "leaderboard.json", chosen.left_out)
        return
    chosen.model = AnsweringModel.checked(chosen.answer_with, chosen.answer_model) if chosen.answer_with else None
    counter: TokenCounter = load_tiktoken() or Estimate()
    figures, began = environment(chosen, counter.counted_by), time.monotonic()
    found = data_sets(chosen)
    if not found:
        sys.exit("no data set to run")
    for name, conversations in found.items():
        run(name, conversations, chosen, counter, figures)
        figures["seconds"] = round(time.monotonic() - began)
        summarise(figures)
        if not chosen.quick:
            write(figures, chosen.out)
            (chosen.out / "leaderboard.md").write_text(page(figures, "leaderboard.png"))
            if _version("matplotlib"):
                plot(figures, chosen.out / "leaderboard.png")
    print(page(figures))


if __name__ == "__main__":
    main()
