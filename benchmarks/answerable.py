"""Whether `answerable` tells questions that an owner's memories answer from those that they do not, how far off it and
`relevance` are as probabilities, and the weights of both.

    python -m benchmarks.answerable [--embedder hash|meaning|static|minilm] [--words] [--kinds …]
        [--chat-classes …] [--json FILE] [--fit]

All questions, to stores of 1 to 1,000 memories, are as `stores.py` says. Each conversation is left out of the fit that
it is judged by; kinds of chat, sizes, and answerable questions and others count the same. Printed are

    AUC    the probability that an answerable question has a higher `answerable` than another
    error  the expected calibration error: the mean distance between probability and share over ten bins of equal width
    chance the error that right probabilities would have over as few questions

by kind and size, by kind, and by size; by kind, the shares of answerable questions, of unanswerable ones, and of those
whose evidence is withheld, with an `answerable` below 0.5; then AUC and error of `relevance` over the first three
memories of all answers.

The kinds of notes are one person's messages: everyday facts, most of which are asked for in other words while questions
without an answer often repeat words of a fact, and a user's messages to an assistant, asked for in the same words. A
fit to everyday facts alone would learn that a shared word speaks against an answer.

Fit models of English alone (static, minilm) without everyday_languages: their cosines of other languages say nothing,
and English questions would be judged by the mean of both.

`--fit` writes the weights to relevance_weights.py, in place of those that rest on the same embedder; with
`--chat-classes`, of these classes alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks import kinds
from benchmarks.command_line import reported_errors, write_json
from benchmarks.conversation_events import embedder_arguments, embedder_settings
from benchmarks.fit_weights import KIND_OF
from benchmarks.stores import SIZES, Floats, StoreQuery, ask_stores
from recallflow.operators.recall import relevance_weights
from recallflow.operators.recall.relevance import EVIDENCE, FEATURES, SETTINGS, probability
from recallflow.operators.recall.relevance_weights import CHAT_CLASSES, WEIGHT_KEYS, Basis, ChatClass, Table

KINDS = (
    "locomo",
    "group",
    "assistant",
    "assistant_user",
    "assistant_long",
    "chinese",
    "everyday",
    "everyday_languages",
)
WEIGHTS_FILE = Path(relevance_weights.__file__)
Fitted = Mapping[ChatClass, Mapping[str, float]]  # the weight of each term, by class of chat
ALL = "all"
BINS = 10
DRAWN = 20  # times that labels are drawn
COUNTS = 300  # what the answerable questions of a kind to stores of a size count together, and the others
EVEN = 0.5
STEPS = 60
PENALTY = 1.0  # on weights of terms with unit spread
ENOUGH = 1e-6

# What the weights are of: a feature, or a feature and a setting.
OF_RELEVANCE = (
    *FEATURES[1:],
    *(f"constant · {name}" for name in ("word_count", "rarity", "no_words")),
    "coverage · rarity",
    "window_coverage · rarity",
)
OF_ANSWERABLE = (
    *EVIDENCE[1:],
    *(f"constant · {name}" for name in SETTINGS[1:]),
    *(f"{name} · memory_count" for name in ("coverage", "bm25", "window_token_match", "cosine", "joint_coverage")),
    *(f"{name} · inverse_count" for name in ("coverage", "joint_coverage")),
    *(f"{name} · rarity" for name in ("coverage", "joint_coverage", "missing")),
    *(f"{name} · several_people" for name in ("window_token_match", "joint_coverage")),
    *(f"{name} · {setting}" for name in ("speaker", "no_overlap") for setting in ("rarity", "memory_count")),
)


class Fit(NamedTuple):
    """A logistic regression: a weight for `constant`, and one for each term."""

    bias: float
    weights: Floats

    def probability(self, terms: Floats) -> Floats:
        """Of each row of terms."""
        return np.asarray(probability(self.bias + terms @ self.weights), np.float64)


def fit(terms: Floats, label: Floats, weight: Floats) -> Fit:
    """By Newton's method; `terms`: (rows, terms)."""
    mean, spread = np.average(terms, axis=0, weights=weight), terms.std(axis=0)
    spread = np.where(spread > ENOUGH, spread, np.inf)  # what does not vary here has no weight
    inputs = np.concatenate([np.ones((len(terms), 1)), (terms - mean) / spread], axis=1)
    penalty = np.diag([0.0] + [PENALTY] * len(mean))
    found = np.zeros(len(penalty))
    for _ in range(STEPS):
        likely = probability(inputs @ found)
        hessian = (inputs.T * (weight * likely * (1 - likely))) @ inputs + penalty + ENOUGH * np.eye(len(penalty))
        step = np.linalg.solve(hessian, inputs.T @ (weight * (label - likely)) - penalty @ found)
        found = found + step
        if np.abs(step).max() < ENOUGH:
            break
    weights = found[1:] / spread
    return Fit(float(found[0] - weights @ mean), weights)


