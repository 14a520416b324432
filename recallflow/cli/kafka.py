"""Commands on Kafka: `recallflow run`, `topics create`, `doctor`, `enrich` and `reembed`."""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text

from recallflow.cli import flags
from recallflow.cli.output import clean, confirmed, console, json_line, note, progress_bar, show
from recallflow.cli.parser import Commands, add_command
from recallflow.errors import SourceError, UsageError
from recallflow.process import background_thread

if TYPE_CHECKING:
    from recallflow.embedder import TokenCounter
    from recallflow.flows.config import Config
    from recallflow.flows.reembed import MemoryTopicReplay, ReembeddingCost
    from recallflow.kafka_options import KafkaOptions
    from recallflow.llm import EmbeddingService, RemoteEmbedder

_log = logging.getLogger(__name__)
RENEWAL_S = 10.0  # interval of checks of the certificate files
LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
_STATUS_STYLES = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}
_NO_REEMBEDDING = """\
{name} embeds in the engine's own process: there is nothing to compute beforehand. A new deployment reads the log into
new state directories, and embeds the texts as it reads them:
    recallflow run --embedder {name} --deployment NEW_NAME --state-dir NEW_DIR --create
Files that were replayed without Kafka are replayed once more, into a new state directory:
    recallflow replay --embedded --embedder {name} --state-dir NEW_DIR --create FILE"""


def run_until_stopped(
    options: argparse.Namespace,
    run: "Callable[[Config], int | None]",
    check: "Callable[[Config], None]" = lambda _: None,
) -> int:
    """Run a flow with the chosen settings; with --print-config, check and print them instead. Return the exit code."""
    from recallflow.flows.config import as_file
    from recallflow.telemetry import export_spans, set_up_logging

    set_up_logging(getattr(options, "run.log_format") or "text")  # errors of the settings are logged as well
    chosen, origins = flags.config_and_origins(options)
    if options.print_config:
        check(chosen)
        print(as_file(chosen, origins, masks=True))
        return 0
    set_up_logging(chosen.run.log_format)
    with export_spans(options.command):
        return run(chosen) or 0


def run_until_renewed(kafka: "KafkaOptions", run: "Callable[[], None]") -> None:
    """Run a flow. Once a renewed certificate is usable, stop the flow as SIGTERM does, and raise SourceError: Kafka's
    clients read their files only once, so the process must start again. An unusable certificate is ignored."""
    files, stopping, renewed = kafka.certificate_files(), threading.Event(), threading.Event()

    def versions() -> list[tuple[int, int]]:
        times = []
        for file in files:
            with suppress(OSError):
                times.append(((status := file.stat()).st_mtime_ns, status.st_ino))
        return times

    def watch() -> None:
        checked = latest = versions()
        while not stopping.wait(RENEWAL_S):
            before, latest = latest, versions()
            if latest == checked or latest != before:  # unchanged, or a renewal is still writing
                continue
            try:
                replace(kafka)  # librdkafka loads and compares them
            except UsageError as error:
                _log.warning("the renewed certificate cannot be used: %s; correct the files", error)
                checked = latest
            else:
                renewed.set()
                os.kill(os.getpid(), signal.SIGTERM)
                return

    with background_thread(watch, "certificates", stopping) if files else nullcontext():
        run()
    if renewed.is_set():
        raise SourceError("the certificate files were renewed: start again, so that Kafka clients read them")


def add_run_topics_enrich(commands: Commands) -> None:
    run = add_command(commands, "run", run_main_flow)
    flags.add_kafka(run, *flags.RUN)
    flags.add_start(run)
    topics = flags.add_actions(commands, "topics", "create topics with suitable settings")
    create = add_command(topics, "create", run_create)
    create.add_argument("--json", action="store_true", help="print one JSON object per topic")
    numbers = (("--partitions", 16, "partitions per topic"), ("--replication", 1, "replication factor"))
    for flag, default, text in numbers:
        create.add_argument(flag, type=flags.whole, default=default, metavar="N", help=f"{text} (default: {default})")
    text = "register the schemas of events and outputs as TOPIC-value, if the registry finds them compatible"
    create.add_argument("--register-schemas", action="store_true", help=text)
    flags.add_kafka(create, *flags.TOPICS, "topics.results", "topics.audit")
    enrich = add_command(commands, "enrich", run_enrich)
    flags.add_kafka(enrich, *flags.ENRICH)
    flags.add_start(enrich)


def run_main_flow(options: argparse.Namespace) -> int:
    """Run the engine on Kafka.
    SIGTERM ends it.
    $ recallflow run --bootstrap-servers localhost:9092 --state-dir engine --create
    $ recallflow run --processes auto --bootstrap-servers localhost:9092 --state-dir engines --create"""
    return run_until_stopped(options, _run, lambda chosen: chosen.engine.check_models())


