"""Fixtures of fault scenarios: topics, a producer, a reader, and engines that end with the test."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fleet.engine import SHORT_SESSION, Engine, Topics
from tests.fleet.records import Log, Reader
from tools.broker import Cluster

MakeEngine = Callable[..., Engine]
QUICK = ("--sync-ms", "100", *SHORT_SESSION)


@pytest.fixture
def bare(broker: Cluster) -> Topics:
    return Topics(broker)


@pytest.fixture
def topics(bare: Topics) -> Topics:
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
def make_engine(tmp_path: Path) -> Iterator[MakeEngine]:
    """Return a maker of engines, which are killed at the end of the test, paused or not."""
    with contextlib.ExitStack() as stack:

        def make(topics: Topics, *options: str, name: str = "engine") -> Engine:
            return stack.enter_context(Engine(topics, tmp_path, *QUICK, *options, name=name))

        yield make


@pytest.fixture
def engine(make_engine: MakeEngine, topics: Topics, reader: Reader) -> Engine:
    """Return an engine that is not started yet. The reader stops waiting once it has ended."""
    made = make_engine(topics)
    reader.alive = made.running
    return made
