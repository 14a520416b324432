"""Process settings while an engine runs: the schedule of garbage collection, and the thread count of numeric libraries.

Python collects cyclic garbage after 700 net allocations. Within a batch these are the live objects of its events,
scanned repeatedly: this cost 5 µs per message. Between batches few objects are alive.

Threads of OpenBLAS, OpenMP (FAISS) and onnxruntime wait for each other in busy loops: on two cores, a message took 18
ms with MiniLM; the model itself needs 5 ms."""

import contextlib
import gc
import threading
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

# Interpreter switch interval of threads. With Python's default, a thread waits up to 5 ms each time.
SWITCH_S = 0.0005
ONE_THREAD = 1  # threads of numeric libraries per worker
_USUAL = gc.get_threshold()[0]
# Net allocations that start a collection within a batch: several times the number of a batch of messages. A collection
# of that size takes less than 10 ms.
_WITHIN_A_BATCH = 100_000
_entering = threading.Lock()
_within = contextlib.ExitStack()
_engines = 0


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """Apply the process settings of an engine. Nested use is counted, and the last exit restores the original
    settings."""
    global _engines
    with _entering:
        if _engines == 0:
            _within.enter_context(collecting_between_batches())
            _within.enter_context(threadpool_limits(ONE_THREAD))
        _engines += 1
    try:
        threadpool_limits(ONE_THREAD)  # OpenMP limits apply to the calling thread
        yield
    finally:
        with _entering:
            _engines -= 1
            if _engines == 0:
                _within.close()


@contextlib.contextmanager
def collecting_between_batches() -> Iterator[None]:
    """Restrict garbage collection to calls of `collect_due_garbage`, and to objects created later."""
    usual = gc.get_threshold()
    gc.set_threshold(_WITHIN_A_BATCH, *usual[1:])
    gc.freeze()  # loaded modules stay alive, and a scan of them takes 50 ms
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


def collect_due_garbage() -> None:
    """Run the collection that Python's default thresholds would have started by now."""
    within, *others = gc.get_threshold()
    gc.set_threshold(_USUAL, *others)
    _: set[object] = set()  # an allocation triggers the check of the thresholds
    gc.set_threshold(within, *others)
