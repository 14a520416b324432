"""What models cost whoever asks them, and whoever does not.

    python -m benchmarks.llm [--quick] [--json FILE]

1. Plain questions while every call of a model hangs, beside the same questions while none is made: p95, of each round,
   and the median of the rounds. The hanging calls are those of further questions, which want every model step.
2. Questions that want every model step, each step the slowest in its turn: the time beyond the slowest call.
3. What the enrichment flow asks for the development conversations, with batching and without (benchmarks/llm_costs.py).

Models are a service in a process of its own, over HTTP (benchmarks/model_server.py); the engine is in this process,
without Kafka (benchmarks/live.py).
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from benchmarks import llm_costs, llm_questions
from benchmarks.locomo import load, shared

BATCH_SIZES = [1, 8]
FEW = 150  # messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    conversations = load(shared("data", "locomo_dev.json"))
    few = [replace(conversations[0], turns=conversations[0].turns[:FEW])]
    costs = llm_costs.measure(few if chosen.quick else conversations, BATCH_SIZES)
    figures: dict[str, Any] = {
        "questions": llm_questions.measure(conversations, quick=chosen.quick),
        "costs": costs,
    }
    llm_questions.show(figures["questions"])
    llm_costs.show(costs)
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
