"""What short and long messages cost with each embedder, beside the model's bare run over the same texts.

    python -m benchmarks.embedders [--quick]

By the clock on the wall, as threads that wait for each other cost just that; flow and model in turns, the best of some
rounds, in one thread but for the model's own. Short messages are LoCoMo's; a long one is made of them, one after the
other, up to a number of words.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from threadpoolctl import threadpool_limits

from benchmarks.engine import events, ingest
from benchmarks.locomo import load, shared
from recallflow.connectors.embedders import load_embedder
from recallflow.embedder import Embedder
from recallflow.flows.gc_policy import ONE_THREAD
from recallflow.flows.settings import Settings

ROUNDS = 3
WORDS = (0, 100, 400, 1_600)  # of a message; 0: as it was said
MODELS: dict[str, Path | None] = {
    "hash": None,
    "static": shared("models", "static-minilm-256"),
    "minilm": shared("models", "all-MiniLM-L6-v2"),
}
MESSAGES = {"hash": 2_000, "static": 2_000, "minilm": 500}


class Cost(NamedTuple):
    """Milliseconds of a message, and of the model's bare run over its text; words of a message."""

    flow_ms: float
    model_ms: float
    words: float


def lengthened(lines: list[bytes], words: int) -> Iterator[bytes]:
    """Messages whose texts go on with those of the next ones, up to a number of words."""
    said = [orjson.loads(line) for line in lines]
    for number, message in enumerate(said):
        text = message["content"].split()
        at = number
        while len(text) < words:
            at += 1
            text += said[at % len(said)]["content"].split()
        yield orjson.dumps(message | {"content": " ".join(text[:words] if words else text)})


def measure(lines: list[bytes], settings: Settings, bare: Callable[[str], object]) -> Cost:
    texts = [orjson.loads(line)["content"] for line in lines]
    flow_ms, model_ms = [], []
    for _ in range(ROUNDS):
        flow_ms.append(1_000 / ingest(lines, settings).per_s)
        with threadpool_limits(ONE_THREAD):
            started = time.perf_counter()
            for text in texts:
                bare(text)
            model_ms.append((time.perf_counter() - started) / len(texts) * 1_000)
    return Cost(min(flow_ms), min(model_ms), sum(len(text.split()) for text in texts) / len(texts))


def bare_run(embedder: Embedder, path: Path | None) -> Callable[[str], object]:
    """The model alone, without what we make of its output."""
    if embedder.kind == "contextual":
        from fastembed import TextEmbedding

        model: Any = TextEmbedding("sentence-transformers/all-MiniLM-L6-v2", specific_model_path=str(path)).model
        return lambda text: model.onnx_embed([text])
    return lambda text: embedder.embed([text])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages")
    quick = parser.parse_args().quick
    conversations = load(shared("data", "locomo_dev.json"))
    print(f"{'embedder':10}{'words':>7}{'ms':>9}{'model ms':>10}{'ratio':>7}{'ms/100 words':>14}")
    for name, path in MODELS.items():
        bare = bare_run(load_embedder(name, path), path)
        for words in WORDS:
            count = max(MESSAGES[name] // (1 + words // 100), 10) // (5 if quick else 1)
            lines = [*lengthened(events(conversations, count, users=1), words)]
            cost = measure(lines, Settings(embedder=name, model_path=path), bare)
            ratio, by_words = cost.flow_ms / cost.model_ms, cost.flow_ms / cost.words * 100
            print(f"{name:10}{cost.words:7.0f}{cost.flow_ms:9.2f}{cost.model_ms:10.2f}{ratio:7.2f}{by_words:14.2f}")


if __name__ == "__main__":
    main()
