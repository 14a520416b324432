"""`recallflow replay`: conversation logs into a state directory."""

import argparse
import hashlib
import sys
from collections import Counter
from pathlib import Path

import orjson
from tqdm import tqdm

from recallflow.cli.options import ENGINE, add_kafka, add_owner, config_and_origins
from recallflow.cli.publish import publish
from recallflow.cli.rejects import Rejects
from recallflow.connectors.chat_logs import LogFormat, Scope, count_log, detect_format, read_log
from recallflow.connectors.lines import Delivery, IteratorFeed
from recallflow.embedder import Embedder
from recallflow.errors import UsageError
from recallflow.flows.embedded import Embedded, rejection
from recallflow.flows.embedding import open_embedder
from recallflow.flows.encryption import open_at_rest
from recallflow.flows.lines import run_lines
from recallflow.operators.decode import decode
from recallflow.operators.events import Refused, Write
from recallflow.operators.prepare import check_dimension
from recallflow.outputs import Answer, DeadLetter, Receipted
from recallflow.records import Position, Record


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "replay",
        help="conversation logs to Kafka, or into a state directory",
        description="Replays conversation logs: JSON lines of events, OpenAI chat messages or LoCoMo. An interrupted "
        "replay goes on where it stopped; refused records go to FILE.rejects.jsonl with their reasons.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--embedded", action="store_true", help="into --state-dir, without Kafka")
    parser.add_argument("--format", type=LogFormat, choices=list(LogFormat), help="default: detected from the content")
    parser.add_argument("--rejects", type=Path, metavar="FILE", help="default: the log's name with .rejects.jsonl")
    parser.add_argument("--dry-run", action="store_true", help="read and check only; nothing is stored")
    add_kafka(parser, *ENGINE, "run.workers", "topics.memory")
    add_owner(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    chosen, origins = config_and_origins(options)
    scope = Scope(options.tenant, options.user, options.environment)
    formats = {path: options.format or detect_format(path) for path in options.files}
    if options.dry_run:
        with open_embedder(chosen.engine, chosen.embedding) as embedder:
            return max(_check(path, scope, log_format, embedder) for path, log_format in formats.items())
    targets = {path: options.rejects or path.with_name(path.name + ".rejects.jsonl") for path in formats}
    opened = {target: Rejects(target) for target in targets.values()}
    rejects = {path: opened[target] for path, target in targets.items()}
    if not options.embedded and "kafka.bootstrap_servers" in origins:
        for path, log_format in formats.items():
            where = chosen.kafka, chosen.topics.memory, path, scope, log_format, _topic(path)
            print(publish(*where, rejects[path].note, chosen.auth.credentials))
        return 0
    if not options.embedded or chosen.state_dir is None:
        raise UsageError("give --embedded --state-dir DIR, or --bootstrap-servers HOST:PORT")
    at_rest = open_at_rest(chosen.encryption)
    with Embedded.open(chosen.engine, chosen.state_dir, models=chosen.models, at_rest=at_rest) as embedded:
        for path, log_format in formats.items():
            _replay(embedded, path, scope, log_format, chosen.run.workers, rejects[path])
    return 0


def _replay(
    embedded: Embedded, path: Path, scope: Scope, log_format: LogFormat, workers: int, rejects: Rejects
) -> None:
    counts: Counter[str] = Counter()
    with tqdm(total=count_log(path, scope, log_format), desc=path.name, unit=" events", file=sys.stderr) as bar:

        def open_feed(offset: int) -> IteratorFeed:
            bar.update(offset)
            counts["before"] = offset
            return IteratorFeed(read_log(path, scope, log_format, skip=offset))

        run_lines(embedded, _topic(path), open_feed, _counter(rejects, counts, bar), rewinds=True, workers=workers)
    summary = f"{path.name}: {counts['events']} events"
    if counts["before"]:
        summary += f", {counts['before']} before were there from an earlier run"
    if counts["rejected"]:
        summary += f"; {counts['rejected']} refused, see {rejects.path}"
    print(summary)


def _counter(rejects: Rejects, counts: "Counter[str]", bar: "tqdm[None]") -> Delivery:
    def deliver(offset: int, outputs: list[Answer | Receipted | DeadLetter]) -> None:
        counts["events"] += 1
        bar.update(1)
        for output in outputs:
            if isinstance(output, DeadLetter):
                counts["rejected"] += 1
                rejects.note(offset + 1, output)

    return deliver


def _check(path: Path, scope: Scope, log_format: LogFormat, embedder: Embedder) -> int:
    """Reads and decodes a log without storing anything; 1 where a record would be refused."""
    events, refused = 0, 0
    topic = _topic(path)
    for events, value in enumerate(read_log(path, scope, log_format), 1):
        item = decode(Record(Position(topic, 0, events - 1), value, 0))
        if isinstance(item, Write):
            item = check_dimension(embedder, item)
        if isinstance(item, Refused):
            refused += 1
            rejected = rejection(events, DeadLetter(item.record, 0, item.error, item.step))
            print(orjson.dumps(rejected).decode(), file=sys.stderr)
    print(f"{path.name}: {log_format}, {events} events, {refused} would be refused")
    return 1 if refused else 0


def _topic(path: Path) -> str:
    """The topic that stands for a file in positions, named after its path and first line: a log that grew is read on
    from its position, and another log under the same name is another topic."""
    with path.open("rb") as file:
        first = file.readline(64 * 1024).rstrip(b"\r\n")
    return "file-" + hashlib.sha256(f"{path.resolve()}\n".encode() + first).hexdigest()[:16]
