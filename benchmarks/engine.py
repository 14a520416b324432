"""What a message and a query cost inside the engine, without Kafka, beside the floor of the parts they need.

    python -m benchmarks.engine [--large 100000] [--quick] [--json FILE]

The floor is each part alone, over the same messages in the same run: decoding, words, embedding, indexing, storing,
encoding a response. The flow's rate counts from the first record taken in to the last one through.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import orjson
from rocksdict import Options, Rdict, WriteBatch

from benchmarks.conversation_events import message_lines
from benchmarks.locomo import Conversation, load, shared
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.lines import IteratorFeed
from recallflow.embedder import Embedder
from recallflow.flows.embedded import Embedded, process
from recallflow.flows.settings import Settings
from recallflow.language import read
from recallflow.parsing import parse
from recallflow.responses import Response
from recallflow.state.lexical import LexicalIndex
from recallflow.state.vectors import VectorIndex

MEMORIES, MIDDLE = 1_000, 20_000
PUTS = 5
BATCH = 50
NEIGHBOURS = 20
SEARCHED = 600  # vectors: as many as a user of the design's table has
TENANT, USER, OTHER = "bench", "user", "other"
WARM_UP = 20  # queries
COLD = 10  # processes


def events(conversations: list[Conversation], count: int, users: int) -> list[bytes]:
    """`count` messages of LoCoMo's length and words, over `users` users, each conversation a session a round."""
    said = [orjson.loads(line) for conversation in conversations for line in message_lines(conversation)]
    lines = []
    for number in range(count):
        message = said[number // users % len(said)]
        own = {"id": f"m{number}", "tenant_id": TENANT, "user_id": f"{USER}{number % users}"}
        lines.append(orjson.dumps(message | own | {"session_id": f"{message['user_id']}-{message['session_id']}"}))
    return lines


# ---------------------------------------------------------------------- floor


def floor(lines: list[bytes], embedder: Embedder) -> dict[str, float]:
    """Microseconds per message of each part alone."""
    parsed = [parse(line) for line in lines]
    texts = [event.content for event in parsed]  # type: ignore[attr-defined]
    stems = [read(text).stems for text in texts]
    matrix = embedder.embed(texts)
    words, vectors = LexicalIndex(), VectorIndex(embedder.dimension)
    response = Response(query_id="q", status="ok", memories=[], warnings=[], applied=["topic:0:1"])

    def index_vectors() -> None:
        for slot, row in enumerate(matrix):
            vectors.add(np.array([slot], np.int64), row.reshape(1, -1))

    near = faiss.IndexFlatIP(embedder.dimension)
    near.add(matrix[:SEARCHED])

    def find_neighbours() -> None:
        for row in matrix:
            near.search(row.reshape(1, -1), NEIGHBOURS)

    def index_words() -> None:
        for stem in stems:
            words.add([stem])

    parts: dict[str, Callable[[], Any]] = {
        "decode and validate": lambda: [parse(line) for line in lines],
        "tokenise and stem": lambda: [read(text) for text in texts],
        "hash embedding": lambda: [embedder.embed(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)],
        "FAISS add": index_vectors,
        f"FAISS search of {NEIGHBOURS} at {SEARCHED}": find_neighbours,
        "lexical index": index_words,
        f"RocksDB, {PUTS} puts in batches of {BATCH}": lambda: _store(matrix, lines),
        "response to JSON": lambda: [response.model_dump_json(exclude_unset=True) for _ in lines],
    }
    return {name: _seconds(part) / len(lines) * 1e6 for name, part in parts.items()}


def _store(matrix: Any, lines: list[bytes]) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    with tempfile.TemporaryDirectory() as folder:
        database = Rdict(folder, options)
        for start in range(0, len(lines), BATCH):
            batch = WriteBatch(raw_mode=True)
            for number in range(start, min(start + BATCH, len(lines))):
                key = number.to_bytes(8, "big")
                batch.put(b"V" + key, matrix[number].tobytes())
                for put in range(PUTS - 1):
                    batch.put(b"%d" % put + key, lines[number])
            database.write(batch)
        database.close()


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# ---------------------------------------------------------------------- flow


def ingest(lines: list[bytes]) -> float:
    """Messages per second through the whole dataflow, one worker, on a state directory that is kept."""
    started: list[float] = []

    def feed() -> Iterator[bytes]:
        started.append(time.perf_counter())
        yield from lines

    with tempfile.TemporaryDirectory() as folder, Embedded.open(Settings(), Path(folder) / "state") as embedded:
        embedded.run("bench", lambda _: IteratorFeed(feed()), lambda *_: None, rewinds=False)
        return len(lines) / (time.perf_counter() - started[0])


def queries(lines: list[bytes], questions: list[str], now_ms: int) -> dict[str, Any]:
    """Milliseconds of the engine's own time per query: the first of an owner who is not in memory, in processes that
    have answered others; then the rest, and the median of each step. And bytes on disk per memory."""
    others = [orjson.dumps(orjson.loads(line) | {"user_id": OTHER}) for line in lines[:MEMORIES]]
    before = [_query(question, now_ms, OTHER) for question in questions[:WARM_UP]]
    asked = [_query(question, now_ms) for question in questions[WARM_UP:]]
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        # One state partition: what others ask comes first.
        process([*others, *lines], Settings(partitions=1), state_dir)
        stored = sum(file.stat().st_size for file in state_dir.glob("p*/*"))
        firsts = [process([*before, one], Settings(partitions=1), state_dir).responses[-1] for one in asked[:COLD]]
        warm = process([*before, *asked], Settings(partitions=1), state_dir).responses[WARM_UP + 1 :]
    cold = [response["processing_time_ms"] for response in firsts]
    times = [response["processing_time_ms"] for response in warm]
    steps = [response["routing_info"]["stages_ms"] for response in warm]
    return {
        "first": statistics.median(cold),
        "first, at most": max(cold),
        "p50": float(np.percentile(times, 50)),
        "p95": float(np.percentile(times, 95)),
        "steps": {step: statistics.median(ms[step] for ms in steps) for step in steps[0]},
        "bytes": stored / (len(lines) + len(others)),
    }


def _query(question: str, now_ms: int, user_id: str = f"{USER}0") -> bytes:
    fields = {"type": "recall", "tenant_id": TENANT, "user_id": user_id, "query": question, "timestamp": now_ms}
    return orjson.dumps(fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=100_000, metavar="N", help="memories of the large user (100,000)")
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    conversations = load(shared("data", "locomo_dev.json"))
    questions = [q.text for c in conversations for q in c.questions][: 100 if chosen.quick else 500]
    now_ms = max(int(turn.time.timestamp() * 1000) for c in conversations for turn in c.turns) + 86_400_000
    sizes = [MIDDLE] if chosen.quick else sorted({MIDDLE, chosen.large})
    many = events(conversations, 5_000 if chosen.quick else 50_000, users=20)
    one = events(conversations, MEMORIES, users=1)
    embedder = load_embedder("hash")
    embedder.embed([orjson.loads(line)["content"] for line in one])  # word caches warm, as in a process that runs

    parts = floor(many[:5_000], embedder)
    rate = ingest(many)
    figures = {
        "floor_us": parts,
        "floor_per_s": 1e6 / sum(parts.values()),
        "ingest_per_s": rate,
        "ingest_to_floor": rate * sum(parts.values()) / 1e6,
        "query_ms": {
            f"{len(lines):,}": queries(lines, questions, now_ms)
            for lines in (one, *(events(conversations, size, users=1) for size in sizes))
        },
    }
    _print(figures)
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


def _print(figures: dict[str, Any]) -> None:
    print("floor of one message, µs")
    for name, value in figures["floor_us"].items():
        print(f"  {name:<34} {value:6.1f}")
    print(f"  {'all, messages/s':<34} {figures['floor_per_s']:6.0f}")
    print(f"ingest through the flow, messages/s   {figures['ingest_per_s']:6.0f}")
    print(f"  of the floor's rate                 {figures['ingest_to_floor']:6.2f}")
    for memories, found in figures["query_ms"].items():
        print(f"query in the engine, {memories} memories, ms")
        whole = {name: found[name] for name in ("first", "first, at most", "p50", "p95")}
        for name, value in (whole | found["steps"]).items():
            print(f"  {name:<34} {value:6.2f}")
        print(f"  {'bytes on disk a memory':<34} {found['bytes']:6.0f}")


if __name__ == "__main__":
    main()
