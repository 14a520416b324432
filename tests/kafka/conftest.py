"""One real broker for the whole session; tests keep apart by the names of their topics."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from benchmarks.broker import Cluster, connect_or_start


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    with connect_or_start() as cluster:
        yield cluster


@pytest.fixture
def topics() -> Callable[[str], str]:
    """The name of a topic of this test's own, the same for the same word: `memory.events` → `memory.events-3f9c…`."""
    suffix = uuid.uuid4().hex[:12]
    return lambda name: f"{name}-{suffix}"
