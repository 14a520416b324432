"""Cost of the memory graph: of a write in time and bytes on disk, and of a query.

    python -m benchmarks.graph [--memories N] [--quick] [--json FILE]

Writing: the same messages go through the flow twice, with `similar_to` edges and without. Rates count from the first
record taken in to the last one through; bytes are those of the closed databases. Reading: queries of 1 to 3 hops around
a hub, a topic that all memories of an owner share.
"""

import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from benchmarks.command_line import quick_arguments, write_json
from benchmarks.conversation_events import TENANT, BrokenRunError
from benchmarks.engine import events, ingest
from benchmarks.locomo import Conversation, load, shared
from recallflow.connectors.embedders import load_embedder
from recallflow.control import ControlHistory, Rollout
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.graph_check import TABLES
from recallflow.state.graph_codec import decode_neighbours

USERS = 20
HOPS = (1, 2, 3)
LINKS = 50_000  # of the hub
ASKED = 50  # queries a figure is the median of


def write(lines: list[bytes], settings: Settings) -> dict[str, Any]:
    """Store messages in a new state directory; return the rate, and bytes and records for each message."""
    sizes, records = Counter[str](), Counter[bytes]()
    similar, count = 0, len(lines)
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        rate = ingest(lines, settings, state_dir=state_dir).per_s
        disk = sum(file.stat().st_size for file in state_dir.rglob("*") if file.suffix in (".sst", ".log"))
        with StateDirectory.existing(state_dir) as directory:
            for key, value in chain.from_iterable(one.scan(keys.OWNERS) for one in directory.partitions()):
                table = keys.split(key)[1]
                records[table] += 1
                if table in TABLES:
                    sizes[TABLES[table][0]] += len(key) + len(value)
                if table == keys.SIMILAR:
                    similar += len(decode_neighbours(value))
    return {
        "memories_per_s": rate,
        "disk_bytes_per_memory": disk / count,
        "graph_bytes_per_memory": {name: size / count for name, size in sizes.items()},  # before compression
        "links_per_memory": records[keys.MEMBER] / count,
        "similar_per_memory": similar / count,
        "nodes": records[keys.NODE],
    }


def write_all(lines: list[bytes]) -> dict[str, dict[str, Any]]:
    """Return and print the figures without `similar_to` edges, and with them."""
    load_embedder("hash").embed([orjson.loads(line)["content"] for line in lines[:5_000]])  # word caches warm
    figures = {
        "edges off": write(lines, Settings(similarity_max_per_memory=0)),
        "edges on": write(lines, Settings()),
    }
    print(f"writing {len(lines):,} messages of {USERS} users")
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
    return figures


# ---------------------------------------------------------------------- reading


def read(conversations: Sequence[Conversation], links: int) -> dict[str, float]:
    """Return and print median milliseconds of expansion, and of the whole query, by hops.

    All memories of one owner share one topic, a hundred share another, and ten share a tag.
    """
    canary = ControlHistory()
    canary.add(0, Rollout(type="graph.rollout", tenant_id=TENANT, name="default", mode="canary"))
    asked = [question.text for conversation in conversations for question in conversation.questions][:ASKED]
    queries = [_query(f"{hops}-{n}", text, hops) for hops in HOPS for n, text in enumerate(asked)]
    processed = process([*_hub_lines(conversations, links), *queries], Settings(), None, canary)
    check(processed, len(queries))
    figures: dict[str, float] = {}
    for number, hops in enumerate(HOPS):
        answered = processed.responses[number * len(asked) : (number + 1) * len(asked)]
        expand = [response["routing_info"]["stages_ms"]["expand"] for response in answered]
        figures[f"expansion_ms_{hops}_hops"] = statistics.median(expand)
        figures[f"query_ms_{hops}_hops"] = statistics.median(response["processing_time_ms"] for response in answered)
    print(f"asking around a hub of {links:,} links, median ms")
    for name, value in figures.items():
        print(f"  {name:<22} {value:8.1f}")
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
    parser = quick_arguments(__doc__, "10,000 messages, 5,000 links")
    parser.add_argument("--memories", type=int, default=100_000, metavar="N", help="messages written (100,000)")
    chosen = parser.parse_args()
    conversations = load(shared("data", "locomo_dev.json"))
    figures: dict[str, Any] = write_all(events(conversations, 10_000 if chosen.quick else chosen.memories, USERS))
    figures["hub"] = read(conversations, 5_000 if chosen.quick else LINKS)
    write_json(figures, chosen.json)


if __name__ == "__main__":
    main()
