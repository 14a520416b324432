"""Statistics, tables and plot of a result file of `benchmarks.leaderboard`."""

import gzip
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel

from benchmarks import kinds
from benchmarks.locomo import DataFormatError, parse_file

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = Path(__file__).parent / "results" / "leaderboard.json.gz"
DEFAULT = "recallflow meaning"  # the system that the others are compared with
TOP = 10
SHOWN = ("any@10", "all@10", "nDCG@10")
MEASURE = "nDCG@10"
SAMPLES = 4_000
SIGNIFICANT = 0.05
FEW = 12  # conversations: with fewer, every assignment of signs is counted
SOURCES = {
    "locomo": "LoCoMo, 3 of its 10 conversations",
    "group": "FriendsQA, four stretches of group dialogue without dates",
    "chinese": "MemDaily, small chats merged into eight owners",
    "everyday": "written for recallflow (`benchmarks/everyday_facts`)",
    "assistant": "BEAM (100K), ten chats",
    "assistant_user": "the same chats, the user's turns alone",
    "assistant_long": "BEAM (500K), twelve chats",
    "mixed": "`locomo` and `group` with extracted facts",
    "everyday_languages": "`everyday` in twelve other languages",
}
NOTE = """\
- any@10: some evidence is among the first 10 turns of a call for 10; all@10: all of it.
- Sessions: nDCG@10 of sessions, ranked as their best turns in a call for 400 turns (recallflow: 50, its maximum).
- Tokens: share of questions with all evidence, as whole turns, in a context of that size. recallflow fills its own
  context (`max_tokens`, `k` 50). From other systems the benchmark takes whole turns by rank from a call for 400, and
  skips a turn that does not fit. Texts alone are counted, without names and dates, by one counter. recallflow's context
  holds less, because it counts names too, and with `static` and MiniLM fills it by its own tokenizer.
- Correct: answers of a language model from that context, if one was chosen, to the questions that have an expected
  answer. A failed call counts as wrong. So a figure with failed calls is a lower bound without significance; with
  failed calls of recallflow meaning, no figure of the column has a star.
- Tokens of the top 10: mean size of the first 10 turns.
- Milliseconds: processor time of ingest and of the calls for 10, with embedding. Other work on the machine raises it:
  compare the ratios.
- Differences: nDCG@10 minus that of recallflow meaning, with the 95 % interval of a paired bootstrap over questions.
  First p: the same bootstrap. It says nothing about other conversations. Second p: over conversations, exact
  sign-flip of their totals (with 12 or more conversations, a bootstrap). With 3 conversations it cannot be below .250,
  with 4 below .125. Two-sided, without correction for the number of comparisons.
- `*` after a figure: differs from recallflow meaning at p < .050 over questions. `**`: over conversations as well.
- Each question follows the earlier ones of its conversation; recallflow counts their answers as usage."""
VECTORS = """\
Each recallflow row searches vectors of its own embedder; BM25 searches none. All other systems search the same vectors,
made by recallflow's `{vectors}` embedder."""
# Differences between the systems' setups, and where they hold: for any run, for development or own data, for vectors of
# MiniLM, or for runs before or since commits are recorded.
SETUPS = (
    ("any", """\
Every other system stores "Speaker: text". recallflow receives text, speaker, role, session and time as fields."""),
    ("development", """\
Of `locomo`, the others store "[8 May 2023] Speaker: text", which raises their figures. In `chinese` and `assistant` the
date lowers them, and is not stored."""),
    ("own", "Of the formats locomo, longmemeval and realtalk, the others store the date before the speaker."),
    ("own", "recallflow's weights were fitted to parts of LoCoMo, FriendsQA, MemDaily and BEAM, an advantage there."),
    ("any", "recallflow indexes passages of long turns. The others receive whole turns."),
    ("minilm", "MiniLM reads the beginning of a long turn. mem0 recommends larger embedding models."),
    ("development", "BM25 over passages of 800 characters has .637 nDCG@10 on `assistant`, BM25 content words .616."),
    ("any", VECTORS),
    ("any", """\
mem0 runs without an LLM (`infer=False`), and without spaCy (`mem0ai[nlp]`), which it recommends for lemmas and entities
of its hybrid search."""),
    ("any", """\
LangChain's BM25 has the word function of "BM25 stemmed". LlamaIndex's has English stems and single characters of
Chinese, Japanese and Korean."""),
    ("no commit", "LanceDB splits Chinese at spaces and punctuation, by default: a clause is one word."),
    ("commit", "LanceDB indexes pairs of characters (`ngram`) of text without spaces between words."),
)  # fmt: skip
FITTED = "recallflow's weights were fitted to these conversations, so its figures here are optimistic."
LEFT_OUT = """\
The row "left out" has the figures of recallflow's semantic signal with weights that were fitted without the
conversation, or its whole kind (`python -m benchmarks.fit_weights --embedder meaning`). The last column of the first
table names the systems with a higher nDCG@10 than the latter; the other recallflow embedders in it have weights of
their own, fitted likewise."""
REPEAT = """\
## Repeat

A system that is not installed is skipped. All of them take 8 GB, most of it for txtai. The last `pip` restores the
PyStemmer that LlamaIndex's package replaces. The data sets other than `everyday` are not published with recallflow:
without their folder (`RECALLFLOW_SHARED`), only `everyday` runs.

```sh
python3 -m venv build/board
build/board/bin/pip install -e '.[bench,static,minilm]' langchain-classic langchain-community rank-bm25
build/board/bin/pip install txtai chromadb lancedb
build/board/bin/pip install 'llama-index-retrievers-bm25>=0.5'
build/board/bin/pip install --no-deps 'PyStemmer>=3,<4'
build/board/bin/python -m benchmarks.leaderboard
build/board/bin/python -m benchmarks.leaderboard --publish
```

`benchmarks/results/leaderboard.json.gz` has every question, the first 10 ids of each system, and the measures. This
page is generated from it."""

