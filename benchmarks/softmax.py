"""Softmax regression over each question's memories, and how well weights rank.

The weights make the evidence most probable among all memories of its conversation, p(memory) = exp(w·x) / Σ exp(w·x),
with an L2 penalty on columns scaled to unit spread. The optimum is one (the loss is convex), and Newton's method finds
it in a few steps. What speaks for a memory never counts against it: a column whose weight would fall below its least is
held there, and the others are fitted again. Of a question's other memories those that a first guess ranks best are
looked at, and a random few of the rest, each of which stands for many.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
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
STEPS = 30
ENOUGH = 1e-6
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
    """The weights of this chat's columns with these names. Those of a pair are drawn towards what is fitted to all
    people, of whom pairs are some."""
    given = {name: weight for name, weight in GIVEN.get(chat, {}).items() if name in names}
    everyone = _bounded(training, names, given, dict.fromkeys(names, 0.0), PENALTY)
    pairs = [one for one in training if one.chat == "pair"]
    if chat == "pair" and pairs:
        everyone = _bounded(pairs, names, given, everyone, DRAWN)
    return np.array([everyone[name] for name in names])


def _bounded(
    training: Sequence[Sample],
    names: Sequence[str],
    given: Mapping[str, float],
    near: Mapping[str, float],
    penalty: float,
) -> dict[str, float]:
    """By column: what is given, and fitted weights, none below its least; `penalty` is on what they differ from
    `near`."""
    held = dict(given)
    while True:
        free = [name for name in names if name not in held]
        centre = np.array([near[name] for name in free])
        fitted = _fit([_holding(one, held) for one in training], free, centre, penalty)
        found = dict(zip(free, fitted.tolist(), strict=True))
        low = {name: LEAST[name] for name, weight in found.items() if weight < LEAST.get(name, -np.inf)}
        if not low:
            return found | held
        held |= low


def _holding(one: Sample, held: Mapping[str, float]) -> Sample:
    """The sample with what some columns add to the scores for sure."""
    added = sum((weight * one.features[one.names.index(name)] for name, weight in held.items() if weight), 0.0)
    return replace(one, log_counts=one.log_counts + np.float32(added))


def _fit(training: Sequence[Sample], names: Sequence[str], near: Weights, penalty: float) -> Weights:
    rows = [training[0].names.index(name) for name in names]
    spread = np.concatenate([one.spread[rows] for one in training], axis=1).mean(axis=1).astype(np.float64)
    spread = np.maximum(spread, 1e-3)
    scaled = [
        (one.features[rows] / spread[:, None, None].astype(np.float32), one.log_counts, one.share, one.counts)
        for one in training
    ]
    questions = sum(one.share.shape[0] for one in training)
    centre = near * spread
    weights = centre
    loss = _loss(scaled, weights, centre, penalty)
    for _ in range(STEPS):
        step = _newton(scaled, weights, centre, penalty)
        while (stepped := _loss(scaled, weights + step, centre, penalty)) > loss and np.abs(step).max() > ENOUGH:
            step /= 2
        weights = weights + step
        if loss - stepped < ENOUGH * questions:
            break
        loss = stepped
    fitted: Weights = weights / spread
    return fitted


Scaled = Sequence[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32], float]]


def _loss(scaled: Scaled, weights: Weights, centre: Weights, penalty: float) -> float:
    loss = penalty * float((weights - centre) @ (weights - centre)) / 2
    for features, log_counts, share, counts in scaled:
        logs = log_shares(np.tensordot(weights.astype(np.float32), features, 1) + log_counts)
        loss -= counts * float((share * np.where(share > 0, logs, 0)).sum())
    return loss


def _newton(scaled: Scaled, weights: Weights, centre: Weights, penalty: float) -> Weights:
    """-H⁻¹·gradient of the loss."""
    count = len(weights)
    gradient: npt.NDArray[Any] = penalty * (weights - centre)
    hessian: npt.NDArray[Any] = penalty * np.eye(count)
    for features, log_counts, share, counts in scaled:
        odds = np.exp(log_shares(np.tensordot(weights.astype(np.float32), features, 1) + log_counts))
        mean = np.einsum("kqn,qn->kq", features, odds)
        gradient -= counts * np.einsum("kqn,qn->k", features, share - odds)
        held = (features * odds).reshape(count, -1) @ features.reshape(count, -1).T
        hessian += counts * (held - mean @ mean.T)
    step: Weights = -np.linalg.solve(hessian, gradient)
    return step


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
    return [measure([tested.ids[place] for place in row], of) for row, of in zip(best, evidence, strict=True)]


class LeftOut:
    """A chat's weights of some columns, fitted to all conversations but those of one origin; each origin once."""

    def __init__(self, samples: Sequence[tuple[Hashable, Sample]], names: Sequence[str], chat: Chat) -> None:
        """`samples`: with the origin of each."""
        self._samples, self._names, self._chat = samples, names, chat
        self._known: dict[Hashable, Weights] = {}

    def without(self, origin: Hashable) -> Weights:
        if origin not in self._known:
            others = [sample for of, sample in self._samples if of != origin]
            self._known[origin] = fit(others, self._names, self._chat)
        return self._known[origin]


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each measure."""
    return {name: float(np.mean([row[name] for row in rows])) for name in SHOWN}
