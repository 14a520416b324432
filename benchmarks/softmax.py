"""Softmax regression over each question's memories, and how well weights rank.

The weights make the evidence most probable among all memories of its conversation, p(memory) = exp(w·x) / Σ exp(w·x),
with an L2 penalty on columns scaled to unit spread. The optimum is one (the loss is convex), and Newton's method finds
it in a few steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.examples import Examples
from benchmarks.locomo import measure

Weights = npt.NDArray[np.float64]

PENALTY = 1.0
STEPS = 30
ENOUGH = 1e-8
SHOWN = ("any@10", "all@10", "nDCG@10")


def fit(training: Sequence[Examples]) -> Weights:
    """The weights of the columns."""
    questions = sum(one.features.shape[1] for one in training)
    spread = np.concatenate([one.features.std(axis=2) for one in training], axis=1).mean(axis=1)
    spread = np.maximum(spread, 1e-3)
    scaled = [
        (one.features / spread[:, None, None], one.is_evidence / one.is_evidence.sum(axis=1, keepdims=True))
        for one in training
    ]
    weights = np.zeros(len(spread))
    loss = _loss(scaled, weights)
    for _ in range(STEPS):
        step = _newton(scaled, weights)
        while (stepped := _loss(scaled, weights + step)) > loss and np.abs(step).max() > ENOUGH:
            step /= 2
        weights = weights + step
        if loss - stepped < ENOUGH * questions:
            break
        loss = stepped
    fitted: Weights = weights / spread
    return fitted


def _loss(scaled: Sequence[tuple[Weights, Weights]], weights: Weights) -> float:
    loss = PENALTY * float(weights @ weights) / 2
    for features, share in scaled:
        score = np.tensordot(weights, features, 1)
        loss -= float((share * log_shares(score)).sum())
    return loss


def _newton(scaled: Sequence[tuple[Weights, Weights]], weights: Weights) -> Weights:
    """-H⁻¹·gradient of the loss."""
    count = len(weights)
    gradient: npt.NDArray[Any] = PENALTY * weights
    hessian: npt.NDArray[Any] = PENALTY * np.eye(count)
    for features, share in scaled:
        odds = np.exp(log_shares(np.tensordot(weights, features, 1)))
        mean = np.einsum("kqn,qn->kq", features, odds)
        gradient -= np.einsum("kqn,qn->k", features, share - odds)
        hessian += (features * odds).reshape(count, -1) @ features.reshape(count, -1).T - mean @ mean.T
    step: Weights = -np.linalg.solve(hessian, gradient)
    return step


def log_shares(scores: Weights) -> Weights:
    """(questions, memories) log-odds → log of each memory's share of all evidence (log-softmax)."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    shares: Weights = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
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


def left_out(every: Sequence[Examples]) -> list[dict[str, float]]:
    """The measures of each question, ranked with weights fitted to the other conversations."""
    rows = []
    for tested in every:
        rows += judged(tested, fit([one for one in every if one is not tested]))
    return rows


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each measure."""
    return {name: float(np.mean([row[name] for row in rows])) for name in SHOWN}
