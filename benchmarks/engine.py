"""What a message and a query cost inside the engine, without Kafka, beside the floor of the parts they need.

    python -m benchmarks.engine [--large 100000] [--quick] [--json FILE]

The floor (benchmarks/floor.py), a fixed program with a version, has the same messages in the same run. The flow counts
from the first record taken in to the last one through.

Messages are those of two people and of groups, the short ones among the kinds of chat, and no user says one twice: with
LoCoMo's alone, 2 in 5 of a user's 2,500 were said before, word for word, which no chat does, and a run of few messages
(--quick) measured another kind of chat than a run of many. Users begin at different places: where all said the same in
a row, the floor's 5,000 messages were 250 texts, and the flow's 50,000 were not (docs/internals/decisions/08).
The cost of repetitions is printed separately.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from threadpoolctl import threadpool_limits

from benchmarks import floor, kinds
from benchmarks.command_line import quick_arguments, write_json
from benchmarks.conversation_events import message_lines
from benchmarks.locomo import Conversation, load, shared
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.local_inputs import Delivered, batched
from recallflow.flows.embedded import EmbeddedEngine, Processed, process, run_lines
from recallflow.flows.gc_policy import ONE_THREAD
from recallflow.flows.settings import Settings
from recallflow.state.description import SINGLE_RUN_LOG
from recallflow.state.encryption import UNENCRYPTED, AtRest

MEMORIES, MIDDLE = 1_000, 20_000
SHARES = (50, 95, 99)  # percentiles of a query's time
ROUNDS = 5
AS_USUAL = Settings()
FLOOR_MESSAGES = 5_000
TENANT, USER, OTHER = "bench", "user", "other"
WARM_UP = 20  # queries
COLD = 10  # processes
USERS = 20
REPEATED = 2 / 5  # of a user's messages, where some are


def events(conversations: list[Conversation], count: int, users: int, *, repeated: float = 0.0) -> list[bytes]:
    """`count` messages of the conversations' length and words, over `users` users, who take turns. Each begins at
    another message, and says none twice before all were said; with `repeated`, that share of them."""
    texts: dict[str, dict[str, Any]] = {}
    for conversation in conversations:
        for message in map(orjson.loads, message_lines(conversation)):
            texts.setdefault(message["content"], message)
    messages = [*texts.values()]
    before_again = min(len(messages), round(count / users * (1 - repeated)))
    lines = []
    for number in range(count):
        turn, user = divmod(number, users)
        message = messages[(turn % before_again + user * len(messages) // users) % len(messages)]
        own = {"id": f"m{number}", "tenant_id": TENANT, "user_id": f"{USER}{user}"}
        lines.append(orjson.dumps(message | own | {"session_id": f"{message['user_id']}-{message['session_id']}"}))
    return lines


# ---------------------------------------------------------------------- taking in


class IngestCost(NamedTuple):
    """Cost of storing messages: messages per second of wall-clock time, and microseconds of processor time for each."""

    per_s: float
    us: float


def compare(lines: list[bytes], repeated: list[bytes]) -> dict[str, Any]:
    """Measure flow and floor in turns, in processor time of one thread; return the best of some rounds."""
    floor_us: dict[str, float] = {}
    costs: list[IngestCost] = []
    repeated_us: list[float] = []
    with threadpool_limits(ONE_THREAD):
        for _ in range(ROUNDS):
            gc.collect()
            for name, us in floor.measure_us(lines[:FLOOR_MESSAGES]).items():
                floor_us[name] = min(us, floor_us.get(name, us))
            costs.append(ingest(lines))
            repeated_us.append(ingest(repeated).us)
    ingest_us = min(one.us for one in costs)
    return {
        "floor_version": floor.VERSION,
        "floor_us": floor_us,
        "ingest_us": ingest_us,
        "ingest_to_floor": sum(floor_us.values()) / ingest_us,
        "ingest_repeated_us": min(repeated_us),
        "ingest_per_s": max(one.per_s for one in costs),
    }


def ingest(
    lines: list[bytes], settings: Settings = AS_USUAL, at_rest: AtRest = UNENCRYPTED, state_dir: Path | None = None
) -> IngestCost:
    """Store messages through the whole dataflow with one worker, in a new state directory."""
    started: list[tuple[float, float]] = []

    def feed() -> Iterator[bytes]:
        started.append((time.perf_counter(), time.process_time()))
        yield from lines

    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedEngine.open(settings, state_dir or Path(folder) / "state", at_rest=at_rest) as embedded,
    ):
        run_lines(embedded, "bench", lambda *_: batched(feed()), lambda *_: None, is_replayable=False)
        ((wall_s, processor_s),) = started
        count = len(lines)
        return IngestCost(count / (time.perf_counter() - wall_s), (time.process_time() - processor_s) / count * 1e6)


# ---------------------------------------------------------------------- queries


def queries(lines: list[bytes], questions: list[str], now_ms: int) -> dict[str, Any]:
    """Return milliseconds per query, and bytes on disk per memory.

    `processing_time_ms` of the first query of an owner who is not in memory, in processes that have answered others; of
    the rest, with the median of each step; and the median of their whole processor time, from parsing to commit.
    """
    others = [orjson.dumps(orjson.loads(line) | {"user_id": OTHER}) for line in lines[:MEMORIES]]
    before = [_query(question, now_ms, OTHER) for question in questions[:WARM_UP]]
    asked = [_query(question, now_ms) for question in questions[WARM_UP:]]
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        # One state partition: what others ask comes first.
        process([*others, *lines], Settings(partitions=1), state_dir)
        stored = sum(file.stat().st_size for file in state_dir.glob("p*/*"))
        firsts = [process([*before, one], Settings(partitions=1), state_dir).responses[-1] for one in asked[:COLD]]
        every, whole_ms = timed([*before, *asked], state_dir)
    warm = every[WARM_UP + 1 :]
    cold = [response["processing_time_ms"] for response in firsts]
    times = [response["processing_time_ms"] for response in warm]
    steps = [response["routing_info"]["stages_ms"] for response in warm]
    return {
        "first": statistics.median(cold),
        "first, at most": max(cold),
        **{f"p{share}": float(np.percentile(times, share)) for share in SHARES},
        "whole, processor": statistics.median(whole_ms[WARM_UP + 1 :]),
        "steps": {step: statistics.median(ms[step] for ms in steps) for step in steps[0]},
        "bytes": stored / (len(lines) + len(others)),
    }


def timed(lines: list[bytes], state_dir: Path) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the responses to queries, and the processor time of each from parsing to commit, in milliseconds."""
    processed, whole_ms = Processed(), list[float]()
    began_s = 0.0

    def deliver(_: int, outputs: list[Delivered]) -> None:
        nonlocal began_s
        whole_ms.append((time.process_time() - began_s) * 1_000)
        for output in outputs:
            processed.add(0, output)
        began_s = time.process_time()

    with EmbeddedEngine.open(Settings(partitions=1), state_dir) as embedded:
        began_s = time.process_time()
        run_lines(embedded, SINGLE_RUN_LOG, lambda *_: batched(iter(lines)), deliver, is_replayable=False)
    return processed.responses, whole_ms


