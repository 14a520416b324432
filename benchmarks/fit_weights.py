"""Fits the semantic signal's weights, and says what each column is worth on conversations it was not fitted to.

    python -m benchmarks.fit_weights [--embedder hash|minilm] [--model-path DIR] [--ablate] [--json FILE]

Softmax regression: the weights that make the evidence most probable among all memories of its conversation,
p(memory) = exp(w·x) / Σ exp(w·x), with an L2 penalty on columns scaled to unit spread. Figures that count are the
left-out ones: each conversation is ranked with weights fitted to the others. The weights printed are fitted to all.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from benchmarks.locomo import Conversation, load, measure, shared
from benchmarks.recall_quality import TENANT, message_lines, model_path
from recallflow.connectors.lines import IteratorFeed
from recallflow.flows.embedded import Embedded
from recallflow.flows.settings import Settings
from recallflow.operators.recall import columns
from recallflow.operators.recall.columns import SEMANTIC_WEIGHTS, SPELLING_WEIGHTS
from recallflow.operators.recall.pipeline import participants
from recallflow.operators.recall.question import understand
from recallflow.owner import Owner, state_partition
from recallflow.state.hot_owner import HotOwner

Weights = npt.NDArray[np.float64]
Features = npt.NDArray[np.floating[Any]]

PENALTY = 1.0
STEPS = 400
LEARNING_RATE = 0.05
SHOWN = ("any@10", "all@10", "nDCG@10")


@dataclass(frozen=True, slots=True)
class Example:
    """One question. `features`: (columns, memories); `ids` name the memories."""

    conversation: str
    features: Features
    ids: list[str]
    evidence: frozenset[str]

    @property
    def is_evidence(self) -> npt.NDArray[np.bool_]:
        return np.array([memory_id in self.evidence for memory_id in self.ids])


def examples(settings: Settings, weights: Mapping[str, float], conversations: Sequence[Conversation]) -> list[Example]:
    """Every question's columns, from the indexes of the real flow."""
    found = []
    with Embedded.open(settings, None) as embedded:
        lines = [line for conversation in conversations for line in message_lines(conversation)]
        embedded.run("locomo", lambda _: IteratorFeed(iter(lines)), lambda *_: None, rewinds=False)
        for conversation in conversations:
            number = state_partition(TENANT, conversation.id, settings.partitions)
            hot = HotOwner(embedded.directory.partition(number), Owner(TENANT, "prod", conversation.id))
            index = hot.search_index(embedded.embedder.name, embedded.embedder.dimension)
            ids = [index.ids[slot] for slot in index.conversation.slots]
            for question in conversation.questions:
                asked = understand(question.text, participants(index))
                vector = embedded.embedder.embed([asked.own_words])[0]
                values = columns.compute(index, asked, vector, weights).values
                features = np.stack([values.get(name, np.zeros(len(ids))) for name in weights])
                found.append(Example(conversation.id, features, ids, question.evidence))
    return found


def fit(training: Sequence[Example], start: Weights) -> Weights:
    """Adam on the penalised mean log-probability of the evidence."""
    spread = np.maximum(np.mean([e.features.std(axis=1) for e in training], axis=0), 1e-3)
    prepared = [(e.features / spread[:, None], e.is_evidence) for e in training]
    weights, slope, square = start * spread, np.zeros(len(start)), np.zeros(len(start))
    for step in range(1, STEPS + 1):
        gradient = -PENALTY * weights / len(prepared)
        for features, evidence in prepared:
            score = weights @ features
            odds = np.exp(score - score.max())
            gradient += (features[:, evidence].mean(axis=1) - features @ (odds / odds.sum())) / len(prepared)
        slope = 0.9 * slope + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        weights = weights + LEARNING_RATE * (slope / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    fitted: Weights = weights / spread
    return fitted


def judged(tested: Sequence[Example], weights: Weights) -> list[dict[str, float]]:
    """The measures of each question, ranked with these weights."""
    rows = []
    for example in tested:
        best = np.argsort(-(weights @ example.features), kind="stable")[:20]
        rows.append(measure([example.ids[i] for i in best], example.evidence))
    return rows


def left_out(every: Sequence[Example], start: Weights) -> list[dict[str, float]]:
    """The measures of each question, ranked with weights fitted to the other conversations."""
    rows = []
    for name in dict.fromkeys(example.conversation for example in every):
        weights = fit([e for e in every if e.conversation != name], start)
        rows += judged([e for e in every if e.conversation == name], weights)
    return rows


def without(every: Sequence[Example], column: int) -> list[Example]:
    return [Example(e.conversation, np.delete(e.features, column, axis=0), e.ids, e.evidence) for e in every]


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in SHOWN}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedder", choices=("hash", "minilm"), default="hash")
    parser.add_argument("--model-path", type=Path, metavar="DIR")
    parser.add_argument("--ablate", action="store_true", help="also fit without each column")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    settings = Settings(embedder=chosen.embedder, model_path=model_path(chosen.embedder, chosen.model_path))
    used = SEMANTIC_WEIGHTS if chosen.embedder == "minilm" else SPELLING_WEIGHTS
    start = np.array([*used.values()])
    every = examples(settings, used, load(shared("data", "locomo_dev.json")))
    figures: dict[str, Any] = {"in use": means(judged(every, start)), "left out": means(left_out(every, start))}
    if chosen.ablate:
        for column, name in enumerate(used):
            figures[f"left out, without {name}"] = means(left_out(without(every, column), np.delete(start, column)))
    fitted = dict(zip(used, (round(float(w), 2) for w in fit(every, start)), strict=True))
    for label, measures in figures.items():
        print(f"{label:<32}" + "  ".join(f"{name} {value:.3f}" for name, value in measures.items()))
    print("fitted to all:", fitted)
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps({"figures": figures, "fitted": fitted}, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
