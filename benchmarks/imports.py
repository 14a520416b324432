"""How fast logs are replayed, in how much memory, and whether kills lose or repeat anything.

    python -m benchmarks.imports [--sizes 10000,100000,1000000] [--embedded 20000]
                                   [--bootstrap-servers HOST:PORT [--kafka 1000000]]

Writes logs of several lengths and layouts, and has each read by `recallflow replay --dry-run`, which decodes every
event: events a second, and the most memory the process held. Then it replays one log into a state directory, and with
--bootstrap-servers one to a topic of its own, each killed (SIGKILL) at random times and run again until it
ends: what is there afterwards is counted.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.topic_reader import TopicReader

USERS, SESSION_MESSAGES = 1_000, 20
WORDS = ("tea", "walnut", "river", "lamp", "paper", "stone", "garden", "letter", "winter", "music", "copper", "window")
RECALLFLOW = str(Path(sys.executable).with_name("recallflow"))


class Ended(NamedTuple):
    """A process that ended: with which code, after how long by the clock and by the processor, and the most memory it
    held."""

    code: int
    seconds: float
    cpu_s: float
    peak_mb: float
    out: str


def messages(count: int) -> Iterator[dict[str, object]]:
    chosen = random.Random(1)
    for n in range(count):
        owner = {"tenant_id": "bench", "user_id": f"u{n // SESSION_MESSAGES % USERS}"}
        text = " ".join(chosen.choices(WORDS, k=12))
        role = "assistant" if n % 2 else "user"
        place = {"id": f"m{n}", "session_id": f"s{n // SESSION_MESSAGES}", "timestamp": 1_700_000_000_000 + n * 1000}
        yield owner | place | {"role": role, "content": f"{n} {text}"}


def lines(path: Path, count: int) -> None:
    """Events without ids of their own: what is taken twice is there twice."""
    with path.open("wb") as file:
        for one in messages(count):
            one.pop("id")
            file.write(orjson.dumps(one | {"type": "message"}) + b"\n")


def document(path: Path, count: int) -> None:
    with path.open("wb") as file:
        for n, one in enumerate(messages(count)):
            file.write((b",\n" if n else b"[\n") + orjson.dumps(one))
        file.write(b"\n]")


def parquet(path: Path, count: int) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    rows = messages(count)
    writer = None
    while group := [row for _, row in zip(range(50_000), rows, strict=False)]:
        table = pa.Table.from_pylist(group)
        writer = writer or ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


LAYOUTS: dict[str, Callable[[Path, int], None]] = {
    "events.jsonl": lines,
    "messages.json": document,
    "messages.parquet": parquet,
}


def ended(arguments: Sequence[object], environment: dict[str, str], kill_after_s: float | None = None) -> Ended:
    """Runs a command of ours, to its end or until it is killed."""
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([RECALLFLOW, *map(str, arguments)], stdout=out, stderr=out, env=environment)
        deadline = None if kill_after_s is None else begun + kill_after_s
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if deadline is not None and time.monotonic() >= deadline:
                process.kill()
                deadline = None
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu_s = usage.ru_utime + usage.ru_stime
        out.seek(0)
        return Ended(process.returncode, time.monotonic() - begun, cpu_s, usage.ru_maxrss / 1024, out.read())


def killed_until_done(
    arguments: Sequence[object], environment: dict[str, str], kills: int, most_s: float
) -> tuple[int, list[Ended]]:
    chosen, runs, done = random.Random(2), [], 0
    while True:
        run = ended(arguments, environment, chosen.uniform(1.0, most_s) if done < kills else None)
        runs.append(run)
        if run.code == 0:
            return done, runs
        if run.code != -9:
            raise SystemExit(run.out[-2000:])
        done += 1


def dry_runs(folder: Path, sizes: Sequence[int], environment: dict[str, str]) -> None:
    print(f"{'log':18} {'events':>9} {'MB':>6} {'events/s':>9} {'per CPU second':>15} {'peak RSS, MB':>13}")
    for name, write in LAYOUTS.items():
        for size in sizes:
            path = folder / f"{size}-{name}"
            write(path, size)
            run = ended(("replay", path, "--dry-run", "--json", "--embedder", "hash"), environment)
            found = json.loads(run.out.splitlines()[-1])
            if (found["events"], found["refused"]) != (size, 0):
                raise SystemExit(run.out[-2000:])
            megabytes = path.stat().st_size / 1e6
            rates = f"{size / run.seconds:>9,.0f} {size / run.cpu_s:>15,.0f}"
            print(f"{name:18} {size:>9,} {megabytes:>6.0f} {rates} {run.peak_mb:>13.0f}", flush=True)
            path.unlink()


def embedded(folder: Path, size: int, environment: dict[str, str]) -> None:
    log, state = folder / "embedded.jsonl", folder / "state"
    lines(log, size)
    where = ("--embedded", "--state-dir", state, "--create", "--embedder", "hash")
    kills, runs = killed_until_done(("replay", log, *where), environment, 3, max(4.0, size / 4000))
    info = json.loads(ended(("state", "info", "--json", "--state-dir", state), environment).out)
    report("embedded", size, info["memories"], kills, runs)


def to_kafka(folder: Path, size: int, servers: str, environment: dict[str, str]) -> None:
    log, topic = folder / "sent.jsonl", f"bench-imports-{os.getpid()}"
    lines(log, size)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result()
    try:
        where = ("--bootstrap-servers", servers, "--memory-topic", topic)
        kills, runs = killed_until_done(("replay", log, *where), environment, 5, max(4.0, size / 40_000))
        ids: set[str] = set()
        records = 0
        with TopicReader(KafkaOptions(servers)) as reader:
            for (name, number), (low, _) in reader.spans([topic]).items():
                for message in reader.read_to_end(name, number, low):
                    records += 1
                    ids.add(orjson.loads(message.value())["id"])
        report(f"Kafka ({records:,} records)", size, len(ids), kills, runs)
    finally:
        admin.delete_topics([topic])[topic].result()


def report(way: str, size: int, there: int, kills: int, runs: Sequence[Ended]) -> None:
    seconds, peak = sum(run.seconds for run in runs), max(run.peak_mb for run in runs)
    cpu_s = sum(run.cpu_s for run in runs)
    says = "each once" if there == size else f"WRONG: {there:,} there"
    print(f"{way}: {size:,} events, {kills} kills, {says}; {size / seconds:,.0f} events/s with starts and kills "
          f"({size / cpu_s:,.0f} per CPU second), "
          f"peak {peak:.0f} MB; {runs[-1].out.splitlines()[-1]}", flush=True)  # fmt: skip
    if there != size:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--embedded", type=int, default=20_000)
    parser.add_argument("--kafka", type=int, default=1_000_000)
    parser.add_argument("--bootstrap-servers")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="imports-") as name:
        folder = Path(name)
        environment = {key: value for key, value in os.environ.items() if key != "KAFKA_BOOTSTRAP_SERVERS"}
        environment["XDG_STATE_HOME"] = name
        dry_runs(folder, sizes, environment)
        if options.bootstrap_servers:
            to_kafka(folder, options.kafka, options.bootstrap_servers, environment)
        embedded(folder, options.embedded, environment)


if __name__ == "__main__":
    main()
