"""How a process of `recallflow run` ends."""

import contextlib
import os
import signal
import sys
from typing import NoReturn

from recallflow.signal_log import log_at_once

STOPPED = "stopped before it began to work"


def end_on_signals() -> None:
    """SIGTERM and SIGINT end the process at once, with 0, until the flow runs and handles them itself. A start may be
    cut off at any moment, as nothing is under way yet."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)


def _stop(*_: object) -> NoReturn:
    try:
        log_at_once(__name__, STOPPED)
    finally:
        os._exit(0)


def end_process(code: int) -> NoReturn:
    """Ends the process without Python's own clean-up, which waits for threads and destroys clients of librdkafka: a
    client that was abandoned in the middle of a call would hold that up for ever. All that matters is closed by now."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.flush()
    finally:
        os._exit(code)
