"""Fits what turns a memory's share of all evidence into a probability, and says how far off it is where it was not
fitted.

    python -m benchmarks.calibration [--embedder NAME] [--model-path DIR] [--kinds KIND,…] [--json FILE]

Each conversation is ranked with weights fitted to the others (`softmax.py`), and the first 20 memories of each question
count, as an answer shows them. The expected calibration error (ECE) is the mean distance between probability and share
of evidence over ten bins of equal width, weighted by how many memories fall into each.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from benchmarks import kinds
from benchmarks.conversation_events import embedder_arguments
from benchmarks.examples import Examples
from benchmarks.fit_weights import COUNTS, KNOWS, OF_SET, gathered, origin
from benchmarks.softmax import LeftOut, sampled, scores
from recallflow.operators.recall.explain import Calibration, log_odds_of_share, log_total
from recallflow.operators.recall.weights import WEIGHTS, Chat

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


def errors(
    training: Sequence[Examples], names: Sequence[str], chat: Chat, set_of: Chat
) -> tuple[dict[str, dict[str, float]], Calibration]:
    """By kind, the mean over conversations of this chat of the errors where each is left out of all fits; and the
    calibration by all of them. `set_of`: the chat whose weights rank them."""
    fits = LeftOut([(origin(one), sampled(one, COUNTS.get(one.kind, 1.0))) for one in training], names, set_of)
    every = [one for one in training if one.chat == chat]
    answers = [shown(one.of(names), fits.without(origin(one))) for one in every]
    found: dict[str, dict[str, list[float]]] = {}
    for tested, answer in zip(every, answers, strict=True):
        others = calibrated([of for one, of in zip(every, answers, strict=True) if origin(one) != origin(tested)])
        by_kind = found.setdefault(tested.kind, {})
        by_kind.setdefault("share as it is", []).append(error(answer, Calibration(0.0, 1.0)))
        by_kind.setdefault("calibrated on the others", []).append(error(answer, others))
    means = {kind: {name: float(np.mean(of)) for name, of in by_name.items()} for kind, by_name in found.items()}
    return means, calibrated(answers)


def main() -> None:
    parser = embedder_arguments(__doc__)
    parser.add_argument("--kinds", default=",".join(kinds.KINDS), help="kinds of chat, by commas (default: all)")
    chosen = parser.parse_args()
    everything, knows = gathered(chosen), KNOWS[chosen.embedder]
    told = {}
    for chat in dict.fromkeys(one.chat for one in everything):
        set_of: Chat = chat if chat in WEIGHTS[knows] else "people"
        training = [one for one in everything if one.chat in OF_SET[chat]]
        by_kind, found = errors(training, [*WEIGHTS[knows][set_of]], chat, set_of)
        for kind, of in by_kind.items():
            print(f"{kind}: ECE " + ", ".join(f"{name} {value:.4f}" for name, value in of.items()))
        print(f"{knows}, {chat}: Calibration({found.offset:.2f}, {found.slope:.2f})")
        told[chat] = {"ece": by_kind, "calibration": found._asdict()}
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