def _run(chosen: "Config") -> int:
    from recallflow.members import check_single_process, process_count, run_members

    if (count := process_count(chosen)) > 1:
        return run_members(chosen, count)
    from recallflow.flows.kafka import MainKafkaFlow  # a supervisor does not need it

    check_single_process(chosen.named_state_dir())
    run_until_renewed(chosen.kafka, MainKafkaFlow(chosen).run)
    return 0


def run_create(options: argparse.Namespace) -> int:
    """Create missing topics.
    $ recallflow topics create --partitions 8 --bootstrap-servers localhost:9092"""
    chosen = flags.config(options)
    for topic, is_new in create_missing_topics(chosen, options.partitions, options.replication).items():
        show({"topic": topic, "created": is_new}, f"{topic}: {'created' if is_new else 'exists'}", as_json=options.json)
    return _register(chosen, options.json) if options.register_schemas else 0


def create_missing_topics(chosen: "Config", number: int, replicas: int) -> dict[str, bool]:
    """Create the topics of the settings. Return for each topic whether it was created. Raise SourceError."""
    from recallflow.connectors.kafka.admin import KEEPS_ALL, create_topics

    topics = chosen.topics
    partitions = {
        topics.memory: number, topics.queries: number, topics.control: 1, topics.responses: number,
        topics.receipts: number, topics.enrichment: number, topics.results: number, topics.dead_letters: 1,
    }  # fmt: skip
    if topics.audit is not None:
        partitions[topics.audit] = number
    settings = dict.fromkeys(partitions, LOG_APPEND_TIME)
    # Memory events: lost state is rebuilt from this log, so its records must not expire.
    settings[topics.memory] = LOG_APPEND_TIME | {"retention.ms": "-1"}
    # Decisions: a record is authorised by the decisions of its time, however old.
    settings[topics.control] = LOG_APPEND_TIME | KEEPS_ALL
    return create_topics(chosen.kafka, partitions, settings, replicas)


def _register(chosen: "Config", as_json: bool) -> int:
    """Register the schemas of the topics. Return 1 if one is incompatible with its predecessor."""
    from recallflow.schema import registered_schema

    if (registry := chosen.kafka.registry) is None:
        raise UsageError("--register-schemas needs a schema registry: give -X schema.registry.url=URL")
    topics, failed = chosen.topics, False
    schemas = {
        topics.memory: "memory-event", topics.queries: "query-event",
        topics.responses: "response", topics.receipts: "receipt",
    }  # fmt: skip
    for topic, name in schemas.items():
        subject = f"{topic}-value"
        outcome, detail = registry.register(subject, *registered_schema(name, chosen.run.response_format))
        failed |= outcome == "incompatible"
        fields = {"subject": subject, "outcome": outcome, "detail": detail}
        show(fields, f"{subject}: {outcome} ({detail})", as_json=as_json)
    if failed:
        remedy = "keep the registered schemas, or change the compatibility level of the subjects in the registry"
        note(f"incompatible schemas were not registered: {remedy}")
    return 1 if failed else 0


def add_doctor(commands: Commands) -> None:
    parser = add_command(commands, "doctor", run_doctor)
    flags.add_kafka(parser, *flags.RUN)
    parser.add_argument("--json", action="store_true", help="print one JSON object per check")


def run_doctor(options: argparse.Namespace) -> int:
    """Check a deployment, and print remedies.
    Checks brokers, topics, rights, clocks, state, disk, models and auth for `run` with the same settings, and changes
    nothing. Exit code 1 if a check fails.
    $ recallflow doctor --bootstrap-servers localhost:9092 --state-dir engine"""
    from recallflow.flows.doctor import examine
    from recallflow.members import state_directories

    failed = False
    chosen = flags.config(options)
    for finding in examine(chosen, lambda path: state_directories(path, _processes(chosen))):
        failed |= finding.status == "FAIL"
        if options.json:
            json_line(finding._asdict())
        else:
            remedy = f"\n      → {finding.todo}" if finding.todo else ""
            status = f"{finding.status:<5}", _STATUS_STYLES[finding.status]
            text = clean(f" {finding.check}: {finding.what}{remedy}")
            console().print(Text.assemble(status, text), soft_wrap=True)
    return 1 if failed else 0


def _processes(chosen: "Config") -> int:
    """Return the number of members that `run` would start. Unreachable brokers are reported as another finding."""
    from recallflow.members import process_count, usable_cpus

    try:
        return process_count(chosen)
    except SourceError:
        return usable_cpus()


