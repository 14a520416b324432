"""Log lines out of signal handlers."""

import contextlib
import logging
import os
import sys


def log_at_once(name: str, message: str) -> None:
    """Writes a warning as other log lines are written, but not through their stream: the signal may have come while it
    was being written to, and it allows one writer. `name`: of the logger."""
    record = logging.LogRecord(name, logging.WARNING, __file__, 0, message, None, None)
    handlers = logging.getLogger().handlers
    line = handlers[0].format(record) if handlers else f"recallflow: {message}"
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{line}\n".encode())
