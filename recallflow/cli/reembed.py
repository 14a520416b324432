"""`recallflow reembed`: the vectors of another embedding model, before an engine with it begins."""

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


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "reembed",
        help="vectors of another embedding model, for an engine that is to begin with it",
        description="Reads the memory topic, says how many texts stand without a vector of the model and what those "
        "cost, and has them computed by the embedding service: each goes to the memory topic as memory.embedding. "
        "Interrupted, it goes on where it stopped. Engines with other models pass the vectors over.",
        examples=("recallflow reembed --embedder openai --dry-run --bootstrap-servers localhost:9092",),
    )
    parser.add_argument("--price-per-million", type=float, metavar="PRICE", help="of a million tokens, to say the cost")
    parser.add_argument("--dry-run", action="store_true", help="say what it costs, and no more")
    parser.add_argument("--yes", action="store_true", help="do not ask before anything is computed")
    add_kafka(parser, *MODEL, *ENCRYPTION, "topics.memory", "topics.control", "engine.cache_bytes")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from recallflow.connectors.embedders import REMOTE
    from recallflow.flows.models import open_embedder
    from recallflow.flows.reembed import MemoryTopicReplay

    chosen, origins = config_and_origins(options)
    name = chosen.engine.embedder
    if name != REMOTE and "engine.embedder" not in origins:
        raise UsageError("give --embedder openai, and --embedding-model: the model to have vectors of")
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
    from recallflow.connectors.token_counters import load_tiktoken
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
        print(f"{cost.texts - refused:,} vectors are in {chosen.topics.memory}; {refused:,} texts were not taken")
    print(
        f"now: recallflow run --embedder openai --embedding-model {service.name} "
        f"--embedding-dimension {service.dimension} --deployment NEW_NAME --state-dir NEW_DIR --create"
    )
    return 0


def _cost_line(cost: "Cost", model: str, counter: "TokenCounter", price: float | None) -> str:
    """What is to be computed, and what it costs."""
    found = (
        f"{cost.texts:,} texts stand without a vector of {model}: {cost.characters:,} characters, "
        f"about {cost.tokens:,} tokens ({counter.counted_by})"
    )
    if price is not None:
        found += f", {cost.tokens / 1_000_000 * price:,.4f} at {price:g} per million"
    if cost.refused:
        found += f"\n{cost.refused:,} events bring vectors of another size: an engine with {model} will refuse them"
    if cost.astray:
        found += (
            f"\n{cost.astray:,} records lie in other partitions than their users': they count once an engine "
            "(recallflow run) has sent them there"
        )
    return found


def _agreed() -> bool:
    """Whether a person says yes. Raises UsageError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked whether to go on: give --yes, or --dry-run")
    print("compute them? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _compute(chosen: "Config", service: "EmbeddingService", standing: "MemoryTopicReplay", texts: int) -> int:
    """Has all computed and sent; returns how many texts the service did not take."""
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
