"""Stopping a flow."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from recallflow.background import Patience

GIVE_UP_S = 60.0
FULL_BYTES = 60_000  # of a pipe that nobody reads: another line may not fit in

FLOW = """
import logging, threading
from types import SimpleNamespace
from recallflow.cli.telemetry import set_up_logging
from recallflow.flows.router import stop_on_signals

set_up_logging("text")
source = SimpleNamespace(stopping=threading.Event())
stop_on_signals(source)
for _ in range(1_000):
    logging.getLogger("recallflow").warning("long " * 20)
source.stopping.wait()
print("stopping", flush=True)
threading.Event().wait()
"""


@pytest.mark.processes
def test_second_signal_ends_the_process() -> None:
    with ExitStack() as stack:
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        words = [sys.executable, "-c", FLOW]
        flow = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered)
        stack.enter_context(flow)
        stack.callback(flow.kill)
        assert flow.stdout is not None
        assert flow.stderr is not None
        waiting = Patience(GIVE_UP_S)
        while _held_bytes(flow.stderr.fileno()) < FULL_BYTES:
            assert flow.poll() is None
            assert not waiting.ended()
        flow.send_signal(signal.SIGTERM)
        said = stack.enter_context(ThreadPoolExecutor(1)).submit(flow.stderr.read)
        assert flow.stdout.readline() == b"stopping\n"
        flow.send_signal(signal.SIGTERM)
        assert flow.wait(GIVE_UP_S) == 128 + signal.SIGTERM
        text = said.result().decode()
    assert "a second signal stops at once" in text
    assert "Traceback" not in text


def _held_bytes(pipe: int) -> int:
    (held,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(held)
