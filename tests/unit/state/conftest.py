"""A state directory with something of everything in it."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recallflow.flows.embedded import Processed

HOUR_MS = 3_600_000


@pytest.fixture
def state_dir(tmp_path: Path, run_flow: Callable[..., Processed], make_event: Callable[..., dict[str, Any]]) -> Path:
    """Two users in two state partitions: messages, an update, a forgotten memory, an ended episode."""
    events = [
        make_event("message", n * HOUR_MS, id=f"{user}{n}", user_id=user, content=f"walnut {n}", session_id="s")
        for user, n in itertools.product(("ann", "bob", "cy", "dee"), range(6))
    ]
    events += [
        make_event("memory.update", id="change", memory_id="ann2", content="pecan"),
        make_event("memory.forget", memory_id="ann3"),
        make_event("episode.end", 5 * HOUR_MS, session_id="s"),
        make_event("memory", id="fact", content="likes ferries", receipt=True),
    ]
    run_flow(events, tmp_path / "s", partitions=2)
    return tmp_path / "s"
