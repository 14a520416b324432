"""Commands in processes of their own: start, wait until ready, kill, stop, output, ports and probes."""

import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.starts import COMMAND, Started, creating, fork_server
from tools.broker import BOOTSTRAP_VARIABLE, HOST, free_ports, guard, release

GIVE_UP_S = 120.0  # far more than a loaded machine needs
POLL_S = 0.02  # leaves the processor to the process
SHOWN = 10_000  # last characters of a process's output that a failure shows
PORT_OPTIONS = {"run": "--metrics-port", "serve": "--port"}
CRASHES = ("Traceback (most recent call last)", "panicked at", "Fatal Python error", "fatal runtime error")


@dataclass(frozen=True)
class Ended:
    """The end of a command. A negative `code` is the signal that ended it; `said` is its standard error."""

    code: int
    out: str
    said: str

    @property
    def error(self) -> str:
        """The last line on standard error: problem and remedy."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    @property
    def plain(self) -> bool:
        """Whether the output is readable: no crash, and a line for a failure."""
        crashed = any(mark in self.said for mark in CRASHES)
        return not crashed and (self.code == 0 or bool(self.error or self.out.strip()))

    def __str__(self) -> str:
        return f"exit {self.code}: {self.said[-SHOWN:]}"


def surroundings() -> dict[str, str]:
    """Return the environment without a broker: a command gets the one that a test names."""
    return {name: value for name, value in os.environ.items() if name != BOOTSTRAP_VARIABLE}


@contextmanager
def watched(process: subprocess.Popen[bytes], abort_s: float = GIVE_UP_S) -> Iterator[None]:
    """End a process with the block, and abort one that runs for so long that it must hang."""
    # Not SIGKILL: a test may wait for that.
    watchdog = threading.Timer(abort_s, process.send_signal, [signal.SIGABRT])
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def command(*words: str | Path, script: str = COMMAND) -> Ended:
    """Run a command, or a script, to its end."""
    process = fork_server().start(script, creating([*map(str, words)]), surroundings(), text=True)
    out, said = process.communicate(timeout=GIVE_UP_S)
    return Ended(process.returncode, out, said)


class Process:
    """A `recallflow` command that a test starts, watches and ends, possibly several times. It ends with the block."""

    setup = ""  # Python that the new process runs before the command

    def __init__(self, log: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self.log, self._words, self._environment = log, words, environment or {}
        self.port = free_ports(None)[0]
        self.starts = 0
        self._process: Started | None = None
        self._began = 0  # where the output of the running process begins in the log

    def words(self, *options: str) -> list[str]:
        name, *rest = self._words
        port = [PORT_OPTIONS[name], str(self.port)] if name in PORT_OPTIONS else []
        return creating([name, *port, *rest, *options])

    def start(self, *options: str) -> None:
        if self.running():
            raise RuntimeError("the process runs already")
        with self.log.open("ab") as log:
            self._began = log.tell()
            script, environment = f"{self.setup}\n{COMMAND}", surroundings() | {**self._environment}
            self._process = fork_server().start(script, self.words(*options), environment, output=log.fileno())
        self._guard = guard(self._process.pid)
        self.starts += 1

    def up(self, *options: str) -> None:
        self.start(*options)
        self.await_ready()

    def await_ready(self) -> None:
        self.until(self.ready, "ready")

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + GIVE_UP_S
        while not true():
            if not self.running():
                raise RuntimeError(f"the process ended before it was {what}: {self.ended()}")
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the process was not {what} after {GIVE_UP_S:.0f} s: {self.said()[-SHOWN:]}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end; do nothing for a process that does not run."""
        self.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> Ended:
        self.send_signal(signal.SIGTERM)
        return self.ended()

    def pause(self) -> None:
        self.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.send_signal(signal.SIGCONT)

    def ends(self, *options: str) -> Ended:
        self.start(*options)
        return self.ended()

    def ended(self) -> Ended:
        if self._process is None:
            raise RuntimeError("the process was never started")
        try:
            self._process.wait(GIVE_UP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the process did not end in {GIVE_UP_S:.0f} s: {self.said()[-SHOWN:]}") from None
        self._reap()
        return Ended(self._process.returncode, "", self.said())

    def pid(self) -> int:
        if self._process is None or not self.running():
            raise RuntimeError("the process does not run")
        return self._process.pid

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._began)
            return log.read().decode(errors="replace")

    def ready(self) -> bool:
        return self.probe("/readyz") == 200

    def probe(self, path: str) -> int:
        """Return the status of a probe; 0 without an answer."""
        try:
            with urllib.request.urlopen(self.url(path), timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    def metrics(self) -> dict[str, float]:
        """Return each sample by its name with labels, such as `recallflow_outputs_total{kind="response"}`."""
        with urllib.request.urlopen(self.url("/metrics"), timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def url(self, path: str = "") -> str:
        return f"http://{HOST}:{self.port}{path}"

    def send_signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running():
            self._process.send_signal(number)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            with suppress(AttributeError):
                release(self._guard)
                del self._guard

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.go_on()
        self.kill()