def auc(likely: Floats, label: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a labelled row is above one without; ties count half."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(likely[label], likely[~label]).statistic / label.sum() / (~label).sum())


def error(likely: Floats, label: Floats, weight: Floats) -> float:
    """The expected calibration error."""
    of_bin = np.minimum((likely * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(of_bin, weight * (likely - label))).sum() / weight.sum())


def chance(likely: Floats, weight: Floats) -> float:
    """The error that probabilities have which are right, as only so many labels are drawn by them."""
    random = np.random.default_rng(0)
    drawn = (random.random(len(likely)) < likely for _ in range(DRAWN))
    return float(np.mean([error(likely, label.astype(np.float64), weight) for label in drawn]))


class Rows(NamedTuple):
    """Rows of terms with their labels; (rows,) of their weights, kinds, conversations, classes of chat, the classes of
    their whole chats, sizes, and whether evidence is withheld."""

    terms: Floats
    label: npt.NDArray[np.bool_]
    weight: Floats
    kind: npt.NDArray[np.str_]
    conversation: npt.NDArray[np.str_]
    chat_class: npt.NDArray[np.str_]
    chat: npt.NDArray[np.str_]
    size: npt.NDArray[np.int64]
    withheld: npt.NDArray[np.bool_]

    def only(self, chosen: npt.NDArray[np.bool_]) -> "Rows":
        """Some of them."""
        return self._replace(**{name: column[chosen] for name, column in self._asdict().items()})

    def fit(self, chat_class: ChatClass) -> Fit:
        """Return the regression of the label on the terms for a class of chat.

        Stores of one author are notes. Those cut from a larger chat count for its class as well, which has no others as
        small: without them the fit would say anything of stores of two or three memories.
        """
        some = self.only((self.chat_class == chat_class) | (self.chat == chat_class))
        return fit(some.terms, some.label.astype(np.float64), some.weight)


def _terms(names: Sequence[str], figures: Sequence[str], values: Floats, settings: Floats) -> Floats:
    """The terms of each of some memories. `values`: (figures, memories)."""
    parts = (name.partition(" · ") for name in names)
    return np.array([values[figures.index(one)] * settings[SETTINGS.index(by or "constant")] for one, _, by in parts]).T


def of_answerable(asked: Sequence[StoreQuery]) -> Rows:
    """A row for each question to a store."""
    parts = [_terms(OF_ANSWERABLE, EVIDENCE, one.evidence[:, np.newaxis], one.settings) for one in asked]
    return _rows(asked, parts, [np.array([one.answerable]) for one in asked], [one.chat for one in asked])


def of_relevance(asked: Sequence[StoreQuery]) -> Rows:
    """A row for each memory shown."""
    parts = [_terms(OF_RELEVANCE, FEATURES, one.figures, one.settings) for one in asked]
    # No setting of a relevance is a store's size: a chat's own stores tell all there is to fit.
    return _rows(asked, parts, [one.is_evidence for one in asked], [one.chat_class for one in asked])


def _rows(
    asked: Sequence[StoreQuery],
    terms: Sequence[Floats],
    labels: Sequence[npt.NDArray[np.bool_]],
    chats: Sequence[ChatClass],
) -> Rows:
    """Return the rows of all questions. To the stores of one size of a conversation, answerable questions count as much
    as others; and so do conversations of a kind, and kinds."""
    of = [one for one, rows in zip(asked, terms, strict=True) for _ in rows]
    groups = np.unique(
        [f"{one.conversation} {one.kind} {one.size} {one.answerable}" for one in of], return_inverse=True
    )[1]
    conversations = Counter(kind for kind, _ in {(one.kind, one.conversation) for one in asked})
    return Rows(
        np.concatenate(terms),
        np.concatenate(labels),
        np.array([COUNTS / conversations[one.kind] for one in of]) / np.bincount(groups)[groups],
        np.array([one.kind for one in of]),
        np.array([one.conversation for one in of]),
        np.array([one.chat_class for one in of]),
        np.array([chat for chat, rows in zip(chats, terms, strict=True) for _ in rows]),
        np.array([one.size for one in of]),
        np.array([one.withheld for one in of]),
    )


def left_out(rows: Rows) -> Floats:
    """Each row's probability, by a fit to all other conversations of its class of chat."""
    likely = np.zeros(len(rows.label))
    for conversation in np.unique(rows.conversation):
        tested = rows.conversation == conversation
        others = rows.only(~tested)
        for chat_class in np.unique(rows.chat_class[tested]):
            these = tested & (rows.chat_class == chat_class)
            likely[these] = others.fit(chat_class).probability(rows.terms[these])
    return likely


def report(rows: Rows, likely: Floats) -> dict[str, dict[str, dict[str, float]]]:
    """Prints AUC and error by kind and size, with all sizes and all kinds in the last column and row; the same as
    {kind: {size: {auc, error}}}."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for kind in (*dict.fromkeys(rows.kind.tolist()), ALL):
        found[kind] = {}
        for size in (*map(str, SIZES), ALL):
            chosen = ((rows.kind == kind) | (kind == ALL)) & ((rows.size.astype(str) == size) | (size == ALL))
            some = rows.only(chosen)
            figures = {
                "auc": auc(likely[chosen], some.label),
                "error": error(likely[chosen], some.label.astype(np.float64), some.weight),
                "chance": chance(likely[chosen], some.weight),
            }
            found[kind][size] = figures
        cells = (f"{size}: {of['auc']:.3f} {of['error']:.3f} {of['chance']:.3f}" for size, of in found[kind].items())
        print(f"  {kind:18}", "  ".join(cells), flush=True)
    return found


def report_below_even(rows: Rows, likely: Floats) -> dict[str, dict[str, float]]:
    """Print and return the shares of questions with a probability below 0.5, as {kind: {group: share}}."""
    print("answerable below 0.5: share of questions, by kind")
    groups = {"answerable": rows.label, "unanswerable": ~rows.label & ~rows.withheld, "withheld": rows.withheld}
    found: dict[str, dict[str, float]] = {}
    for kind in dict.fromkeys(rows.kind.tolist()):
        chosen = {name: group & (rows.kind == kind) for name, group in groups.items()}
        found[kind] = {name: float((likely[group] < EVEN).mean()) for name, group in chosen.items() if group.any()}
        print(f"  {kind:18}", "  ".join(f"{name}: {share:.3f}" for name, share in found[kind].items()), flush=True)
    return found


def weights(rows: Rows, names: Sequence[str], chat_classes: Sequence[ChatClass]) -> Fitted:
    """Return the weights of the fit to all conversations, by class of chat."""
    found = {}
    for chat_class in chat_classes:
        if (rows.chat_class == chat_class).any():
            one = rows.fit(chat_class)
            fitted = zip(("constant", *names), (one.bias, *one.weights.tolist()), strict=True)
            found[chat_class] = {name: round(weight, 2) for name, weight in fitted}
    return found


def renewed(table: Table, basis: Basis, fitted: Fitted, terms: Sequence[str]) -> Table:
    """Return the table with these terms alone, and the fitted weights in place of those of the same basis and class."""
    none = (0.0,) * len(WEIGHT_KEYS)
    return {
        term: tuple(
            fitted[chat_class][term] if of == basis and chat_class in fitted else known
            for (of, chat_class), known in zip(WEIGHT_KEYS, table.get(term, none), strict=True)
        )
        for term in terms
    }


def source_of(tables: Mapping[str, Table]) -> str:
    """Return the source of the weights' module with these tables."""
    source = WEIGHTS_FILE.read_text()
    source = source[: source.index(f"{next(iter(tables))}: Table = ")]
    for name, table in tables.items():
        rows = (f'    "{term}": ({", ".join(f"{weight:g}" for weight in row)}),\n' for term, row in table.items())
        source += f"{name}: Table = {{\n{''.join(rows)}}}  # fmt: skip\n"
    return source


@reported_errors()
def main() -> None:
    parser = embedder_arguments(__doc__)
    parser.add_argument("--words", action="store_true", help="without the question's vector")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument(
        "--chat-classes", nargs="+", choices=CHAT_CLASSES, default=CHAT_CLASSES, help="whose weights are fitted"
    )
    parser.add_argument("--fit", action="store_true", help=f"write the weights to {WEIGHTS_FILE.name}")
    chosen = parser.parse_args()
    settings = embedder_settings(chosen)
    asked = [one for kind in chosen.kinds for one in ask_stores(settings, kind, kinds.load(kind), words=chosen.words)]
    basis: Basis = "words" if chosen.words else KIND_OF[chosen.embedder]
    figures: dict[str, object] = {}
    tables: dict[str, Table] = {}
    for name, rows, terms, table in (
        ("relevance", of_relevance(asked), OF_RELEVANCE, relevance_weights.RELEVANCE),
        ("answerable", of_answerable(asked), OF_ANSWERABLE, relevance_weights.ANSWERABLE),
    ):
        print(f"{name}: AUC, error, and that of chance, by stores' size")
        likely = left_out(rows)
        figures[name] = report(rows, likely)
        if name == "answerable":
            figures["answerable below 0.5"] = report_below_even(rows, likely)
        fitted = figures[f"{name} weights"] = weights(rows, terms, chosen.chat_classes)
        tables[name.upper()] = renewed(table, basis, fitted, ("constant", *terms))
    if chosen.fit:
        WEIGHTS_FILE.write_text(source_of(tables))
    write_json(figures, chosen.json)


if __name__ == "__main__":
    main()
