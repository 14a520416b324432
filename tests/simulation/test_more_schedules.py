"""More of the schedules of `test_simulation.py`, in a module of its own, as a worker runs whole modules."""

import pytest

from tests.groups import share
from tests.simulation.test_simulation import explore, simulating

__all__ = ["simulating"]

BLOCKS = 12
FIRST = 10_000

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("block", range(BLOCKS))
def test_schedule_of_faults_keeps_invariants(block: int) -> None:
    count = share(15) // BLOCKS
    explore(range(FIRST + block * count, FIRST + (block + 1) * count))
