"""What the tests share: hypothesis' profiles, makers of events and index entries, and the dataflow as a function."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import settings

from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings
from recallflow.state.rows import Entry

# A slow machine is no defect, so there is no deadline. CI tries the same examples every time: a red build is then the
# change's doing; who runs the tests by hand gets new ones with each run.
settings.register_profile("dev", deadline=None, max_examples=60)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

_ENTRY: dict[str, Any] = {
    "version": 0,
    "created_ms": 0,
    "episode": -1,
    "flags": 0,
    "author": None,
    "author_stems": "",
    "stems": "",
    "kind": "message",
    "layer": "long_term",
    "role": None,
    "session_id": None,
    "project_id": None,
    "category": None,
    "tags": [],
    "importance": 0.5,
    "confidence": 1.0,
    "valid_from_ms": None,
    "valid_to_ms": None,
    "expires_ms": None,
}


@pytest.fixture(scope="session")
def make_entry() -> Callable[..., Entry]:
    """An index entry of which only the fields a test is about need to be named."""

    def make(seq: int, **fields: Any) -> Entry:
        return Entry(**_ENTRY | {"seq": seq, "id": f"m{seq}"} | fields)

    return make


@pytest.fixture(scope="session")
def make_event() -> Callable[..., dict[str, Any]]:
    """An event of Ann's at acme; every event has a timestamp, so that no test depends on the clock."""

    def make(event_type: str, at_ms: int = 0, /, **fields: Any) -> dict[str, Any]:
        return {"type": event_type, "tenant_id": "acme", "user_id": "ann", "timestamp": at_ms} | fields

    return make


@pytest.fixture(scope="session")
def run_flow() -> Callable[..., Processed]:
    """Runs events through the whole dataflow. One state partition unless a test asks for more: each costs 12 ms."""

    def run(
        events: Iterable[dict[str, Any]], state_dir: Path | None = None, partitions: int = 1, **chosen: Any
    ) -> Processed:
        return process([orjson.dumps(event) for event in events], Settings(partitions=partitions, **chosen), state_dir)

    return run