Table = NDArray[np.float64]


# ---------------------------------------------------------------------- statistics


@cache
def _draws(units: int) -> Table:
    """Return how often each unit is in each bootstrap sample: samples × units."""
    drawn = np.random.default_rng(0).integers(units, size=(SAMPLES, units)) + units * np.arange(SAMPLES)[:, None]
    return np.bincount(drawn.ravel(), minlength=SAMPLES * units).reshape(SAMPLES, units).astype(np.float64)


def bootstrap(totals: Table, sizes: Table) -> tuple[Table, Table, Table]:
    """Return the 95 % interval and the two-sided p of each column's mean. `totals` are sums of differences by unit and
    column, `sizes` the questions of each unit."""
    weights = _draws(len(totals))
    means = (weights @ totals) / (weights @ sizes)[:, None]
    low, high = np.quantile(means, (0.025, 0.975), axis=0)
    extreme = np.minimum((means <= 0).sum(axis=0), (means >= 0).sum(axis=0))
    return low, high, np.minimum(2 * (1 + extreme) / (SAMPLES + 1), 1.0)


def sign_flip(totals: Table) -> Table:
    """Return the exact two-sided p of each column: the share of sign assignments with a sum that is as large."""
    sums = np.abs(np.array([*product((1.0, -1.0), repeat=len(totals))]) @ totals)
    return np.asarray((sums >= np.abs(totals.sum(axis=0)) - 1e-9).mean(axis=0))


def compare(mine: Table, reference: Sequence[float], groups: Sequence[str]) -> list[dict[str, float]]:
    """Return difference, interval and p values of each column of `mine` (questions × systems)."""
    differences = np.asarray(mine) - np.asarray(reference)[:, None]
    names = [*dict.fromkeys(groups)]
    totals = np.array([differences[[group == name for group in groups]].sum(axis=0) for name in names])
    low, high, by_question = bootstrap(differences, np.ones(len(differences)))
    sizes = np.array([float(groups.count(name)) for name in names])
    by_conversation = sign_flip(totals) if len(names) < FEW else bootstrap(totals, sizes)[2]
    columns = zip(differences.mean(axis=0), low, high, by_question, by_conversation, strict=True)
    keys = ("difference", "low", "high", "p, questions", "p, conversations")
    return [dict(zip(keys, (round(float(value), 4) for value in of), strict=True)) for of in columns]


