"""What the memory graph costs a write, in time and bytes on disk; and what it costs and brings a query.

    python -m benchmarks.graph [--part write|read|worth] [--memories N] [--embedder hash|meaning|static|minilm]
        [--kinds locomo,assistant,…] [--quick] [--json FILE]

Writing: the same messages go through the flow twice, with `similar_to` edges and without. Rates count from the first
record taken in to the last one through; bytes are those of the closed databases. Reading: see `graph_read.py`; what it
brings: `graph_worth.py`.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from benchmarks import graph_read, graph_worth
from benchmarks.conversation_events import EMBEDDERS, model_path
from benchmarks.engine import events
from benchmarks.kinds import KINDS
from benchmarks.locomo import Conversation, load, shared
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.lines import IteratorFeed
from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.settings import Settings
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.graph_check import TABLES
from recallflow.state.graph_codec import decode_neighbours

USERS = 20
PARTS = ("write", "read", "worth")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="one of the three (default: all)")
    parser.add_argument(
        "--memories", type=int, default=100_000, metavar="N", help="messages written (default: 100,000)"
    )
    parser.add_argument("--embedder", choices=EMBEDDERS, default="hash", help="of what is asked of conversations")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of chat, of {','.join(KINDS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="10,000 messages, and one kind of chat")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    conversations = load(shared("data", "locomo_dev.json"))
    figures: dict[str, Any] = {}
    if chosen.part in (None, "write"):
        figures |= _write(conversations, chosen)
    if chosen.part in (None, "read"):
        figures |= graph_read.read(conversations, 5_000 if chosen.quick else graph_read.LINKS)
    if chosen.part in (None, "worth"):
        model = model_path(chosen.embedder, None)
        settings = Settings(partitions=1, embedder=chosen.embedder, model_path=model)
        figures |= graph_worth.worth(chosen.kinds.split(",")[: 1 if chosen.quick else None], settings)
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
