"""What a process does that was started as one of several: it ends with the one that started it."""

import logging
import os
import signal
import threading

MEMBER_VARIABLE = "RECALLFLOW_MEMBER"  # its name, set by a supervisor alone; its standard input ends with that
STDIN = 0

_log = logging.getLogger(__name__)


def end_with_supervisor() -> None:
    """Has a member end as by SIGTERM once its supervisor is gone, however that ended."""
    if MEMBER_VARIABLE in os.environ:
        threading.Thread(target=_watch, daemon=True, name="recallflow-supervised").start()


def _watch() -> None:
    while os.read(STDIN, 1):
        pass  # nothing is ever written to it
    _log.warning("the supervisor is gone: this member ends")
    os.kill(os.getpid(), signal.SIGTERM)
