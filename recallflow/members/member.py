"""Supervisor of the members of one machine, with their processes, output and metrics."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from asyncio import StreamReader
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from typing import IO, NamedTuple

import orjson
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from recallflow.flows.engine_metrics import presence

CHUNK_BYTES = 64 * 1024


async def relay(stream: StreamReader, name: str, *, as_json: bool) -> None:
    """Copy a process's output to standard error until it ends. StreamReader's lines are not used, because their
    length is limited."""
    begun = b""
    while chunk := await stream.read(CHUNK_BYTES):
        *lines, begun = (begun + chunk).split(b"\n")
        _write(lines, name, as_json=as_json)
    if begun:  # the last words of a process that was killed
        _write([begun], name, as_json=as_json)


def labelled(line: bytes, name: str, *, as_json: bool) -> str:
    """Return a line with the name of its process. Text that is no JSON object, such as a crash report, becomes one."""
    if not as_json:
        return f"{name}: {line.decode(errors='replace')}"
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {"time": time, "level": "error", "logger": "stderr", "message": line.decode(errors="replace")}
    return orjson.dumps({"member": name} | fields).decode()


def _write(lines: list[bytes], name: str, *, as_json: bool) -> None:
    text = "".join(f"{labelled(line, name, as_json=as_json)}\n" for line in lines if line)
    with contextlib.suppress(OSError):  # the reader of our output is gone, which must not stop the member
        sys.stderr.write(text)
        sys.stderr.flush()


CONFIG = "--config"


@dataclass(eq=False)
class MemberProcess:
    """One member process. `settings` is its configuration as a file, sent through a pipe, because it may hold
    secrets. `probes` is a listening socket that stays open over restarts, so that the address never changes."""

    name: str
    command: Sequence[str]
    settings: str
    environment: Mapping[str, str]
    probes: socket.socket | None = None
    as_json: bool = False
    restarts: int = 0
    code: int | None = None  # how its last process ended; negative: by which signal
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)

    @property
    def runs(self) -> bool:
        return self._process is not None

    async def run(self) -> int:
        """Start the process, and return its exit code. Raise OSError if it cannot be started."""
        read, write = os.pipe()
        try:
            with os.fdopen(read, "rb", 0) as theirs, os.fdopen(write, "wb", 0) as filled:
                self._process = process = await self._started(theirs.fileno())
                theirs.close()
                if self._stopping:  # the signal came while it was being started
                    self.stop()
                await asyncio.to_thread(_fill, filled, self.settings.encode())
            if process.stderr is not None:
                await relay(process.stderr, self.name, as_json=self.as_json)
            self.code = await process.wait()
        finally:
            self._process = None
        return self.code

    def stop(self) -> None:
        """Stop the process after its current work."""
        self._stopping = True
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self._send(signal.SIGKILL)

    @property
    def exit_code(self) -> int:
        """Return the exit code in the convention of shells. A process that is stopped before it handles signals
        counts as stopped by request."""
        if self.code is None or (self._stopping and self.code == -signal.SIGTERM):
            return 0
        return self.code if self.code >= 0 else 128 - self.code

    async def _started(self, settings: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.command,
            CONFIG,
            f"/dev/fd/{settings}",
            stdin=asyncio.subprocess.PIPE,  # which ends with us: `end_with_supervisor` waits for that
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[settings] if self.probes is None else [settings, self.probes.fileno()],
            env=dict(self.environment),
            process_group=0,  # the supervisor forwards signals of the terminal once
        )

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _fill(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # it ended before it had read its settings, and says why
        while data:
            data = data[pipe.write(data) :]
    pipe.close()


ASK_S = 3.0  # a member that was stopped does not answer, and the others have something to say
LABEL = "member"
SUPERVISOR = "supervisor"
OPENMETRICS = {"Accept": "application/openmetrics-text"}  # exemplars are in nothing else
NOT_READY = "not ready: "


class _Answer(NamedTuple):
    status: int
    text: str


class MemberMetrics(Collector):
    """Metrics of all members, collected on request."""

    def __init__(self, members: Sequence[MemberProcess]) -> None:
        self._members = members
        self._pool = ThreadPoolExecutor(len(members), "recallflow-members")
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def obstacle(self) -> str:
        """Return the members that are not ready, with the reasons; empty if all are."""
        answers = self._ask("/readyz", {})
        reasons = {
            member.name: "does not answer" if answer is None else answer.text.strip().removeprefix(NOT_READY)
            for member, answer in zip(self._members, answers, strict=True)
            if answer is None or answer.status != 200
        }
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())

    def collect(self) -> Iterator[Metric]:
        answers = self._ask("/metrics", OPENMETRICS)
        yield from member_families(
            (member.name, answer is not None, member.restarts)
            for member, answer in zip(self._members, answers, strict=True)
        )
        families: dict[str, Metric] = {}
        _add(families, SUPERVISOR, ProcessCollector(registry=None).collect())
        for member, answer in zip(self._members, answers, strict=True):
            _add(families, member.name, presence("gone") if answer is None else _read(answer.text))
        yield from families.values()

    def _ask(self, path: str, headers: dict[str, str]) -> list[_Answer | None]:
        """Return each member's answer; None without one."""
        return [*self._pool.map(lambda member: _asked(member, path, headers), self._members)]


