"""Softmax regression over each question's memories, and how well weights rank.

The weights make the evidence most probable among all memories of its conversation, p(memory) = exp(w·x) / Σ exp(w·x),
with an L2 penalty on columns scaled to unit spread. The loss is convex. What speaks for a memory never counts against
it: weights have least values as bounds. Of a question's other memories those that a first guess ranks best are
looked at, and a random few of the rest, each of which stands for many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.examples import Examples
from benchmarks.locomo import measure
from recallflow.operators.recall.weights import Chat

Weights = npt.NDArray[np.float64]

PENALTY = 1.0
DRAWN = 20.0  # the penalty on what a pair's weights differ from those of people
# Not fitted: ten questions of the data give a date to an assistant, and few of its assistants ask anything.
GIVEN: Mapping[Chat, Mapping[str, float]] = {"assistant": {"date": 1.0, "borrowed": 1.0}}
STEPS = 500
SHOWN = ("any@10", "all@10", "nDCG@10")
BEST, OTHERS = 50, 40  # of a question's memories
# A first guess, of columns that there are whatever is fitted.
GUESS = {"dense": 0.2, "word": 0.3, "own": 1.5, "window": 9.0, "episode": 1.0, "speaker": 1.5, "assistant": -1.5}

# Where meaning and words say the same twice, as spelling does, a fit takes one of them back: a store of a few memories
# is not like that.
_FOR = ("reply", "word", "word_before", "own", "window", "episode", "around", "phrase", "answers", "speaker")
LEAST = {"dense": 0.1} | dict.fromkeys((*_FOR, "borrowed", "date", "when", "opens"), 0.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """What is fitted to: (columns, questions, some) values; the logarithm of how many memories each of them stands for;
    its share of the evidence; the spread of the columns over all memories, (columns, questions); and what a question
    counts."""

    names: Sequence[str]
    features: npt.NDArray[np.float32]
    log_counts: npt.NDArray[np.float32]
    share: npt.NDArray[np.float32]
    spread: npt.NDArray[np.float32]
    counts: float
    chat: Chat


def sampled(one: Examples, counts: float = 1.0) -> Sample:
    """The evidence, the best by a first guess, and a few others."""
    random = np.random.RandomState(0)
    guess = scores(one.of([*GUESS]), np.array([*GUESS.values()]))
    columns, questions, size = one.features.shape
    some = min(size, BEST + OTHERS + int(one.is_evidence.sum(axis=1).max()))
    features = np.zeros((columns, questions, some), np.float32)
    log_counts = np.full((questions, some), -np.inf, np.float32)
    share = np.zeros((questions, some), np.float32)
    for row, evidence in enumerate(one.is_evidence):
        order = np.argsort(-np.where(evidence, np.inf, guess[row]), kind="stable")
        first, rest = np.split(order, [some if some == size else BEST + int(evidence.sum())])
        chosen = random.choice(rest, OTHERS, replace=False) if len(rest) else rest
        looked_at = np.concatenate([first, chosen])
        features[:, row, : len(looked_at)] = one.features[:, row, looked_at]
        log_counts[row, : len(looked_at)] = 0
        log_counts[row, len(first) : len(looked_at)] = np.log(len(rest) / max(len(chosen), 1)) if len(rest) else 0
        share[row, : len(looked_at)] = evidence[looked_at] / evidence.sum()
    return Sample(one.names, features, log_counts, share, one.features.std(axis=2), counts, one.chat)


def fit(training: Sequence[Sample], names: Sequence[str], chat: Chat) -> Weights:
    """Return the weights of this chat's columns with these names. Those of a pair are drawn towards what is fitted to
    all people, of whom pairs are some."""
    weights = _fit(training, names, chat, np.zeros(len(names)), PENALTY)
    pairs = [one for one in training if one.chat == "pair"]
    return _fit(pairs, names, chat, weights, DRAWN) if chat == "pair" and pairs else weights


def _fit(training: Sequence[Sample], names: Sequence[str], chat: Chat, near: Weights, penalty: float) -> Weights:
    """Return the weights of the least loss within their bounds, by L-BFGS-B on columns of unit spread."""
    from scipy.optimize import minimize

    rows = [training[0].names.index(name) for name in names]
    spread = np.concatenate([one.spread[rows] for one in training], axis=1).mean(axis=1).astype(np.float64)
    spread = np.maximum(spread, 1e-3)
    scaled = [(one, one.features[rows] / spread[:, None, None].astype(np.float32)) for one in training]
    given, centre = GIVEN.get(chat, {}), near * spread

    def loss(weights: Weights) -> tuple[float, Weights]:
        apart = weights - centre
        total, gradient = penalty * float(apart @ apart) / 2, penalty * apart
        for one, features in scaled:
            logs = log_shares(np.tensordot(weights.astype(np.float32), features, 1) + one.log_counts)
            total -= one.counts * float((one.share * np.where(one.share > 0, logs, 0)).sum())
            gradient -= one.counts * np.einsum("kqn,qn->k", features, one.share - np.exp(logs))
        return total, gradient

    least = {name: (LEAST.get(name), None) for name in names} | {name: (one, one) for name, one in given.items()}
    bounds = [tuple(side and side * size for side in least[name]) for name, size in zip(names, spread, strict=True)]
    start = np.clip(centre, [-np.inf if low is None else low for low, _ in bounds], np.inf)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    fitted: Weights = found.x / spread
    return fitted


def log_shares(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(questions, memories) log-odds → log of each memory's share of all evidence (log-softmax)."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    shares: npt.NDArray[Any] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shares


def scores(examples: Examples, weights: Weights) -> Weights:
    """(questions, memories) log-odds."""
    found: Weights = np.tensordot(weights, examples.features, 1)
    return found


def judged(tested: Examples, weights: Weights) -> list[dict[str, float]]:
    """The measures of each question, ranked with these weights."""
    best = np.argsort(-scores(tested, weights), axis=1, kind="stable")[:, :20]
    evidence = [frozenset(np.array(tested.ids)[row]) for row in tested.is_evidence]
    return [measure([tested.ids[slot] for slot in row], of) for row, of in zip(best, evidence, strict=True)]


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each measure."""
    return {name: float(np.mean([row[name] for row in rows])) for name in SHOWN}
