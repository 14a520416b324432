"""Cost of models, for questions that need them and for questions that do not.

    python -m benchmarks.llm [--quick] [--json FILE]

1. Plain questions while every call of a model hangs, beside the same questions while none is made: p95, of each round,
   and the median of the rounds. The hanging calls are those of further questions, which want every model step.
2. Questions that want every model step, each step the slowest in its turn: the time beyond the slowest call.
3. What the enrichment flow asks for the development conversations, with batching and without (benchmarks/llm_costs.py).

Models are a service in a process of its own, over HTTP (benchmarks/model_server.py); the engine is in this process,
without Kafka (benchmarks/llm_questions.py).
"""

from dataclasses import replace

from benchmarks import llm_costs, llm_questions
from benchmarks.command_line import quick_arguments, write_json
from benchmarks.locomo import load, shared

BATCH_SIZES = [1, 8]
FEW = 150  # messages


def main() -> None:
    chosen = quick_arguments(__doc__).parse_args()
    conversations = load(shared("data", "locomo_dev.json"))
    few = [replace(conversations[0], turns=conversations[0].turns[:FEW])]
    costs = llm_costs.measure(few if chosen.quick else conversations, BATCH_SIZES)
    questions = llm_questions.measure(conversations, quick=chosen.quick)
    llm_questions.show(questions)
    llm_costs.show(costs)
    write_json({"questions": questions, "costs": costs}, chosen.json)


if __name__ == "__main__":
    main()