def member_families(members: Iterable[tuple[str, bool, int]]) -> tuple[Metric, Metric]:
    """Return the supervisor's metrics of each member: name, availability and restarts."""
    up = GaugeMetricFamily("recallflow_member_up", "Whether a member answers", labels=[LABEL])
    restarts = CounterMetricFamily("recallflow_member_restarts", "Times a member was started again", labels=[LABEL])
    for name, answers, started_again in members:
        up.add_metric([name], answers)
        restarts.add_metric([name], started_again)
    return up, restarts


def _asked(member: MemberProcess, path: str, headers: dict[str, str]) -> _Answer | None:
    if not member.runs or member.probes is None:
        return None
    host, port = member.probes.getsockname()
    connection = HTTPConnection(host, port, timeout=ASK_S)
    with suppress(OSError, HTTPException):
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return _Answer(answer.status, answer.read().decode())
        finally:
            connection.close()
    return None


def _read(text: str) -> Iterator[Metric]:
    parse: Callable[[str], Iterator[Metric]] = text_string_to_metric_families
    return parse(text)


def _add(families: dict[str, Metric], name: str, said: Iterable[Metric]) -> None:
    """Add the metrics of one process to the totals."""
    for family in said:
        if family.name not in families:
            families[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
        labelled = (sample._replace(labels={LABEL: name} | sample.labels) for sample in family.samples)
        families[family.name].samples.extend(labelled)


USAGE = 2  # errors of the command or its settings persist
BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0  # who ran for so long had no trouble with its start

_log = logging.getLogger(__name__)


class Supervisor:
    """Supervisor of members. It forwards signals, restarts members that end by themselves, and stops all if one
    reports a usage error. Partitions are assigned by Kafka, not by the supervisor."""

    def __init__(self, members: Sequence[MemberProcess], backoff_s: float) -> None:
        self._members = members
        self._backoff_s = backoff_s
        self._stopping = asyncio.Event()

    def run(self) -> int:
        """Run until all members have ended, and return the worst exit code."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        async with asyncio.TaskGroup() as tasks:
            for member in self._members:
                tasks.create_task(self._keep(member))
        return max(member.exit_code for member in self._members)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            for member in self._members:
                member.kill()
            os._exit(128 + number)
        _log.warning("stopping: members finish the batch at hand; a second signal stops at once")
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        for member in self._members:
            member.stop()

    async def _keep(self, member: MemberProcess) -> None:
        """Keep a member running until the supervisor stops."""
        loop, waits_s = asyncio.get_running_loop(), self._backoff_s
        while not self._stopping.is_set():
            began_s = loop.time()
            try:
                code = await member.run()
            except OSError as error:  # too many processes, no memory
                _log.warning("%s cannot be started: %s", member.name, error.strerror)
                code = member.code = 1
            if self._stopping.is_set():
                return
            if code == USAGE:
                _log.error("%s ended with %d: what it was given is wrong for all, so all end", member.name, code)
                self._stop()
                return
            if loop.time() - began_s >= STEADY_S:
                waits_s = self._backoff_s
            _log.warning("%s %s: it starts again in %g s", member.name, _ended(code), waits_s)
            await self._wait(waits_s)
            waits_s = min(2 * waits_s, BACKOFF_MAX_S)
            member.restarts += 1

    async def _wait(self, seconds: float) -> None:
        """Wait, but end with the supervisor."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


def _ended(code: int) -> str:
    return f"ended with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
