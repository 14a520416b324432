"""What a state has to be equal to: an engine that nothing happened to, on the same inputs."""

from contextlib import closing
from pathlib import Path

from benchmarks.torture.engine import Engine
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import OUTPUTS, Topics

SETTLE_S = 300.0
BECOME = ("receipt", "dead-letter")  # what memory events do


def undisturbed(topics: Topics, folder: Path, told: int, *options: str) -> Engine:
    """A stopped engine of a deployment of its own, in a new directory, that has taken in all of a memory topic. Its
    outputs went to topics of its own. `told`: how many receipts and dead letters the memory events give."""
    own = Topics(topics.cluster)
    for kind in OUTPUTS:
        own.make_one(kind, len(topics.bounds(kind)))
    words = [word for kind in OUTPUTS for word in (f"--{kind}-topic", own.of(kind))]
    name = ("--deployment", f"undisturbed-{own.suffix}")
    engine = Engine(topics, folder, *options, *name, *words, name="undisturbed")
    with engine, closing(Reader(own, BECOME)) as reader:
        engine.up()
        reader.until(lambda: len(reader.seen) >= told, SETTLE_S)
        engine.stop()
    return engine
