"""Cost of the memory graph: of a write in time and bytes on disk, and of a query.

    python -m benchmarks.graph [--part write|read] [--memories N] [--quick] [--json FILE]

Writing: the same messages go through the flow twice, with `similar_to` edges and without. Rates count from the first
record taken in to the last one through; bytes are those of the closed databases. Reading: queries of 1 to 3 hops around
a hub, a topic that all memories of an owner share.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.conversation_events import TENANT, BrokenRunError
from benchmarks.engine import events
from benchmarks.locomo import Conversation, load, shared
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.local_inputs import IteratorFeed
from recallflow.control import ControlHistory, Rollout
from recallflow.flows.embedded import EmbeddedEngine, Processed, process, run_lines
from recallflow.flows.settings import Settings
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.graph_check import TABLES
from recallflow.state.graph_codec import decode_neighbours

USERS = 20
PARTS = ("write", "read")
HOPS = (1, 2, 3)
LINKS = 50_000  # of the hub
ASKED = 50  # queries a figure is the median of


def write(lines: list[bytes], settings: Settings) -> dict[str, Any]:
    """Rate, and bytes a memory, of one run on a new state directory."""
    started: list[float] = []

    def feed() -> Iterator[bytes]:
        started.append(time.perf_counter())
        yield from lines

    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        with EmbeddedEngine.open(settings, state_dir) as embedded:
            run_lines(embedded, "bench", lambda *_: IteratorFeed(feed()), lambda *_: None, rewinds=False)
            seconds = time.perf_counter() - started[0]
            content = _content(embedded.directory)
        disk = sum(file.stat().st_size for file in state_dir.rglob("*.sst"))
        disk += sum(file.stat().st_size for file in state_dir.rglob("*.log"))
    count = len(lines)
    return {
        "memories_per_s": count / seconds,
        "disk_bytes_per_memory": disk / count,
        "graph_bytes_per_memory": {name: size / count for name, size in content["bytes"].items()},
        "links_per_memory": content["records"][keys.MEMBER] / count,
        "similar_per_memory": content["similar"] / count,
        "nodes": content["records"][keys.NODE],
    }


def _content(directory: StateDirectory) -> dict[str, Any]:
    """What the graph's tables hold, before compression."""
    sizes: Counter[str] = Counter()
    records: Counter[bytes] = Counter()
    similar = 0
    for partition in directory.partitions():
        for key, value in partition.scan(keys.OWNERS):
            _, table, _ = keys.split(key)
            records[table] += 1
            if table in TABLES:
                sizes[TABLES[table][0]] += len(key) + len(value)
            if table == keys.SIMILAR:
                similar += len(decode_neighbours(value))
    return {"bytes": dict(sizes), "records": records, "similar": similar}


# ---------------------------------------------------------------------- reading


def read(conversations: Sequence[Conversation], links: int) -> dict[str, Any]:
    """The figures, printed."""
    figures = hub(conversations, links)
    print(f"asking around a hub of {links:,} links, median ms")
    for name, value in figures.items():
        print(f"  {name:<22} {value:8.1f}")
    return {"hub": figures}


def canary() -> ControlHistory:
    """Decisions under which the graph is applied."""
    history = ControlHistory()
    history.add(0, Rollout(type="graph.rollout", tenant_id=TENANT, name="default", mode="canary"))
    return history


def hub(conversations: Sequence[Conversation], links: int) -> dict[str, float]:
    """Median milliseconds of expansion, and of the whole query, by hops. All memories of one owner share one topic, a
    hundred share another, and ten share a tag."""
    asked = [question.text for conversation in conversations for question in conversation.questions][:ASKED]
    queries = [_query(f"{hops}-{n}", text, hops) for hops in HOPS for n, text in enumerate(asked)]
    processed = process([*_hub_lines(conversations, links), *queries], Settings(), None, canary())
    check(processed, len(queries))
    figures: dict[str, float] = {}
    for number, hops in enumerate(HOPS):
        answered = processed.responses[number * len(asked) : (number + 1) * len(asked)]
        expand = [response["routing_info"]["stages_ms"]["expand"] for response in answered]
        figures[f"expansion_ms_{hops}_hops"] = statistics.median(expand)
        figures[f"query_ms_{hops}_hops"] = statistics.median(response["processing_time_ms"] for response in answered)
    return figures


def _hub_lines(conversations: Sequence[Conversation], links: int) -> Iterator[bytes]:
    said = [turn.content for conversation in conversations for turn in conversation.turns if turn.content.strip()]
    for n in range(links):
        shared_nodes = {"topics": ["hub", f"topic {n % (links // 100)}"], "tags": [f"tag {n % (links // 10)}"]}
        yield _event("memory", f"m{n}", content=said[n % len(said)], **shared_nodes)


def _event(kind: str, name: str, **fields: Any) -> bytes:
    return orjson.dumps({"type": kind, "id": name, "tenant_id": TENANT, "user_id": "hub", "timestamp": 0} | fields)


def _query(name: str, text: str, hops: int) -> bytes:
    return _event("recall", name, query=text, strategy="hybrid_graph", traversal_depth=hops)


def check(processed: Processed, queries: int) -> None:
    """Figures of a run that refused a line, or answered with less than was asked for, would mean nothing."""
    bad = [r for r in processed.responses if r["status"] != "ok" or r.get("fallback") is not None]
    if processed.rejected or bad or len(processed.responses) != queries:
        raise BrokenRunError(f"{processed.rejected[:1]} {bad[:1]} {len(processed.responses)} of {queries}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="one of the two (default: both)")
    parser.add_argument(
        "--memories", type=int, default=100_000, metavar="N", help="messages written (default: 100,000)"
    )
    parser.add_argument("--quick", action="store_true", help="10,000 messages, 5,000 links")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    conversations = load(shared("data", "locomo_dev.json"))
    figures: dict[str, Any] = {}
    if chosen.part in (None, "write"):
        figures |= _write(conversations, chosen)
    if chosen.part in (None, "read"):
        figures |= read(conversations, 5_000 if chosen.quick else LINKS)
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


def _write(conversations: list[Conversation], chosen: argparse.Namespace) -> dict[str, Any]:
    lines = events(conversations, 10_000 if chosen.quick else chosen.memories, USERS)
    load_embedder("hash").embed([orjson.loads(line)["content"] for line in lines[:5_000]])  # word caches warm
    figures = {
        "edges off": write(lines, Settings(similarity_max_per_memory=0)),
        "edges on": write(lines, Settings()),
    }
    _print(len(lines), figures)
    return figures


def _print(memories: int, figures: dict[str, dict[str, Any]]) -> None:
    print(f"writing {memories:,} messages of {USERS} users")
    for name, found in figures.items():
        print(f"{name}")
        print(f"  messages/s               {found['memories_per_s']:10,.0f}")
        print(f"  bytes on disk a message  {found['disk_bytes_per_memory']:10,.0f}")
        print(f"  links a message          {found['links_per_memory']:10.2f}")
        print(f"  similar_to a message     {found['similar_per_memory']:10.2f}")
        print(f"  nodes                    {found['nodes']:10,}")
        for table, size in found["graph_bytes_per_memory"].items():
            print(f"  bytes of {table:<15} {size:10.1f}")
    ratio = figures["edges on"]["memories_per_s"] / figures["edges off"]["memories_per_s"]
    print(f"rate with edges, of the rate without   {ratio:.2f}")


if __name__ == "__main__":
    main()
