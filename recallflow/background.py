"""What goes on beside the dataflow, for as long as something else lasts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
