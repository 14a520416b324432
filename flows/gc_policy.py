"""Process settings while an engine runs: the schedule of garbage collection, the thread count of numeric libraries, and
the size of freed memory that the allocator keeps.

By default, Python scans for cyclic garbage after 700 net allocations. Within a batch, the new objects belong to its
events, which are still alive: repeated scans of them cost 5 µs per message. Between batches, few objects are alive.

Threads of OpenBLAS, OpenMP (FAISS) and onnxruntime wait for each other in busy loops: on two cores, a message took 18
ms with MiniLM; the model itself needs 5 ms.

A query over 100,000 memories allocates arrays of about a megabyte. By default, glibc returns freed memory of that size
to the system, and each page causes a fault when it is allocated again: 800 faults per query, 1 ms in all."""

import contextlib
import gc
import threading
from collections.abc import Iterator

import numpy as np
from threadpoolctl import threadpool_limits

# Interpreter switch interval of threads. With Python's default, a thread waits up to 5 ms each time.
SWITCH_INTERVAL_S = 0.0005
ONE_THREAD = 1  # threads of numeric libraries per worker
# Net allocations that start a collection between batches: about three queries' allocations, scanned in 0.06 ms.
_THRESHOLD_BETWEEN_BATCHES = 5_000
# Net allocations that start a collection within a batch: several times the number of a batch of messages. A collection
# of that size takes less than 10 ms.
_THRESHOLD_WITHIN_BATCH = 100_000
_KEPT_FREE_BYTES = 31 * 1024 * 1024  # below the maximum of M_MMAP_THRESHOLD, 32 MiB (mallopt(3))
_lock = threading.Lock()
_settings = contextlib.ExitStack()
_running_engines = 0


@contextlib.contextmanager
def engine_process() -> Iterator[None]:
    """Apply the process settings. With several engines, the first one applies them, and the last one resets them."""
    global _running_engines
    with _lock:
        if _running_engines == 0:
            _settings.enter_context(garbage_collection_between_batches())
            _settings.enter_context(threadpool_limits(ONE_THREAD))
            # The thresholds of glibc follow the largest freed array: M_TRIM_THRESHOLD becomes twice its size. The array
            # takes no memory, because nothing writes to it.
            np.empty(_KEPT_FREE_BYTES, np.uint8)
        _running_engines += 1
    try:
        threadpool_limits(ONE_THREAD)  # OpenMP limits apply to the calling thread
        yield
    finally:
        with _lock:
            _running_engines -= 1
            if _running_engines == 0:
                _settings.close()


@contextlib.contextmanager
def garbage_collection_between_batches() -> Iterator[None]:
    """Collect garbage in `collect_due_garbage`, seldom elsewhere, and only among objects created later."""
    previous = gc.get_threshold()
    gc.set_threshold(_THRESHOLD_WITHIN_BATCH, *previous[1:])
    gc.freeze()  # loaded modules stay alive, and a scan of them takes 50 ms
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*previous)


def collect_due_garbage() -> None:
    """Run the collection that is due between batches, if any."""
    within_batch, *others = gc.get_threshold()
    gc.set_threshold(_THRESHOLD_BETWEEN_BATCHES, *others)
    _: set[object] = set()  # an allocation triggers the check of the thresholds
    gc.set_threshold(within_batch, *others)
