"""Lines of a file in batches equal those read one by one."""

import io
import random
from itertools import chain

import pytest

from recallflow.connectors.lines import batches_of_lines, bounded_lines

LIMIT = 10


class SlowFile(io.BytesIO):
    """A file of which each read brings a few bytes."""

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(min(7, size or 0))


@pytest.mark.parametrize("seed", range(50))
def test_batched_lines_equal_single_lines(seed: int) -> None:
    data = bytes(random.Random(seed).choices(b"\nabc", weights=[1, 3, 3, 3], k=seed * 3))
    expected = [*bounded_lines(io.BytesIO(data), LIMIT)]
    for file in (io.BytesIO(data), SlowFile(data)):
        assert [*chain.from_iterable(batches_of_lines(file, LIMIT))] == expected
