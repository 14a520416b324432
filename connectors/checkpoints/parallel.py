"""A few transfers at a time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 4  # each has a piece in memory

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_parallel(work: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
    """The results in order. The first error ends it, once what is under way has ended."""
    with ThreadPoolExecutor(THREADS, "recallflow-checkpoints") as threads:
        under_way = [threads.submit(work, item) for item in items]
        try:
            return [one.result() for one in under_way]
        except BaseException:
            for one in under_way:
                one.cancel()
            raise
