"""Fits what turns a memory's share of all evidence into a probability, and says how far off it is where it was not
fitted.

    python -m benchmarks.calibration [--embedder hash|static|minilm] [--model-path DIR] [--json FILE]

Each conversation is ranked with weights fitted to the others (`softmax.py`), and the first 20 memories of each question
count, as an answer shows them. The expected calibration error (ECE) is the mean distance between probability and share
of evidence over ten bins of equal width, weighted by how many memories fall into each.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from benchmarks.conversation_events import embedder_arguments, embedder_settings
from benchmarks.examples import Examples, examples
from benchmarks.locomo import load, shared
from benchmarks.softmax import fit, scores
from recallflow.operators.recall.explain import Calibration, log_odds_of_share, log_total

SHOWN = 20  # memories per answer
BINS = 10
STEPS = 50

Floats = npt.NDArray[np.float64]


class Shown(NamedTuple):
    """The memories of one conversation's answers: ln(share / (1 - share)), and whether each is evidence."""

    odds: Floats
    is_evidence: npt.NDArray[np.bool_]


def shown(examples: Examples, weights: Floats) -> Shown:
    """What answers to the conversation's questions show."""
    odds, is_evidence = [], []
    for row, evidence in zip(scores(examples, weights), examples.is_evidence, strict=True):
        best = np.argsort(-row, kind="stable")[:SHOWN]
        odds.append(log_odds_of_share(row[best], log_total(row)))
        is_evidence.append(evidence[best])
    return Shown(np.concatenate(odds), np.concatenate(is_evidence))


def calibrated(training: Sequence[Shown]) -> Calibration:
    """Logistic regression on one number, by Newton's method."""
    inputs = np.concatenate([one.odds for one in training])
    inputs = np.stack([np.ones(len(inputs)), inputs])
    is_evidence = np.concatenate([one.is_evidence for one in training]) * 1.0
    found = np.array([0.0, 1.0])
    for _ in range(STEPS):
        likely = 1 / (1 + np.exp(-(found @ inputs)))
        hessian = (inputs * (likely * (1 - likely))) @ inputs.T
        found = found + np.linalg.solve(hessian, inputs @ (is_evidence - likely))
    return Calibration(float(found[0]), float(found[1]))


def error(tested: Shown, calibration: Calibration) -> float:
    """The expected calibration error."""
    likely = 1 / (1 + np.exp(-(calibration.offset + calibration.slope * tested.odds)))
    of_bin = np.minimum((likely * BINS).astype(np.int64), BINS - 1)
    total = 0.0
    for number in range(BINS):
        if (held := of_bin == number).any():
            total += held.sum() * abs(float(likely[held].mean()) - float(tested.is_evidence[held].mean()))
    return total / len(likely)


def main() -> None:
    chosen = embedder_arguments(__doc__).parse_args()
    settings = embedder_settings(chosen)
    kind, every = examples(settings, load(shared("data", "locomo_dev.json")))
    answers = [shown(tested, fit([one for one in every if one is not tested])) for tested in every]
    errors = {}
    for at, tested in enumerate(every):
        others = calibrated([one for other, one in enumerate(answers) if other != at])
        errors[tested.conversation] = {
            "share as it is": error(answers[at], Calibration(0.0, 1.0)),
            "calibrated on the others": error(answers[at], others),
        }
        shown_errors = (f"{name} {value:.4f}" for name, value in errors[tested.conversation].items())
        print(f"{tested.conversation}: ECE {', '.join(shown_errors)}")
    found = calibrated(answers)
    print(f"{kind}: Calibration({found.offset:.2f}, {found.slope:.2f})")
    if chosen.json:
        figures = {"kind": kind, "ece": errors, "calibration": found._asdict()}
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
