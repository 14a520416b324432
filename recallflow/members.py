"""Members of a deployment on one machine (`recallflow run --processes N`): processes, supervisor, metrics, start."""

import asyncio
import hashlib
import logging
import os
import re
import signal
import socket
import sys
from asyncio import StreamReader
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO

import orjson
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from recallflow.connectors.kafka.lease import directory_id
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.probes import Probes
from recallflow.errors import UsageError
from recallflow.flows.config import AUTO, PREFIX, VARIABLES, Config, as_file
from recallflow.flows.engine_metrics import availability_metrics
from recallflow.private_files import make_private_folder
from recallflow.process import MEMBER_VARIABLE, backoffs_s
from recallflow.state.description import DESCRIPTION
from recallflow.state.lock import locked

CHUNK_BYTES = 64 * 1024
CONFIG = "--config"
REPLY_TIMEOUT_S = 3.0  # per member, so that a suspended member does not block the others
LABEL = "member"
SUPERVISOR = "supervisor"
OPENMETRICS = {"Accept": "application/openmetrics-text"}  # the only format with exemplars
NOT_READY = "not ready: "  # prefix of the answer of /readyz
EXIT_USAGE = 2  # wrong arguments or settings: a restart cannot help
BACKOFF_S = 0.5  # pause before the first restart
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0  # a member that ran this long was started correctly: its next pause is the first again
_log = logging.getLogger(__name__)
CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
_NAME = re.compile(r"member-\d{2,}")
CACHE_MIN_BYTES = 1024 * 1024
# -P: a state directory in the current folder may have the name of a module.
COMMAND = (sys.executable, "-P", "-m", "recallflow", "run", "--create", "--processes", "1", "--state-dir")
_INVALID = re.compile(r"[^A-Za-z0-9._-]")  # characters that a group.instance.id cannot have


async def relay(stream: StreamReader, name: str, *, as_json: bool) -> None:
    """Copy a process's output to standard error. `readline()` is not used, because it limits the line length."""
    partial_line = b""
    while chunk := await stream.read(CHUNK_BYTES):
        *lines, partial_line = (partial_line + chunk).split(b"\n")
        _write(lines, name, as_json=as_json)
    _write([partial_line], name, as_json=as_json)  # a process that was killed may end without a newline


def labelled(line: bytes, name: str, *, as_json: bool) -> str:
    """Return a line with the name of its process. With `as_json`, other text, such as a crash report, becomes JSON."""
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
    with suppress(OSError):  # the reader of our output has exited, which must not stop the member
        sys.stderr.write(text)
        sys.stderr.flush()


