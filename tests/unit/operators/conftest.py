"""Engines on state directories of their own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from recallflow.embedder import Embedder
from recallflow.operators.answers.models import Models
from tests.unit.operators.harness import HASHING, OPEN, Harness

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
    """Open a harness on a folder of this test. It is stopped at the end, and `models` are closed."""
    with ExitStack() as stack:

        def opened(
            folder: str = "state", embedder: Embedder = HASHING, *, models: Models | None = None, **chosen: Any
        ) -> Harness:
            if models is not None:
                stack.enter_context(models)
            harness = Harness(tmp_path / folder, embedder, models=models, **chosen)
            stack.callback(harness.stop)
            return harness

        yield opened


@pytest.fixture
def harness(open_harness: OpenHarness) -> Harness:
    return open_harness()
