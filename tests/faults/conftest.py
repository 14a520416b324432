"""What a scenario has: topics of its own, a producer, a reader, and engines that end with it."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from benchmarks.torture.engine import SHORT_SESSION, Engine
from benchmarks.torture.log import Log
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics

QUICK = ("--epoch-ms", "100", *SHORT_SESSION)


@pytest.fixture
def bare(broker: Cluster) -> Topics:
    """Names of topics that do not exist yet."""
    return Topics(broker)


@pytest.fixture
def topics(bare: Topics) -> Topics:
    """Two partitions of each."""
    bare.make()
    return bare


@pytest.fixture
def log(topics: Topics) -> Log:
    return Log(topics)


@pytest.fixture
def reader(topics: Topics) -> Iterator[Reader]:
    with closing(Reader(topics)) as reading:
        yield reading


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Engines that are killed at the end of the scenario, paused or not."""
    with contextlib.ExitStack() as stack:

        def make(topics: Topics, *options: str, name: str = "engine") -> Engine:
            return stack.enter_context(Engine(topics, tmp_path, *QUICK, *options, name=name))

        yield make


@pytest.fixture
def engine(make_engine: Callable[..., Engine], topics: Topics, reader: Reader) -> Engine:
    """One that was not started yet. Once it has ended, the reader waits for nothing more."""
    made: Engine = make_engine(topics)
    reader.alive = made.running
    return made
