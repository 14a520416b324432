"""How a process of `recallflow run` comes to its end."""

import contextlib
import logging
import os
import signal
import sys
from typing import NoReturn

STOPPED = "stopped before it began to work"


def stop_while_starting() -> None:
    """Has SIGTERM and SIGINT end the process at once, with 0, until the flow runs and takes them itself. Nothing is
    underway before: a start may be cut off at any moment."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)


def _stop(*_: object) -> NoReturn:
    try:
        told = logging.LogRecord(__name__, logging.WARNING, __file__, 0, STOPPED, None, None)
        handlers = logging.getLogger().handlers
        line = handlers[0].format(told) if handlers else f"recallflow: {STOPPED}"
        # Not through the stream: the signal may have come while that was being written to, and it takes one at a time.
        os.write(sys.stderr.fileno(), f"{line}\n".encode())
    finally:
        os._exit(0)


def leave(code: int) -> NoReturn:
    """Ends the process without what Python does at its end: it waits for threads and destroys clients of librdkafka's,
    and one that was given up in the middle of something holds that up for ever. All that matters is closed by now."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.flush()
    finally:
        os._exit(code)
