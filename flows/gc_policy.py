"""Changes of the process while an engine runs: times of garbage collection, and threads of arithmetic.

Python collects cyclic garbage whenever 700 more objects were made than freed. Within a batch these are the objects of
its events, all alive and scanned again and again: a message cost 5 µs more. Between two batches hardly any is left.

Threads of OpenBLAS, of OpenMP (FAISS) and of onnxruntime wait for each other busily: with two cores, a message took
18 ms with MiniLM, of which the model needs 5.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

# Threads share the interpreter: at Python's default one waits up to 5 ms for its turn, each time.
SWITCH_S = 0.0005
ONE_THREAD = 1  # for each worker's arithmetic
_USUAL = gc.get_threshold()[0]
# Objects made and still there, several times those of a batch of messages. More than that is looked through in the
# middle of one, before it takes longer than 10 ms.
_WITHIN_A_BATCH = 100_000
_entering = threading.Lock()
_within = contextlib.ExitStack()
_engines = 0


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """The process as an engine wants it. The last of several that run at the same time leaves it as the first found
    it."""
    global _engines
    with _entering:
        if _engines == 0:
            _within.enter_context(collecting_between_batches())
            _within.enter_context(threadpool_limits(ONE_THREAD))
        _engines += 1
    try:
        threadpool_limits(ONE_THREAD)  # OpenMP's hold for the thread that sets them
        yield
    finally:
        with _entering:
            _engines -= 1
            if _engines == 0:
                _within.close()


@contextlib.contextmanager
def collecting_between_batches() -> Iterator[None]:
    """Python looks for cycles where `collect_due_garbage` is called, and never among what was there before."""
    usual = gc.get_threshold()
    gc.set_threshold(_WITHIN_A_BATCH, *usual[1:])
    gc.freeze()  # what is loaded by now stays: looking through all of it takes 50 ms each time
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


def collect_due_garbage() -> None:
    """Lets Python look if it would have by now, and as far back as it would have."""
    within, *others = gc.get_threshold()
    gc.set_threshold(_USUAL, *others)
    _: set[object] = set()  # Python looks, or does not, where an object is made
    gc.set_threshold(within, *others)
