"""When Python looks for garbage that holds itself (cycles): between two batches.

Python looks whenever 700 more objects were made than freed. Within a batch those are what its events are made of, all
alive and looked through again and again: a message cost 5 µs more. Between two batches hardly any is left.
"""

import contextlib
import gc
from collections.abc import Iterator

_USUAL = gc.get_threshold()[0]
# Objects made and still there, several times those of a batch of messages. More than that is looked through in the
# middle of one, before it takes longer than 10 ms.
_WITHIN_A_BATCH = 100_000


@contextlib.contextmanager
def looking_between_batches() -> Iterator[None]:
    """Python looks for cycles where `look_for_cycles` is called, and never among what was there before."""
    usual = gc.get_threshold()
    gc.set_threshold(_WITHIN_A_BATCH, *usual[1:])
    gc.freeze()  # what is loaded by now stays: looking through all of it takes 50 ms each time
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


def look_for_cycles() -> None:
    """Lets Python look if it would have by now, and as far back as it would have."""
    within, *others = gc.get_threshold()
    gc.set_threshold(_USUAL, *others)
    _: set[object] = set()  # Python looks, or does not, where an object is made
    gc.set_threshold(within, *others)
