"""State directories, and one partition by itself."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recallflow.state.database import shared_options
from recallflow.state.encryption import UNENCRYPTED, AtRest, Keyring
from recallflow.state.partition import Partition
from tests.unit.operators.harness import make_event, run_flow
from tests.unit.state.member import KEYRING, SEALED

HOUR_MS = 3_600_000


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Two users in two state partitions: messages, an update, a forgotten memory, an ended episode."""
    events = [
        make_event("message", n * HOUR_MS, id=f"{user}{n}", user_id=user, content=f"walnut {n}", session_id="s")
        for user, n in itertools.product(("ann", "bob", "cy", "dee"), range(6))
    ]
    events += [
        make_event("memory.update", id="change", memory_id="ann2", content="pecan"),
        make_event("memory.forget", memory_id="ann3"), make_event("episode.end", 5 * HOUR_MS, session_id="s"),
        make_event("memory", id="fact", content="likes ferries", receipt=True),
    ]  # fmt: skip
    run_flow(events, tmp_path / "s", partitions=2)
    return tmp_path / "s"


@pytest.fixture(params=[UNENCRYPTED, SEALED], ids=["bare", "sealed"])
def at_rest(request: pytest.FixtureRequest) -> AtRest:
    found: AtRest = request.param
    return found


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Partition]]:
    """Return a function that opens the partition `p000`, and closes it first where it is open."""
    partitions: list[Partition] = []

    def opened(keyring: Keyring = KEYRING) -> Partition:
        if partitions:
            partitions.pop().close()
        partitions.append(Partition(tmp_path / "p000", 0, keyring, shared_options()))
        return partitions[-1]

    yield opened
    partitions.pop().close()
