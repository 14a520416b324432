"""What is true now: whether an answer has the current statement before those that it replaced.

    python -m benchmarks.updates [--embedder NAME] [--model-path DIR] [--mode hybrid] [--json FILE]

Every case of `changing_facts.py` is a user of its own; the questions are asked through the flow. Printed are, by kind
of case, language and attribute,

    current-first   share of cases in which the answering memory precedes those that it replaced, or, where another's
                    change, an addition or the past was told, those that do not answer
    current@1, @3   share in which it is the first, among the first three
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np
import orjson

from benchmarks.changing_facts import Case, cases
from benchmarks.conversation_events import embedder_arguments, embedder_settings
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings

MINUTE_MS = 60_000
BEGIN_MS = 1_750_000_000_000
REPLACING = ("update", "double", "reverted", "correction", "group")
Shares = dict[str, float]


def ask(settings: Settings, every: Sequence[Case], mode: str) -> list[list[int]]:
    """Return for each case the numbers of its messages in the order of the answer."""

    def lines() -> Iterable[bytes]:
        for number, case in enumerate(every):
            owner = {"tenant_id": case.language, "user_id": str(number)}
            for at, line in enumerate(case.lines):
                told = {
                    "type": "message",
                    "id": str(at),
                    "content": line.text,
                    "session_id": "chat",
                    "name": line.author,
                }
                yield orjson.dumps(owner | told | {"timestamp": BEGIN_MS + at * MINUTE_MS})
        for number, case in enumerate(every):
            owner = {"tenant_id": case.language, "user_id": str(number), "id": str(number)}
            asked = {"type": "recall", "query": case.question, "mode": mode, "k": 50}
            yield orjson.dumps(owner | asked | {"timestamp": BEGIN_MS + len(case.lines) * MINUTE_MS})

    done = process(lines(), settings)
    assert not done.rejected, done.rejected[:1]
    found = {int(one["query_id"]): [int(memory["id"]) for memory in one["memories"]] for one in done.responses}
    return [found[number] for number in range(len(every))]


def judge(case: Case, ranked: Sequence[int]) -> Shares:
    """Return the measures of one case, 0 or 1."""
    at = {number: rank for rank, number in enumerate(ranked)}
    own = at.get(case.best, len(ranked))
    first = all(own < at.get(other, len(ranked) + 1) for other in case.behind)
    return {"current-first": float(first), "current@1": float(own < 1), "current@3": float(own < 3)}


def shares(judged: Iterable[tuple[str, Shares]]) -> dict[str, Shares]:
    """Return the mean of each measure by name."""
    rows: defaultdict[str, list[Shares]] = defaultdict(list)
    for name, one in judged:
        rows[name].append(one)
    return {
        name: {measure: float(np.mean([one[measure] for one in of])) for measure in of[0]} for name, of in rows.items()
    }


def main() -> None:
    parser = embedder_arguments(__doc__)
    parser.add_argument("--mode", default="hybrid", help="the ranking mode (default: hybrid)")
    chosen = parser.parse_args()
    every = [*cases()]
    ranked = ask(embedder_settings(chosen), every, chosen.mode)
    judged = [judge(case, order) for case, order in zip(every, ranked, strict=True)]
    found: dict[str, dict[str, Shares]] = {}
    labels: dict[str, list[str]] = {
        "kind": [case.kind for case in every],
        "language": [case.language for case in every],
        "attribute": [case.attribute for case in every],
    }
    for label, names in labels.items():
        # By language and attribute, of the kinds that replace a statement.
        chosen_cases = [label == "kind" or case.kind in REPLACING for case in every]
        found[label] = shares(compress([*zip(names, judged, strict=True)], chosen_cases))
        for name, of in found[label].items():
            print(f"{label} {name:<14}" + "  ".join(f"{measure} {value:.3f}" for measure, value in of.items()))
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
