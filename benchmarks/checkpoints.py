"""How fast a state partition goes to a store of checkpoints and comes back, beside a plain copy of its files.

    python -m benchmarks.checkpoints [--memories N] [--rounds N] [--quick]

A state directory of one partition is filled with messages, and its RocksDB checkpoint is saved in a folder and behind
S3's protocol: moto's server, a single process of Python, which takes its share of the same cores. Each round saves to a
new prefix, grows the partition by a hundredth and saves again, and fetches what it saved; a plain copy of the same
folder, synced, is made in the same round. Medians of all rounds.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import orjson

from recallflow.connectors.checkpoints.generation import CheckpointOrigin
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.files import sync_tree

MB = 1e6
BUCKET = "checkpoints"
MOTO = """
import logging
import sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def fill(state_dir: Path, first: int, count: int) -> None:
    """Store messages of twenty users, of about 30 words each."""
    words = [
        "harbour",
        "lantern",
        "parcel",
        "letter",
        "Porto",
        "Leeds",
        "winter",
        "bakery",
        "violin",
        "ferry",
        "quince",
    ]
    lines = []
    for number in range(first, first + count):
        text = " ".join(f"{words[(number * 7 + at * at) % len(words)]}{number % (at + 3)}" for at in range(30))
        event = {"type": "message", "tenant_id": "acme", "user_id": f"u{number % 20}", "timestamp": number * 1000}
        lines.append(orjson.dumps(event | {"content": text, "id": f"m{number}"}))
    process(lines, Settings(partitions=1), state_dir)


def checkpoint(state_dir: Path, folder: Path) -> None:
    with StateDirectory.existing(state_dir) as directory:
        directory.partition(0).checkpoint(folder)


@contextmanager
def s3() -> Iterator[str]:
    """The URL of a bucket behind a server of its own process, without a prefix's end."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", MOTO], **streams) as server:  # type: ignore[call-overload]
        at = f"127.0.0.1:{server.stdout.readline().strip()}"
        boto3.client("s3", region_name="us-east-1", endpoint_url=f"http://{at}").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}/{{}}?endpoint_override={at}&scheme=http&region=us-east-1"
        server.stdin.close()


def took(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    sync_tree(target)


def one_round(store: CheckpointStore, before: Path, after: Path, scratch: Path) -> dict[str, float]:
    """Seconds and MB of one round."""
    first = about(0)
    found = {"copy_s": took(lambda: copy(before, scratch / "copy"))}
    found["save_s"] = took(lambda: store.save(0, before, first))
    began = time.perf_counter()
    saved = store.save(0, after, about(1))
    found["again_s"], found["again_mb"] = time.perf_counter() - began, saved.sent_bytes / MB
    newest = store.generations(0)[-1]
    found["fetch_s"] = took(lambda: store.fetch(newest, scratch / "fetched"))
    found["mb"] = newest.size / MB
    for name in ("copy", "fetched"):
        shutil.rmtree(scratch / name)
    return found


def about(offset: int) -> CheckpointOrigin:
    return CheckpointOrigin(
        keys.FORMAT_VERSION, 0, 1, "memory.events:0", {"memory.events:0": offset}, "bench", "run", 0, {}
    )


def measure(memories: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians by kind of store."""
    with tempfile.TemporaryDirectory() as made, s3() as bucket:
        folder = Path(made)
        fill(folder / "state", 0, memories)
        checkpoint(folder / "state", folder / "before")
        fill(folder / "state", memories, max(1, memories // 100))
        checkpoint(folder / "state", folder / "after")
        found: dict[str, list[dict[str, float]]] = {"file": [], "s3": []}
        for number in range(rounds):
            for kind, url in (("file", (folder / f"store{number}").as_uri()), ("s3", bucket.format(number))):
                store = CheckpointStore.open(url)
                found[kind].append(one_round(store, folder / "before", folder / "after", folder))
    return {
        kind: {name: statistics.median(one[name] for one in several) for name in several[0]}
        for kind, several in found.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="2,000 memories, one round")
    options = parser.parse_args()
    if options.quick:
        options.memories, options.rounds = 2_000, 1
    for kind, one in measure(options.memories, options.rounds).items():
        mb, plain = one["mb"], one["mb"] / one["copy_s"]
        print(f"{kind}: {mb:.1f} MB of {options.memories} memories; a plain copy {plain:.0f} MB/s")
        for name, what in (("save_s", "saved"), ("fetch_s", "fetched")):
            print(f"  {what}: {mb / one[name]:.0f} MB/s, {mb / one[name] / plain:.2f} of the copy's")
        print(f"  saved again, a hundredth more: {one['again_mb'] * 1000:,.0f} kB travelled in {one['again_s']:.2f} s")
