"""What encryption at rest costs: the same messages and questions with a master key and without, in turns, in one run.

    python -m benchmarks.encryption [--quick] [--json FILE]

In each round both come right after one another, and which comes first changes. The time of the messages and of each
question is that of the best round, as others on the machine only ever add to it. Messages count in processor time,
questions in the engine's own time. "First" is a user's first question in a process, which loads the index.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
from threadpoolctl import threadpool_limits

from benchmarks import kinds
from benchmarks.command_line import quick_arguments, write_json
from benchmarks.engine import TENANT, USER, USERS, events, ingest
from benchmarks.locomo import load, shared
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.master_keys import LocalMasterKey
from recallflow.flows.embedded import process
from recallflow.flows.gc_policy import ONE_THREAD
from recallflow.flows.settings import Settings
from recallflow.state.encryption import UNENCRYPTED, AtRest

GOAL = 1.25
SETTINGS = Settings(partitions=1)
ENCRYPTED = AtRest(LocalMasterKey(bytes(32)))


def compare(rounds: int, measure: Callable[[AtRest], Mapping[str, list[float]]]) -> dict[str, dict[str, float]]:
    """By what is measured, each in its best round and in the median of all that is measured of it: without, with, and
    the ratio."""
    found: dict[AtRest, list[Mapping[str, list[float]]]] = {UNENCRYPTED: [], ENCRYPTED: []}
    for number in range(rounds):
        for at_rest in (UNENCRYPTED, ENCRYPTED) if number % 2 else (ENCRYPTED, UNENCRYPTED):
            found[at_rest].append(measure(at_rest))
    compared = {}
    for name in found[UNENCRYPTED][0]:
        without, with_ = (
            statistics.median(map(min, zip(*(one[name] for one in of), strict=True))) for of in found.values()
        )
        compared[name] = {"without": without, "with": with_, "ratio": with_ / without}
    return compared


def main() -> None:
    chosen = quick_arguments(__doc__).parse_args()
    rounds, count, memories = (5, 2_000, 2_500) if chosen.quick else (10, 20_000, 20_000)
    conversations = load(shared("data", "locomo_dev.json"))
    people = [*conversations, *kinds.load("group")]
    messages, one = events(people, count, USERS), events(conversations, memories, users=1)
    texts = [orjson.loads(line)["content"] for line in (*messages, *one)]
    load_embedder("hash").embed(texts)  # word caches warm, as in a process that runs
    query = {"type": "recall", "tenant_id": TENANT, "user_id": f"{USER}0", "timestamp": 1_900_000_000_000}
    texts = [question.text for conversation in conversations for question in conversation.questions][:100]
    asked = [orjson.dumps(query | {"query": text}) for text in texts]
    with threadpool_limits(ONE_THREAD), tempfile.TemporaryDirectory() as folder:
        found = compare(rounds, lambda at_rest: {"message, µs": [ingest(messages, at_rest=at_rest).us]})
        paths = {UNENCRYPTED: Path(folder) / "bare", ENCRYPTED: Path(folder) / "sealed"}
        for at_rest, path in paths.items():
            process(one, SETTINGS, path, at_rest=at_rest)
        found |= compare(rounds, lambda at_rest: _answered(asked, paths[at_rest], at_rest))
        bare, sealed = (sum(file.stat().st_size for file in path.glob("p*/*")) for path in paths.values())
    found["bytes on disk"] = {"without": bare, "with": sealed, "ratio": sealed / bare}
    for name, figures in found.items():
        print(f"{name:<28} {figures['without']:14,.1f} {figures['with']:14,.1f} {figures['ratio']:6.2f}×")
    print(f"goal: at most {GOAL}× for a message and a question")
    write_json(found, chosen.json)


def _answered(asked: list[bytes], path: Path, at_rest: AtRest) -> dict[str, list[float]]:
    responses = process(asked, SETTINGS, path, at_rest=at_rest).responses
    first, *others = (response["processing_time_ms"] for response in responses)
    return {"first question, ms": [first], "question, ms": others}


if __name__ == "__main__":
    main()
