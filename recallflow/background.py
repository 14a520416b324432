"""Work beside the dataflow, and the pauses between its attempts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def exponential(first_s: float, most_s: float) -> Iterator[float]:
    """Yield pauses between attempts: each twice as long as the one before it, up to `most_s`."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(most_s, 2 * pause_s)


@contextmanager
def beside(work: Callable[[], None], name: str, stopping: threading.Event) -> Iterator[None]:
    """Work on a thread of its own, which ends soon once `stopping` is set, as it is at the end."""
    thread = threading.Thread(target=work, daemon=True, name=f"recallflow-{name}")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
