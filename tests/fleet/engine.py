"""`recallflow run` as a process, with topics of its own: start, stop, kill, pause, probe and log."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import BOOTSTRAP_VARIABLE, Cluster, free_ports, guard, has_leaders, release

INPUTS = ("memory", "query", "control")
OUTPUTS = ("response", "receipt", "dead-letter")
ADMIN_S = 60.0
GIVE_UP_S = 120.0  # far more than a loaded machine needs
POLL_S = 0.05


@dataclass(frozen=True)
class Topics:
    """Names that nobody else has: `of("memory")` is the memory topic. `suffix` tells deployments apart."""

    cluster: Cluster
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:10])

    def of(self, kind: str) -> str:
        return f"{kind}-{self.suffix}"

    def make(self, partitions: int = 2, config: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Create all six; `config` has settings by kind."""
        for kind in (*INPUTS, *OUTPUTS):
            self.make_one(kind, partitions, (config or {}).get(kind))

    def make_one(self, kind: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        self.cluster.create_topics({self.of(kind): partitions}, config)
        self._await(lambda: self._has_bounds(kind))  # a broker is told to lead a partition a little after it told us

    def arguments(self) -> list[str]:
        return [word for kind in (*INPUTS, *OUTPUTS) for word in (f"--{kind}-topic", self.of(kind))]

    def grow(self, kind: str, partitions: int) -> None:
        name = self.of(kind)
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(ADMIN_S)
        self._await(lambda: has_leaders(self._admin, name, partitions))

    def remove(self, kind: str) -> None:
        name = self.of(kind)
        self._admin.delete_topics([name])[name].result(ADMIN_S)
        self._await(lambda: name not in self._admin.list_topics(timeout=ADMIN_S).topics)

    def remake(self, kind: str, partitions: int) -> None:
        self.remove(kind)
        deadline = time.monotonic() + ADMIN_S
        while True:
            try:
                return self.make_one(kind, partitions)
            except KafkaException:  # the broker may still be about deleting the old one
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def bounds(self, kind: str) -> dict[int, tuple[int, int]]:
        """The first offset of each partition, and the one that comes next."""
        name = self.of(kind)
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap_servers, "group.id": "bounds"})
        try:
            known = consumer.list_topics(name, timeout=ADMIN_S).topics[name].partitions
            return {n: consumer.get_watermark_offsets(TopicPartition(name, n), timeout=ADMIN_S) for n in known}
        finally:
            consumer.close()

    def _has_bounds(self, kind: str) -> bool:
        with suppress(KafkaException):
            return bool(self.bounds(kind))
        return False

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0})

    def _await(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + ADMIN_S
        while not true():
            if time.monotonic() > deadline:
                raise RuntimeError(f"a topic of {self.suffix} is not as it was ordered after {ADMIN_S:.0f} s")
            time.sleep(POLL_S)


SCRIPT = "import sys; from recallflow.cli import main; sys.exit(main())"
NOT_FOR_PEOPLE = ("Traceback (most recent call last)", "panicked at", "Fatal Python error", "fatal runtime error")


@dataclass(frozen=True)
class Ended:
    """How a command ended. `code` below 0 is the signal that ended it."""

    code: int
    out: str
    said: str

    @property
    def error(self) -> str:
        """The last line on standard error: by the contract, what is wrong and what to do."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    @property
    def plain(self) -> bool:
        """Whether a person can read it: no traceback, no panic, and a word where it failed."""
        return not any(mark in self.said for mark in NOT_FOR_PEOPLE) and (
            self.code == 0 or bool(self.error or self.out.strip())
        )

    def __str__(self) -> str:
        return f"exit {self.code}: {self.said[-2_000:]}"


def command(*words: str | Path, text: str | bytes = b"", setup: str = "") -> Ended:
    """Run `recallflow …` to its end. `setup` is Python that the new process runs before the command."""
    process = spawn(f"{setup}\n{SCRIPT}", [*map(str, words)])
    out, said = process.communicate(text if isinstance(text, bytes) else text.encode(), timeout=GIVE_UP_S)
    return Ended(process.returncode, out.decode(errors="replace"), said.decode(errors="replace"))


def spawn(script: str, words: Sequence[str], output: int | None = None) -> subprocess.Popen[bytes]:
    """Start a script in a process of its own. `output` is a descriptor for what it writes; without one, its streams are
    pipes. Tests replace this function by one that forks."""
    pipe = subprocess.PIPE
    streams = (pipe, pipe, pipe) if output is None else (subprocess.DEVNULL, output, output)
    stdin, stdout, stderr = streams
    command = [sys.executable, "-c", script, *words]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=dict(surroundings()))


def surroundings() -> Mapping[str, str]:
    """Without a broker of the surroundings: a command gets the one that is meant."""
    return {name: value for name, value in os.environ.items() if name != BOOTSTRAP_VARIABLE}


SHORT_SESSION = ("--session-timeout-s", "6")  # after which another engine may take over


class Engine:
    setup = ""  # Python that the new process runs before the command

    def __init__(self, topics: Topics, folder: Path, *options: str, name: str = "engine") -> None:
        self.state_dir = folder / name
        self.topics = topics
        self.log = folder / f"{name}.log"
        self._options: Sequence[str] = options
        self._port = free_ports(None)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0  # where in the log the running process' words begin
        self.starts = 0

    # ------------------------------------------------------------------ life

    def start(self, *options: str) -> None:
        if self.running():
            raise RuntimeError("the engine runs already")
        self.log.touch()
        self._began = self.log.stat().st_size
        # through another process: what says that the disk is full is on another one
        with self.log.open("ab") as log:
            self._scribe = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
        assert self._scribe.stdin is not None
        with self._scribe.stdin as pipe:
            self._process = spawn(f"{self.setup}\n{SCRIPT}", self.words(*options), pipe.fileno())
        self._guard = guard(self._process.pid)
        self.starts += 1

    def words(self, *options: str) -> list[str]:
        where = [
            "--create", "--state-dir", str(self.state_dir), "--bootstrap-servers",
            self.topics.cluster.bootstrap_servers,
        ]  # fmt: skip
        probes = ["--metrics-port", str(self._port)]
        return ["run", *where, *probes, *self.topics.arguments(), *self._options, *options]

    def up(self, *options: str) -> None:
        self.start(*options)
        self.await_ready()

    def await_ready(self) -> None:
        self.until(self.ready, "ready")

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + GIVE_UP_S
        while not true():
            if not self.running():
                raise RuntimeError(f"the engine ended before it was {what}: {self.ended()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the engine was not {what} after {GIVE_UP_S:.0f} s: {self.said()[-2_000:]}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """SIGKILL; nothing happens where it does not run."""
        self._signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> Ended:
        self.ask_to_stop()
        return self.ended()

    def ask_to_stop(self) -> None:
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def ends(self, *options: str) -> Ended:
        self.start(*options)
        return self.ended()

    def ended(self, timeout_s: float = GIVE_UP_S) -> Ended:
        if self._process is None:
            raise RuntimeError("the engine was never started")
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the engine did not end within {timeout_s:.0f} s: {self.said()[-2_000:]}") from None
        self._reap()
        return Ended(self._process.returncode, "", self.said())

    def pid(self) -> int:
        if self._process is None or not self.running():
            raise RuntimeError("the engine does not run")
        return self._process.pid

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._began)
            return log.read().decode(errors="replace")

    # ---------------------------------------------------------------- probes

    def ready(self) -> bool:
        return self.probe("/readyz") == 200

    def probe(self, path: str) -> int:
        """The status of a probe; 0 where nobody answers."""
        try:
            with urllib.request.urlopen(self._url(path), timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    def metrics(self) -> dict[str, float]:
        """Every sample by its name with labels, as it is written: `recallflow_outputs_total{kind="response"}`."""
        with urllib.request.urlopen(self._url("/metrics"), timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

    # --------------------------------------------------------------- command

    def state(self, action: str, *more: str | Path) -> Ended:
        return command("state", action, "--state-dir", self.state_dir, *more)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._scribe.wait()
            with suppress(AttributeError):
                release(self._guard)
                del self._guard

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.go_on()
        self.kill()