def _query(question: str, now_ms: int, user_id: str = f"{USER}0") -> bytes:
    fields = {"type": "recall", "tenant_id": TENANT, "user_id": user_id, "query": question, "timestamp": now_ms}
    return orjson.dumps(fields)


def main() -> None:
    parser = quick_arguments(__doc__)
    parser.add_argument("--large", type=int, default=100_000, metavar="N", help="memories of the large user (100,000)")
    chosen = parser.parse_args()
    conversations = load(shared("data", "locomo_dev.json"))
    questions = [q.text for c in conversations for q in c.questions][: 100 if chosen.quick else 500]
    now_ms = max(int(turn.time.timestamp() * 1000) for c in conversations for turn in c.turns) + 86_400_000
    sizes = [MIDDLE] if chosen.quick else sorted({MIDDLE, chosen.large})
    people, count = [*conversations, *kinds.load("group")], 5_000 if chosen.quick else 50_000
    many, repeated = (events(people, count, USERS, repeated=share) for share in (0.0, REPEATED))
    one = events(conversations, MEMORIES, users=1)
    embedder = load_embedder("hash")
    texts = [orjson.loads(line)["content"] for line in (*one, *many)]
    embedder.embed(texts)  # word caches warm, as in a process that runs

    figures = compare(many, repeated)
    large = (events(conversations, size, users=1) for size in sizes)
    figures["query_ms"] = {f"{len(lines):,}": queries(lines, questions, now_ms) for lines in (one, *large)}
    _print(figures)
    write_json(figures, chosen.json)


def _print(figures: dict[str, Any]) -> None:
    print(f"floor of one message (version {floor.VERSION}), µs of the processor")
    for name, value in figures["floor_us"].items():
        print(f"  {name:<34} {value:6.1f}")
    print(f"  {'all':<34} {sum(figures['floor_us'].values()):6.1f}")
    print(f"a message through the flow, the same  {figures['ingest_us']:6.1f}")
    print(f"  rate, as a share of the floor's     {figures['ingest_to_floor']:6.2f}")
    print(f"  where 2 in 5 were said before       {figures['ingest_repeated_us']:6.1f}")
    print(f"  messages/s by the clock             {figures['ingest_per_s']:6.0f}")
    for memories, found in figures["query_ms"].items():
        print(f"query in the engine, {memories} memories, ms")
        names = "first", "first, at most", *(f"p{share}" for share in SHARES), "whole, processor"
        for name, value in ({name: found[name] for name in names} | found["steps"]).items():
            print(f"  {name:<34} {value:6.2f}")
        print(f"  {'bytes on disk a memory':<34} {found['bytes']:6.0f}")


if __name__ == "__main__":
    main()
