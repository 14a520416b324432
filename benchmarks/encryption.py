"""What encryption at rest costs: the same messages and questions with a master key and without, in turns, in one run.

    python -m benchmarks.encryption [--quick] [--json FILE]

In each round both come right after one another, and which comes first changes. The time of the messages and of each
question is that of the best round, as others on the machine only ever add to it. Messages count in processor time,
questions in the engine's own time. "First" is a user's first question in a process, which loads the index.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
from threadpoolctl import threadpool_limits

from benchmarks import kinds
from benchmarks.engine import USERS, events, ingest
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    rounds, count, memories = (5, 2_000, 2_500) if chosen.quick else (10, 20_000, 20_000)
    conversations = load(shared("data", "locomo_dev.json"))
    people = [*conversations, *kinds.load("group")]
    messages, one = events(people, count, USERS), events(conversations, memories, users=1)
    texts = [orjson.loads(line)["content"] for line in (*messages, *one)]
    load_embedder("hash").embed(texts)  # word caches warm, as in a process that runs
    asked = _questions([q.text for c in conversations for q in c.questions][:100], one[-1])
    with threadpool_limits(ONE_THREAD), tempfile.TemporaryDirectory() as folder:
        found = compare(rounds, lambda at_rest: {"message, µs": [ingest(messages, at_rest=at_rest).us]})
        paths = {at_rest: Path(folder) / name for at_rest, name in {UNENCRYPTED: "bare", ENCRYPTED: "sealed"}.items()}
        for at_rest, path in paths.items():
            process(one, SETTINGS, path, at_rest=at_rest)
        found |= compare(rounds, lambda at_rest: _answered(asked, paths[at_rest], at_rest))
        stored = {at_rest: sum(file.stat().st_size for file in path.glob("p*/*")) for at_rest, path in paths.items()}
    found["bytes on disk"] = {
        "without": stored[UNENCRYPTED],
        "with": stored[ENCRYPTED],
        "ratio": stored[ENCRYPTED] / stored[UNENCRYPTED],
    }
    for name, figures in found.items():
        print(f"{name:<28} {figures['without']:14,.1f} {figures['with']:14,.1f} {figures['ratio']:6.2f}×")
    print(f"goal: at most {GOAL}× for a message and a question")
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))


def _questions(texts: list[str], last: bytes) -> list[bytes]:
    """Questions to the user of a message, a day after it."""
    event = orjson.loads(last)
    scope = {"type": "recall", "tenant_id": event["tenant_id"], "user_id": event["user_id"]}
    return [orjson.dumps(scope | {"query": text, "timestamp": 1_900_000_000_000}) for text in texts]


def _answered(asked: list[bytes], path: Path, at_rest: AtRest) -> dict[str, list[float]]:
    responses = process(asked, SETTINGS, path, at_rest=at_rest).responses
    first, *others = (response["processing_time_ms"] for response in responses)
    return {"first question, ms": [first], "question, ms": others}


if __name__ == "__main__":
    main()