def failed_calls(questions: Sequence[Mapping[str, Any]], measure: str) -> Counter[str]:
    """Return the number of failed calls of a model behind a measure, by system."""
    key = measure.replace("correct", "answer")
    rows = ((name, of.get(key)) for one in questions for name, of in one["systems"].items())
    return Counter(name for name, answer in rows if isinstance(answer, dict) and answer["failure"])


def summarise(figures: Mapping[str, Any]) -> None:
    """Add to each system its mean measures, and its comparison with recallflow's default by measure.

    There is no comparison with answers of which some calls failed: the failures count as wrong.
    """
    for kind, questions in figures["questions"].items():
        systems = figures["data"][kind]["systems"]
        measured: defaultdict[str, defaultdict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for at, question in enumerate(questions):
            for name, of in question["systems"].items():
                for measure, value in of.items():
                    if isinstance(value, float):
                        measured[measure][name][at] = value
        for measure, by_name in measured.items():
            failed = failed_calls(questions, measure)
            for name, values in by_name.items():
                systems[name][measure] = float(np.mean([*values.values()]))
                systems[name] |= {f"failed, {measure}": failed[name]} if failed[name] else {}
            reference = {} if failed[DEFAULT] else by_name.get(DEFAULT, {})
            others = [name for name in by_name if reference and name != DEFAULT and not failed[name]]
            mine = np.array([[by_name[name][at] for name in others] for at in reference])
            groups = [questions[at]["conversation"] for at in reference]
            compared = compare(mine, [*reference.values()], groups) if others else []
            for name, versus in zip(others, compared, strict=True):
                systems[name].setdefault("versus", {})[measure] = versus


# ---------------------------------------------------------------------- page


def setups(figures: Mapping[str, Any]) -> str:
    """Return the differences between the systems' setups that hold for this run."""
    holds = {"any", "own" if figures.get("formats") else "development", figures["vectors"]}
    holds.add("commit" if "commit" in figures else "no commit")  # a run without a recorded commit is an earlier one
    notes = [note.format(vectors=figures["vectors"]).replace("\n", "\n  ") for run, note in SETUPS if run in holds]
    return "\n- ".join(["The setups differ as follows:\n", *notes])


def describe_run(figures: Mapping[str, Any]) -> str:
    """Return when, where and with which commit the run was."""
    machine, commit = figures["machine"], figures.get("commit")
    of = f"commit {commit['id'][:12]}" if commit else "of a commit that was not recorded"
    of += " with uncommitted changes" if commit and commit["changed"] else ""
    return (
        f"Measured in {figures['seconds'] / 60:.0f} minutes on {figures['date'][:10]}, {of}: {machine['cores']} cores"
        f" ({machine['processor']}), {machine['system']}, Python {machine['python']}."
        f" Token counts: {figures['tokens by']}."
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first row is its head."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def marked(one: Mapping[str, Any], measure: str) -> str:
    """Return a figure with a star for each unit over which its difference is significant."""
    versus = one.get("versus", {}).get(measure)
    ps = (versus["p, questions"], versus["p, conversations"]) if versus else ()
    stars = 0 if not ps or ps[0] >= SIGNIFICANT else 1 + (ps[1] < SIGNIFICANT)
    return share(one[measure]) + "\\*" * stars


def shares(one: Mapping[str, Any]) -> str:
    return " / ".join(marked(one, measure) for measure in SHOWN)


def _versus(name: str, one: Mapping[str, Any]) -> str:
    if "versus" not in one:
        return "reference" if name == DEFAULT else "none"
    versus = one["versus"][MEASURE]
    ps = " / ".join(
        "< .001" if value < 0.001 else share(value) for value in (versus["p, questions"], versus["p, conversations"])
    )
    return f"{versus['difference']:+.3f} [{versus['low']:+.3f}, {versus['high']:+.3f}], p {ps}"


def _ran(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(((name, one) for name, one in found.items() if MEASURE in one), key=lambda row: -row[1][MEASURE])


def _filled(one: Mapping[str, Any], limit: int) -> str:
    answered = f"correct in {limit}"
    failed = f" ({one[f'failed, {answered}']} calls failed)" if f"failed, {answered}" in one else ""
    return marked(one, f"all in {limit}") + (f", correct {marked(one, answered)}{failed}" if answered in one else "")


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
            sessions = marked(one, f"session {MEASURE}") if of["sessions"] > of["conversations"] else "one only"
            rows.append([
                f"**{name}**" if name == DEFAULT else name, shares(one), _versus(name, one), sessions,
                *(_filled(one, limit) for limit in budgets), f"{one['tokens']:,.0f}",
                f"{one['ms per question']:.1f}", f"{one['ms per memory']:.2f}",
            ])  # fmt: skip
            for left, values in figures.get("left out", {}).get(kind, {}).items() if name == DEFAULT else ():
                rows.append([f"{DEFAULT}, {left}", shares(values), *[""] * (len(head) - 2)])
        sizes = f"{of['conversations']} conversations, {of['memories']:,} turns, {of['questions']:,} questions"
        form = figures.get("formats", {}).get(kind)
        named = f"a file of the format {form}" if form else SOURCES.get(kind)
        source = f"\n\nSource: {named}." if named else ""
        yield f"### {kind}: {sizes}{source}\n\n{table(rows)}"


def verdicts(figures: Mapping[str, Any]) -> str:
    """Return a table of the systems that are ahead of recallflow's default, behind it, or neither, by data set."""
    has_left_out = "left out" in figures
    rows = [["data", "over", f"{DEFAULT} is ahead of", "is behind", "undecided"]]
    rows[0] += ["above its figure with the kind left out"] * has_left_out
    for kind, of in figures["data"].items():
        left_out = figures.get("left out", {}).get(kind, {}).get("kind left out", {}).get(MEASURE, 1.0)
        above = [name for name, one in _ran(of["systems"]) if one[MEASURE] > left_out and name != DEFAULT]
        for unit in ("conversations", "questions"):
            sides: list[list[str]] = [[], [], []]
            for name, one in _ran(of["systems"]):
                if versus := one.get("versus", {}).get(MEASURE):
                    decided = versus[f"p, {unit}"] < SIGNIFICANT
                    sides[2 if not decided else versus["difference"] > 0].append(name)
            number = of["conversations" if unit == "conversations" else "questions"]
            named = (", ".join(side) or "none" for side in (*sides, *[above] * has_left_out))
            rows.append([kind, f"{number} {unit}", *named])
    return table(rows)


def _left_out_of_run(figures: Mapping[str, Any]) -> str:
    skipped: defaultdict[str, list[str]] = defaultdict(list)
    for kind, of in figures["data"].items():
        for name, one in of["systems"].items():
            if "skipped" in one:
                skipped[f"{name}: {one['skipped']}"].append(kind)
    for kind in () if figures.get("formats") else sorted({*kinds.KINDS} - figures["data"].keys()):
        skipped["data set not in this run"].append(kind)
    return "".join(f"\n- {reason} ({', '.join(which)})" for reason, which in skipped.items()) or "\n- none"


def _answers(figures: Mapping[str, Any]) -> str:
    """Return model and failed calls of `--answer-with`."""
    if not figures.get("answers"):
        return "No answers of a language model were measured (`--answer-with`)."
    failed: defaultdict[str, list[str]] = defaultdict(list)
    for kind, questions in figures["questions"].items():
        for one in questions:
            for name, of in one["systems"].items():
                if any(value["failure"] for key, value in of.items() if key.startswith("answer in")):
                    failed[name].append(f"{kind} {one['conversation']} {one['question']}")
    listed = [f"- {name}: {len(which)} questions ({', '.join(which)})" for name, which in failed.items()]
    answers = figures["answers"]
    return "\n".join([f"Answers by {answers['model']} at {answers['url']}. Failed calls:\n", *(listed or ["- none"])])


def page(figures: Mapping[str, Any], image: str = "images/leaderboard.png") -> str:
    """Return the page of a result file."""
    packages = {name: of for name, of in figures["packages"].items() if of}
    of_development = [] if figures.get("formats") else [FITTED]
    of_development += [LEFT_OUT] if "left out" in figures else []
    return "\n\n".join([
        "# Leaderboard",
        "After this page you know how recallflow ranks beside other systems that store texts without an LLM.",
        describe_run(figures),
        f"![nDCG@10 by data set and system]({image})",
        f"## Decided at p < {share(SIGNIFICANT)}",
        (f"{MEASURE}. \"Conversations\" asks whether the difference holds in other conversations of the kind, and few"
         " conversations cannot decide it. \"Questions\" asks whether it holds for other questions about these."),
        verdicts(figures),
        "## Measures", NOTE, setups(figures), *of_development, _answers(figures), *tables(figures),
        f"## Skipped\n{_left_out_of_run(figures)}",
        *([] if figures.get("formats") else [REPEAT]),
        "## Versions\n\n" + ", ".join(f"{name} {of}" for name, of in packages.items()),
    ]) + "\n"  # fmt: skip


def comparison(text: str, figures: Mapping[str, Any]) -> str:
    """Return the text of docs/comparison.md with the vectors and the table of these figures, a row for each system."""
    data, left_out = figures["data"], figures.get("left out", {})
    names = [*dict.fromkeys(name for of in data.values() for name, _ in _ran(of["systems"]))]
    rows = [["system", *(f"{kind} ({of['questions']:,})" for kind, of in data.items())]]
    for name in (DEFAULT, *(name for name in names if not name.startswith("recallflow"))):
        found = (of["systems"].get(name, {}) for of in data.values())
        rows.append([name, *(shares(one) if MEASURE in one else "not run" for one in found)])
        for left in dict.fromkeys(label for of in left_out.values() for label in of) if name == DEFAULT else ():
            values = (left_out.get(kind, {}).get(left) for kind in data)
            rows.append([f"{DEFAULT}, {left}", *(shares(one) if one else "not run" for one in values)])
    between = re.compile(r"(?<=<!-- leaderboard -->\n).*?(?=<!-- end -->)", re.S)
    return between.sub(lambda _: f"\n{VECTORS.format(vectors=figures['vectors'])}\n\n{table(rows)}\n\n", text)


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


def publish(result: Path, left_out: Path | None) -> None:
    """Write the pages of the docs, and the result file without the model's answers. `left_out` is the file of
    `fit_weights --json`."""
    figures = parse_file(dict[str, Any], result)
    if "seconds" not in figures:
        raise DataFormatError(f"{result}: no data set of this run is complete. Run the leaderboard again")
    for questions in figures["questions"].values():
        for of in (of for one in questions for of in one["systems"].values()):
            for key in [key for key in of if key.startswith("answer in")]:
                of[key]["answer"] = ""
    if left_out:
        figures["left out"] = _left_out(left_out, figures["data"])
    summarise(figures)
    RESULTS.write_bytes(gzip.compress(orjson.dumps(figures, option=orjson.OPT_APPEND_NEWLINE), mtime=0))
    (DOCS / "leaderboard.md").write_text(page(figures))
    plot(figures, DOCS / "images" / "leaderboard.png")
    path = DOCS / "comparison.md"
    path.write_text(comparison(path.read_text(), figures))


class FittedChat(BaseModel):
    """Measures of a chat's weights by label and kind, of `fit_weights --json`."""

    figures: dict[str, dict[str, dict[str, float]]]


def _left_out(path: Path, data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures of left-out conversations and kinds by data set."""
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for chat in parse_file(dict[str, FittedChat], path).values():
        for label in ("left out", "kind left out"):
            for kind, measures in chat.figures[label].items():
                if kind in data:
                    found[kind][label] = measures
    return dict(found)