def run_enrich(options: argparse.Namespace) -> int:
    """Run the enrichment flow, which calls models for memories.
    SIGTERM ends it.
    $ recallflow enrich --bootstrap-servers localhost:9092 --state-dir enrichment --create --llm gpt-4o-mini"""
    from recallflow.flows.enrich import EnrichFlow

    return run_until_stopped(options, lambda chosen: run_until_renewed(chosen.kafka, EnrichFlow(chosen).run))


def add_reembed(commands: Commands) -> None:
    parser = add_command(commands, "reembed", run_reembed)
    text = "price of a million tokens, to print the cost"
    parser.add_argument("--price-per-million", type=float, metavar="PRICE", help=text)
    parser.add_argument("--dry-run", action="store_true", help="print the cost only")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    flags.add_kafka(parser, *flags.REEMBED)


def run_reembed(options: argparse.Namespace) -> int:
    """Compute the vectors of another embedding model.
    Reads the memory topic, prints the number of texts without a vector of the model and the cost, and has the embedding
    service compute them. Each vector goes to the memory topic as a memory.embedding event. An interrupted run can be
    continued. Engines with other models skip the vectors.
    $ recallflow reembed --embedder openai --dry-run --bootstrap-servers localhost:9092"""
    from recallflow.connectors.embedders import REMOTE
    from recallflow.flows.models import open_embedder
    from recallflow.flows.reembed import MemoryTopicReplay

    chosen, origins = flags.config_and_origins(options)
    name = chosen.engine.embedder
    if name != REMOTE:
        if "engine.embedder" not in origins:
            raise UsageError("give --embedder openai, and --embedding-model with the name of the new model")
        print(_NO_REEMBEDDING.format(name=name))
        return 0
    with open_embedder(chosen.engine, chosen.embedding, "bulk") as embedder, progress_bar() as bar:
        task = bar.add_task("reading records")

        def set_total(records: int) -> None:
            bar.update(task, total=records)

        with MemoryTopicReplay.read(chosen, embedder, set_total, partial(bar.advance, task)) as replay:
            bar.stop()
            return _reembed(options, chosen, cast("RemoteEmbedder", embedder).service, replay)


def _reembed(
    options: argparse.Namespace, chosen: "Config", service: "EmbeddingService", replay: "MemoryTopicReplay"
) -> int:
    from recallflow.connectors.model_embedders import load_tiktoken
    from recallflow.embedder import Estimate

    counter = load_tiktoken() or Estimate()
    cost = replay.cost(counter)
    print(_cost_line(cost, service.name, counter, options.price_per_million))
    if options.dry_run:
        return 0
    if cost.texts:
        if not options.yes and not sys.stdin.isatty():
            raise UsageError("no terminal to ask for confirmation; give --yes, or --dry-run")
        if not options.yes and not confirmed("compute them?"):
            print("nothing was computed")
            return 1
        refused = _compute(chosen, service, replay, cost.texts)
        print(f"{cost.texts - refused:,} vectors are in {chosen.topics.memory}; {refused:,} texts were refused")
    model = f"--embedding-model {service.name} --embedding-dimension {service.dimension}"
    print(f"now: recallflow run --embedder openai {model} --deployment NEW_NAME --state-dir NEW_DIR --create")
    return 0


def _cost_line(cost: "ReembeddingCost", model: str, counter: "TokenCounter", price: float | None) -> str:
    amount = f"{cost.characters:,} characters, about {cost.tokens:,} tokens ({counter.counted_by})"
    text = f"{cost.texts:,} texts have no vector of {model}: {amount}"
    if price is not None:
        text += f", {cost.tokens / 1_000_000 * price:,.4f} at {price:g} per million"
    if cost.refused:
        text += f"\n{cost.refused:,} events have vectors of another dimension: an engine with {model} will refuse them"
    if cost.misrouted:
        condition = "an engine (recallflow run) has sent them to the partitions of their owners"
        text += f"\n{cost.misrouted:,} records are misrouted: they are not counted until {condition}"
    return text


def _compute(chosen: "Config", service: "EmbeddingService", replay: "MemoryTopicReplay", texts: int) -> int:
    """Compute and send all vectors; return the number of texts that the service refused."""
    from recallflow.connectors.kafka.sender import Publisher
    from recallflow.flows.reembed import Reembedding
    from recallflow.operators.async_call import Completions, Runtime

    publisher = Publisher(chosen.kafka, chosen.topics.memory, lambda _: None, chosen.auth.credentials)
    with progress_bar() as bar, Runtime(Completions()) as runtime:
        task = bar.add_task("embedding texts", total=texts)
        reembedding = Reembedding(service, runtime, replay.directory.has_vectors())
        reembedding.run(replay.missing(), publisher, partial(bar.advance, task))
    return reembedding.refused
