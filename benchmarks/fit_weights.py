"""Fits the semantic signal's weights, and says what each column is worth on conversations it was not fitted to.

    python -m benchmarks.fit_weights [--embedder hash|static|minilm] [--model-path DIR] [--ablate] [--json FILE]

Figures that count are the left-out ones: each conversation is ranked with weights fitted to the others (`softmax.py`).
The weights printed are fitted to all.
"""

from typing import Any

import numpy as np
import orjson

from benchmarks.conversation_events import embedder_arguments, embedder_settings
from benchmarks.examples import examples
from benchmarks.locomo import load, shared
from benchmarks.softmax import fit, judged, left_out, means
from recallflow.operators.recall.columns import WEIGHTS

TOLD = ("speaker", "speaker_asks", "subject", "date")  # columns that rest on who wrote a message, and on its date


def main() -> None:
    parser = embedder_arguments(__doc__)
    parser.add_argument("--ablate", action="store_true", help="also fit without each column")
    chosen = parser.parse_args()
    settings = embedder_settings(chosen)
    kind, every = examples(settings, load(shared("data", "locomo_dev.json")))
    names = [*WEIGHTS[kind]]
    in_use = np.array([*WEIGHTS[kind].values()])
    told = [names.index(name) for name in TOLD]
    figures: dict[str, Any] = {
        "in use": means([row for one in every for row in judged(one, in_use)]),
        "left out": means(left_out(every)),
        "left out, without author and date": means(left_out([one.without(told) for one in every])),
    }
    if chosen.ablate:
        for column, name in enumerate(names):
            figures[f"left out, without {name}"] = means(left_out([one.without([column]) for one in every]))
    fitted = dict(zip(names, (round(float(w), 2) for w in fit(every)), strict=True))
    for label, measures in figures.items():
        print(f"{label:<36}" + "  ".join(f"{name} {value:.3f}" for name, value in measures.items()))
    print("fitted to all:", fitted)
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps({"figures": figures, "fitted": fitted}, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
