"""`recallflow reembed`: vectors of another embedding model, before an engine with it starts."""

import argparse
import sys
from typing import TYPE_CHECKING, cast

from recallflow.cli.options import ENCRYPTION, MODEL, add_kafka, config_and_origins
from recallflow.errors import UsageError

if TYPE_CHECKING:
    from tqdm import tqdm

    from recallflow.embedder import TokenCounter
    from recallflow.flows.config import Config
    from recallflow.flows.reembed import Cost, MemoryTopicReplay
    from recallflow.llm import EmbeddingService, RemoteEmbedder

_LOCAL = """\
{name} embeds in the engine's own process: there is nothing to compute beforehand. A new deployment reads the log into
new state directories, and embeds as it reads:
    recallflow run --embedder {name} --deployment NEW_NAME --state-dir NEW_DIR --create
Files that were replayed without Kafka are replayed once more, into a new state directory:
    recallflow replay --embedded --embedder {name} --state-dir NEW_DIR --create FILE"""


def add_reembed(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "reembed",
        help="compute the vectors of another embedding model",
        description="Reads the memory topic, prints the number of texts without a vector of the model and the cost, "
        "and has the embedding service compute them. Each vector goes to the memory topic as a memory.embedding "
        "event. An interrupted run can be continued. Engines with other models skip the vectors.",
        examples=("recallflow reembed --embedder openai --dry-run --bootstrap-servers localhost:9092",),
    )
    parser.add_argument(
        "--price-per-million", type=float, metavar="PRICE", help="price of a million tokens, to print the cost"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the cost only")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    add_kafka(parser, *MODEL, *ENCRYPTION, "topics.memory", "topics.control", "engine.cache_bytes")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from recallflow.connectors.embedders import REMOTE
    from recallflow.flows.models import open_embedder
    from recallflow.flows.reembed import MemoryTopicReplay

    chosen, origins = config_and_origins(options)
    name = chosen.engine.embedder
    if name != REMOTE and "engine.embedder" not in origins:
        raise UsageError("give --embedder openai, and --embedding-model with the name of the new model")
    if name != REMOTE:
        print(_LOCAL.format(name=name))
        return 0
    with open_embedder(chosen.engine, chosen.embedding, "bulk") as embedder, _bar("reading", " records") as reading:

        def expect(records: int) -> None:
            reading.total = records

        with MemoryTopicReplay.read(chosen, embedder, expect, reading.update) as standing:
            reading.close()
            return _reembed(options, chosen, cast("RemoteEmbedder", embedder).service, standing)


def _reembed(
    options: argparse.Namespace, chosen: "Config", service: "EmbeddingService", standing: "MemoryTopicReplay"
) -> int:
    from recallflow.connectors.model_embedders import load_tiktoken
    from recallflow.operators.recall.budget import Estimate

    counter = load_tiktoken() or Estimate()
    cost = standing.cost(counter)
    print(_cost_line(cost, service.name, counter, options.price_per_million))
    if options.dry_run:
        return 0
    if cost.texts:
        if not options.yes and not _agreed():
            print("nothing was computed")
            return 1
        refused = _compute(chosen, service, standing, cost.texts)
        print(f"{cost.texts - refused:,} vectors are in {chosen.topics.memory}; {refused:,} texts were refused")
    print(
        f"now: recallflow run --embedder openai --embedding-model {service.name} "
        f"--embedding-dimension {service.dimension} --deployment NEW_NAME --state-dir NEW_DIR --create"
    )
    return 0


def _cost_line(cost: "Cost", model: str, counter: "TokenCounter", price: float | None) -> str:
    """Return the amount of the computation and its cost."""
    found = (
        f"{cost.texts:,} texts have no vector of {model}: {cost.characters:,} characters, "
        f"about {cost.tokens:,} tokens ({counter.counted_by})"
    )
    if price is not None:
        found += f", {cost.tokens / 1_000_000 * price:,.4f} at {price:g} per million"
    if cost.refused:
        found += f"\n{cost.refused:,} events have vectors of another dimension: an engine with {model} will refuse them"
    if cost.astray:
        found += (
            f"\n{cost.astray:,} records are misrouted: they are not counted until an engine "
            "(recallflow run) has sent them to the partitions of their owners"
        )
    return found


def _agreed() -> bool:
    """Return whether the user agrees. Raise UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask for confirmation; give --yes, or --dry-run")
    print("compute them? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _compute(chosen: "Config", service: "EmbeddingService", standing: "MemoryTopicReplay", texts: int) -> int:
    """Compute and send all vectors; return the number of texts that the service refused."""
    from recallflow.connectors.kafka.sender import Publisher
    from recallflow.flows.reembed import Reembedding
    from recallflow.operators.async_call import Completions, Runtime

    publisher = Publisher(chosen.kafka, chosen.topics.memory, lambda _: None, chosen.auth.credentials)
    with _bar("embedding", " texts", texts) as bar, Runtime(Completions()) as runtime:
        reembedding = Reembedding(service, runtime, standing.directory.has_vectors())
        reembedding.run(standing.missing(), publisher, bar.update)
    return reembedding.refused


def _bar(what: str, unit: str, total: int | None = None) -> "tqdm[None]":
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=unit, file=sys.stderr, disable=None)  # shown on terminals only