@dataclass(eq=False)
class MemberProcess:
    """One member process. `settings` is the text of its configuration file, sent through a pipe, because it may contain
    secrets. `probe_socket` is a listening socket that stays open during restarts, so that its address never changes."""

    name: str
    command: Sequence[str]
    settings: str
    environment: Mapping[str, str]
    probe_socket: socket.socket | None = None
    as_json: bool = False
    restarts: int = 0
    code: int | None = None  # exit code of its last process; if negative, the signal that killed the process
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)

    async def run(self) -> int:
        """Start the process, and return its exit code. Raise OSError if it cannot be started."""
        read, write = os.pipe()
        try:
            with os.fdopen(read, "rb", 0) as read_end, os.fdopen(write, "wb", 0) as write_end:
                self._process = process = await asyncio.create_subprocess_exec(
                    *self.command,
                    CONFIG,
                    f"/dev/fd/{read}",
                    stdin=asyncio.subprocess.PIPE,  # is closed when the supervisor exits: see `end_with_supervisor`
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=[read] if self.probe_socket is None else [read, self.probe_socket.fileno()],
                    env=dict(self.environment),
                    process_group=0,  # the terminal signals the supervisor only, which forwards the signal
                )
                read_end.close()
                if self._stopping:  # `stop` was called during the start
                    self.stop()
                await asyncio.to_thread(_write_settings, write_end, self.settings.encode())
            if process.stderr is not None:
                await relay(process.stderr, self.name, as_json=self.as_json)
            self.code = await process.wait()
        finally:
            self._process = None
        return self.code

    def stop(self) -> None:
        self._stopping = True
        self.send_signal(signal.SIGTERM)

    @property
    def exit_code(self) -> int:
        """Return the exit code as shells do. A requested stop is 0, also if SIGTERM came before its handler existed."""
        if self.code is None or (self._stopping and self.code == -signal.SIGTERM):
            return 0
        return self.code if self.code >= 0 else 128 - self.code

    def send_signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def probe(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        """Return status and text of the answer to a GET request: 0 and an empty text without an answer."""
        if self._process is None or self.probe_socket is None:
            return 0, ""
        host, port = self.probe_socket.getsockname()
        with suppress(OSError, HTTPException), closing(HTTPConnection(host, port, timeout=REPLY_TIMEOUT_S)) as client:
            client.request("GET", path, headers=headers)
            answer = client.getresponse()
            return answer.status, answer.read().decode()
        return 0, ""


def _write_settings(pipe: IO[bytes], data: bytes) -> None:
    with suppress(BrokenPipeError):  # the process exited before it read its settings, and logs the reason
        while data:
            data = data[pipe.write(data) :]
    pipe.close()


class MemberMetrics(Collector):
    """Metrics of all members and of the supervisor, and the readiness of all members."""

    def __init__(self, members: Sequence[MemberProcess]) -> None:
        self._members = members
        self._pool = ThreadPoolExecutor(len(members), "recallflow-members")
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def obstacle(self) -> str:
        """Return the members that are not ready, with the reasons; an empty text if all are ready."""
        reasons = []
        for member, (status, text) in self._ask("/readyz", {}):
            if status != 200:
                reason = text.strip().removeprefix(NOT_READY) if status else "does not answer"
                reasons.append(f"{member.name}: {reason}")
        return "; ".join(reasons)

    def collect(self) -> Iterator[Metric]:
        answers = self._ask("/metrics", OPENMETRICS)
        yield from member_families((member.name, status > 0, member.restarts) for member, (status, _) in answers)
        families: dict[str, Metric] = {}
        _add_families(families, SUPERVISOR, ProcessCollector(registry=None).collect())
        for member, (status, text) in answers:
            parsed = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
            _add_families(families, member.name, parsed if status else availability_metrics("gone"))
        yield from families.values()

    def _ask(self, path: str, headers: dict[str, str]) -> list[tuple[MemberProcess, tuple[int, str]]]:
        answers = self._pool.map(lambda member: member.probe(path, headers), self._members)
        return [*zip(self._members, answers, strict=True)]


def member_families(members: Iterable[tuple[str, bool, int]]) -> tuple[Metric, Metric]:
    """Return the supervisor's metrics of each member: name, availability and restarts."""
    up = GaugeMetricFamily("recallflow_member_up", "Whether a member answers", labels=[LABEL])
    restarts = CounterMetricFamily("recallflow_member_restarts", "Times a member was started again", labels=[LABEL])
    for name, is_up, restart_count in members:
        up.add_metric([name], is_up)
        restarts.add_metric([name], restart_count)
    return up, restarts


def _add_families(families: dict[str, Metric], name: str, metrics: Iterable[Metric]) -> None:
    for family in metrics:
        if family.name not in families:
            families[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
        samples = (sample._replace(labels={LABEL: name} | sample.labels) for sample in family.samples)
        families[family.name].samples.extend(samples)


class Supervisor:
    """Supervisor of members. It forwards signals, restarts members that exit by themselves, and stops all members if
    one reports a usage error. Kafka, not the supervisor, assigns partitions."""

    def __init__(self, members: Sequence[MemberProcess], backoff_s: float) -> None:
        self._members = members
        self._backoff_s = backoff_s
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run until all members have ended, and return the worst exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        async with asyncio.TaskGroup() as tasks:
            for member in self._members:
                tasks.create_task(self._keep_running(member))
        return max(member.exit_code for member in self._members)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            for member in self._members:
                member.send_signal(signal.SIGKILL)
            os._exit(128 + number)
        _log.warning("stopping: members finish their current batch; a second signal stops at once")
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        for member in self._members:
            member.stop()

    async def _keep_running(self, member: MemberProcess) -> None:
        loop, pauses_s = asyncio.get_running_loop(), backoffs_s(self._backoff_s, BACKOFF_MAX_S)
        while not self._stopping.is_set():
            began_s = loop.time()
            try:
                code = await member.run()
            except OSError as error:  # too many processes, no memory
                _log.warning("%s cannot be started: %s", member.name, error.strerror)
                code = member.code = 1
            if self._stopping.is_set():
                return
            if code == EXIT_USAGE:
                _log.error("%s ended with %d (usage error): all members stop: they share settings", member.name, code)
                self._stop()
                return
            if loop.time() - began_s >= STEADY_S:
                pauses_s = backoffs_s(self._backoff_s, BACKOFF_MAX_S)
            pause_s = next(pauses_s)
            how = f"ended with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
            _log.warning("%s %s: it starts again in %g s", member.name, how, pause_s)
            await self._wait(pause_s)
            member.restarts += 1

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def usable_cpus(groups: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> int:
    """Return the number of usable CPUs, rounded down, at least 1: with 3.5 CPUs a fourth process would be throttled."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([available, *_limits(groups, own)])))


def _limits(groups: Path, own: Path) -> Iterator[float]:
    """Yield the CPU limits of the process's cgroups and their parents. In a container, the listed path may be the
    host's, which does not exist there; then the root folder is the process's cgroup."""
    with suppress(OSError):  # no Linux, or no /proc
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            folder = groups / controllers
            for part in ("", *Path(path).parts[1:]):
                folder /= part
                yield from _limit(folder)


def _limit(folder: Path) -> Iterator[float]:
    """Yield the limits of one cgroup, of version 2 or 1."""
    with suppress(OSError, ValueError):  # "max"
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)
    with suppress(OSError):
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            yield quota_us / int((folder / "cpu.cfs_period_us").read_text())


def member_name(number: int) -> str:
    return f"member-{number:02d}"


def member_folders(state_dir: Path) -> list[Path]:
    folders = (description.parent for description in state_dir.glob(f"*/{DESCRIPTION}"))
    return sorted(folder for folder in folders if _NAME.fullmatch(folder.name))


def check_single_process(state_dir: Path) -> None:
    """Raise UsageError if the folder has state directories of members: one process would start a new state there."""
    if folders := member_folders(state_dir):
        remedy = f"give --processes {max(2, len(folders))}, or merge their directories (recallflow state merge)"
        raise UsageError(f"{state_dir} holds the state of {len(folders)} members ({folders[0].name}, …): {remedy}")


def check_multiple_processes(state_dir: Path) -> None:
    """Raise UsageError if the folder is the state directory of one process: members would start without its state."""
    if (state_dir / DESCRIPTION).exists():
        remedy = "give --processes 1, or split it into members' directories (recallflow state split)"
        raise UsageError(f"{state_dir} holds the state of one process: {remedy}")


def state_directories(state_dir: Path, count: int) -> list[Path]:
    """Return the state directory of each member. Raise UsageError if `count` does not fit the state in the folder."""
    if count == 1:
        check_single_process(state_dir)
        return [state_dir]
    check_multiple_processes(state_dir)
    return [state_dir / member_name(number) for number in range(count)]


def process_count(config: Config) -> int:
    """Return the number of members. `auto` is one per CPU, but at most one per partition of the memory topic."""
    chosen = config.run.processes
    if chosen != AUTO:
        return chosen
    cpus = usable_cpus()
    if cpus == 1:
        return 1
    topic = config.topics.memory
    with TopicReader(config.kafka) as reader:
        return min(cpus, len(reader.partitions([topic])[topic]))


def run_members(config: Config, count: int, command: Sequence[str] = COMMAND, backoff_s: float = BACKOFF_S) -> int:
    """Run members until SIGTERM or SIGINT, and return the worst exit code. Raise UsageError if the state directory
    belongs to one process, and StateInUse if other members use it."""
    state_dir = config.named_state_dir()
    if config.run.own is not None:
        raise UsageError("--own selects the partitions of one member: use it with --processes 1 only")
    check_multiple_processes(state_dir)
    make_private_folder(state_dir)
    with ExitStack() as stack:
        stack.enter_context(locked(state_dir))
        members = [_member(stack, config, command, number, count) for number in range(count)]
        if (port := config.run.metrics_port) is not None:
            metrics = MemberMetrics(members)
            stack.enter_context(Probes(config.run.metrics_host, port, metrics.registry, metrics.obstacle))
        names = {member.name for member in members}
        if unused := [folder.name for folder in member_folders(state_dir) if folder.name not in names]:
            _log.warning(
                "%s of %s are not used by %d members: other members restore their partitions or read them again",
                ", ".join(unused), state_dir, count,
            )  # fmt: skip
        _log.info("%d members share %s, each with a folder in %s", count, config.topics.memory, state_dir)
        return asyncio.run(Supervisor(members, backoff_s).run())


def _member(stack: ExitStack, config: Config, command: Sequence[str], number: int, count: int) -> MemberProcess:
    name, probe_socket = member_name(number), None
    instance = config.run.instance_id
    if instance is None:
        digest = hashlib.sha256(directory_id(config.named_state_dir()).encode()).hexdigest()
        instance = f"{_INVALID.sub('-', socket.gethostname())}-{digest[:12]}"
    # Static members keep their partitions when they, or all members, are restarted.
    run = replace(config.run, processes=1, instance_id=f"{instance}-{name}")
    if config.run.metrics_port is not None:
        probe_socket = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        run = replace(run, metrics_host=f"fd://{probe_socket.fileno()}", metrics_port=0)
    # The configured cache size is the total of all members.
    engine = replace(config.engine, cache_bytes=max(CACHE_MIN_BYTES, config.engine.cache_bytes // count))
    folder = config.named_state_dir() / name
    settings = as_file(replace(config, state_dir=folder, run=run, engine=engine))
    # No variables of settings: a member reads its settings from the file only.
    environment = {key: one for key, one in os.environ.items() if key not in VARIABLES and not key.startswith(PREFIX)}
    environment[MEMBER_VARIABLE] = name
    as_json = config.run.log_format == "json"
    return MemberProcess(name, [*command, str(folder)], settings, environment, probe_socket, as_json=as_json)
