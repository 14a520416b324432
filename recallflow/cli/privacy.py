"""`recallflow export`: all data of a person, memories, or answers, as a file. Options of `recallflow erase`."""

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from recallflow.cli import flags
from recallflow.cli.output import note
from recallflow.cli.parser import Commands, add_command
from recallflow.errors import RecallflowError, UsageError
from recallflow.private_files import FILE_MODE

FORMATS = ("jsonl", "parquet")
GROUP_ROWS = 20_000  # rows of a row group of Parquet, unless they reach GROUP_BYTES first
GROUP_BYTES = 32 * 1024 * 1024
# Parquet column → type of its values. `json` is an object or a list as text.
MEMORIES: Mapping[str, str] = {
    "type": "text", "id": "text", "memory_id": "text", "tenant_id": "text", "environment": "text", "user_id": "text",
    "project_id": "text", "session_id": "text", "timestamp": "time", "role": "text", "name": "text",
    "content": "text", "summary": "text", "kind": "text", "layer": "text", "category": "text", "tags": "texts",
    "topics": "texts", "entities": "json", "relations": "json", "importance": "number", "confidence": "number",
    "valid_from": "time", "valid_to": "time", "expires_at": "time", "metadata": "json", "derived_from": "json",
    "cleared": "texts",
}  # fmt: skip
ANSWERS: Mapping[str, str] = {
    "topic": "text", "partition": "whole", "offset": "whole", "appended_at": "time", "key": "text",
    "query_id": "text", "status": "text", "processing_time_ms": "number", "response": "json",
}  # fmt: skip


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Yield a file for `path`, which is private, and gets its name once it is complete. None is standard output."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    new = path.with_name(f"{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        new.touch(mode=FILE_MODE)
    except OSError as error:
        raise UsageError(f"--out: cannot write {path}: {error.strerror}") from None
    try:
        with new.open("wb") as file:
            yield file
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)  # an incomplete export of personal data must not remain on disk
        raise


def write(rows: Iterable[dict[str, Any]], columns: Mapping[str, str], form: str, path: Path | None) -> int:
    """Write rows in a format of FORMATS. Return their number."""
    with open_output(path) as file:
        if form == "parquet":
            return _write_parquet(rows, columns, file)
        return sum(file.write(orjson.dumps(row) + b"\n") > 0 for row in rows)


