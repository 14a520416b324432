"""Engines on state directories of their own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from recallflow.embedder import Embedder
from recallflow.errors import DecryptionFailed
from recallflow.operators import large
from recallflow.operators.answers import parked_queries
from recallflow.operators.answers.models import Models
from recallflow.operators.recall import moment
from recallflow.state import keys
from recallflow.state.encryption import Unsealed
from tests.unit.operators.harness import HASHING, OPEN, Harness
from tests.unit.operators.models import Clock

OpenHarness = Callable[..., Harness]


@pytest.fixture(autouse=True)
def stop_harnesses() -> Iterator[None]:
    """Stop the harnesses that a test leaves open."""
    before = {*OPEN}
    yield
    for harness in {*OPEN} - before:
        harness.stop()


@pytest.fixture
def open_harness(tmp_path: Path) -> Iterator[OpenHarness]:
    """Open a harness on a folder of its own. It is stopped at the end, and `models` are closed."""
    numbers = count()
    with ExitStack() as stack:

        def opened(embedder: Embedder = HASHING, *, models: Models | None = None, **chosen: Any) -> Harness:
            if models is not None:
                stack.enter_context(models)
            harness = Harness(tmp_path / f"state{next(numbers)}", embedder, models=models, **chosen)
            stack.callback(harness.stop)
            return harness

        yield opened


@pytest.fixture
def harness(open_harness: OpenHarness) -> Harness:
    return open_harness()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply large events in steps of a few memories and records."""
    for name, value in (("READ_MAX", 4), ("STEP_WEIGHT", 3), ("RELEASED_MAX", 2)):
        monkeypatch.setattr(large, name, value)


@pytest.fixture
def every_owner_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer smaller questions and questions about the past in steps, for owners of any size."""
    for module in (moment, parked_queries):
        monkeypatch.setattr(module, "AT_ONCE", 1)


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes, str], None]:
    """Make the records of a table that hold a text impossible to decrypt."""
    open_value = Unsealed.open

    def lose(table: bytes, text: str) -> None:
        def failing(self: Unsealed, key: bytes, value: bytes) -> bytes:
            if key[:1] == keys.OWNERS and keys.split(key)[1] == table and text.encode() in value:
                raise DecryptionFailed("no key opens it")
            return open_value(self, key, value)

        monkeypatch.setattr(Unsealed, "open", failing)

    return lose