def _write_parquet(rows: Iterable[dict[str, Any]], columns: Mapping[str, str], file: BinaryIO) -> int:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    kinds = {"text": pa.string(), "json": pa.string(), "texts": pa.list_(pa.string()), "number": pa.float64(),
             "whole": pa.int64(), "time": pa.timestamp("ms", "UTC")}  # fmt: skip
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    count = 0
    with ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(rows):
            count += len(group)
            cells = [[_cell(row.get(name), kind) for row in group] for name, kind in columns.items()]
            writer.write_table(pa.table([*map(pa.array, cells, schema.types)], schema=schema))
    return count


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        # Null marks cleared fields, but in a table also missing ones. So a table names the cleared fields.
        if (cleared := [name for name, value in row.items() if value is None]) and "type" in row:
            row = row | {"cleared": cleared}
        group.append(row)
        size += len(orjson.dumps(row))
        if len(group) == GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _cell(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "time":
        return datetime.fromisoformat(value)
    if kind == "json" or (kind == "text" and not isinstance(value, str)):  # records of a topic may be malformed
        return orjson.dumps(value).decode()
    if kind == "number":
        return float(value) if isinstance(value, int | float) else None
    return value


def add_export(commands: Commands) -> None:
    parser = add_command(commands, "export", run_export)
    parser.add_argument("tenant", metavar="TENANT", nargs="?")
    parser.add_argument("user", metavar="USER", nargs="?")
    flags.add_environments(parser)
    content = parser.add_mutually_exclusive_group()
    content.add_argument("--memories", action="store_true", help="export memories only, for a replay elsewhere")
    content.add_argument("--answers", action="store_true", help="export the answers in Kafka's response topic")
    content.add_argument("--vectors", action="store_true", help="include vectors")
    parser.add_argument("--format", choices=FORMATS, help="format (default: by the file's suffix, else jsonl)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to this file, readable by you alone")
    flags.add_kafka(parser, *flags.STATE, "topics.responses")


def run_export(options: argparse.Namespace) -> None:
    """Export all data of a person, or memories, or answers.
    All data are every version of every memory, the graph, usage, episodes, pending work. Exit code 1 for an unknown
    user. With --memories: the memories of all users, of a tenant or of a user, as events for replay. With --answers:
    the response topic. Parquet is for memories and answers.
    $ recallflow export default user --state-dir memory --out user.jsonl
    $ recallflow export --memories --state-dir memory --out memories.parquet
    $ recallflow export --answers --bootstrap-servers localhost:9092 | head -1"""
    chosen, origins = flags.config_and_origins(options)
    is_parquet = options.out is not None and options.out.suffix == ".parquet"
    form = options.format or ("parquet" if is_parquet else "jsonl")
    if options.answers:
        if "kafka.bootstrap_servers" not in origins:
            raise UsageError("--answers needs --bootstrap-servers HOST:PORT: the answers are in Kafka")
        from recallflow.connectors.kafka.topic_reader import read_responses

        topic = chosen.topics.responses
        note(f"{write(read_responses(chosen.kafka, topic), ANSWERS, form, options.out):,} answers of {topic}")
        return
    from recallflow.flows.export import export, memory_events

    if options.memories:
        with flags.open_state(chosen) as directory:
            events = memory_events(directory, options.tenant, options.user, frozenset(options.environments))
            note(f"{write(events, MEMORIES, form, options.out):,} events of memories")
        return
    if options.user is None:
        raise UsageError("give TENANT and USER, or --memories, or --answers")
    if form != "jsonl":
        raise UsageError("--format parquet needs --memories or --answers: other data has records of several types")
    with flags.open_state(chosen) as directory:
        records = export(directory, options.tenant, options.user, options.environments, vectors=options.vectors)
        if (first := next(records, None)) is None:
            raise RecallflowError(f"user {options.user} of tenant {options.tenant} has no data here")
        write(chain([first], records), {}, "jsonl", options.out)


def add_erase(commands: Commands) -> None:
    parser = add_command(commands, "erase", run_erase)
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("user", metavar="USER")
    flags.add_environments(parser)
    parser.add_argument("--timeout-s", type=float, default=60.0, metavar="S", help="seconds to wait (default: 60)")
    text = "also erase the person from this checkpoint; may be repeated"
    flags.add_repeated(parser, "--checkpoint", "checkpoints", "DIR", text, Path)
    parser.add_argument("--compact-kafka", action="store_true", help="write tombstones to compacted topics")
    parser.add_argument("--verify", action="store_true", help="search every file for the person's data afterwards")
    parser.add_argument("--verify-only", action="store_true", help="search only, and erase nothing")
    parser.add_argument("--export", type=Path, metavar="FILE", help="search for the data of this export")
    text = "also search this folder, such as the enrichment flow's; may be repeated"
    flags.add_repeated(parser, "--also", "also", "DIR", text, Path)
    flags.add_kafka(parser, *flags.ENGINE, *flags.TOPICS, "topics.results", "topics.replies")


def run_erase(options: argparse.Namespace) -> int:
    """Erase a person, and report remaining data.
    Sends user.erase to Kafka, waits until the engine has applied it, and reports the remaining records of each topic
    with their expiry. With --state-dir of a directory without Kafka, the erasure is applied there. Exit code 1 if data
    was not erased, or was found.
    $ recallflow erase default user --state-dir memory --verify
    $ recallflow erase demo team-atlas --bootstrap-servers localhost:9092"""
    from recallflow.cli.erase_steps import EraseCommand

    return EraseCommand(options).run()
