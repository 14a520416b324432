"""Start of the members of a configuration, each with its own part of it."""

import hashlib
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

from recallflow.connectors.kafka.group import directory_id
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.probes import Probes
from recallflow.errors import UsageError
from recallflow.flows.config import AUTO, PREFIX, VARIABLES, Config, as_file
from recallflow.members.member import BACKOFF_S, MemberMetrics, MemberProcess, Supervisor
from recallflow.private_files import make_private_folder
from recallflow.process import MEMBER_VARIABLE
from recallflow.state.description import DESCRIPTION
from recallflow.state.lock import locked

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def usable_cpus(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Return the number of whole usable CPUs, at least 1: under a limit of 3.5 CPUs a fourth process would be
    throttled."""
    granted = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([granted, *_limits(groups, own)])))


def _limits(groups: Path, own: Path) -> Iterator[float]:
    """Yield the limits of the process's control groups and their parents. In a container its path may be the host's,
    and missing: then the root folder is its group."""
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
    """Yield the limits of one group, of version 2 or 1."""
    with suppress(OSError, ValueError):  # "max"
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)
    with suppress(OSError):
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            yield quota_us / int((folder / "cpu.cfs_period_us").read_text())


_NAME = re.compile(r"member-\d{2,}")


def member_name(number: int) -> str:
    """Return the name of a member for logs, metrics and folders."""
    return f"member-{number:02d}"


def member_folders(state_dir: Path) -> list[Path]:
    """Return the member folders that hold state."""
    filled = (one.parent for one in state_dir.glob(f"*/{DESCRIPTION}"))
    return sorted(folder for folder in filled if _NAME.fullmatch(folder.name))


def check_for_one(state_dir: Path) -> None:
    """Raise UsageError where members share the folder: one process would begin a new state next to theirs."""
    if folders := member_folders(state_dir):
        raise UsageError(
            f"{state_dir} holds the state of {len(folders)} members ({folders[0].name}, …): give --processes "
            f"{max(2, len(folders))}, or make one directory of theirs (recallflow state merge)"
        )


def check_for_members(state_dir: Path) -> None:
    """Raise UsageError where the folder is the state directory of one process: members would begin without it."""
    if (state_dir / DESCRIPTION).exists():
        raise UsageError(
            f"{state_dir} holds the state of one process: give --processes 1, or spread it over members' directories "
            "(recallflow state split)"
        )


def state_directories(state_dir: Path, count: int) -> list[Path]:
    """Return the state directories of this number of members; for one process the folder itself. Raise UsageError
    where the folder holds the state of another number of processes."""
    if count == 1:
        check_for_one(state_dir)
        return [state_dir]
    check_for_members(state_dir)
    return [state_dir / member_name(number) for number in range(count)]


CACHE_MIN_BYTES = 1024 * 1024
# -P: the current folder may hold a state directory with the name of a module.
COMMAND = (sys.executable, "-P", "-m", "recallflow", "run", "--create", "--processes", "1", "--state-dir")

_UNNAMEABLE = re.compile(r"[^A-Za-z0-9._-]")  # in a group.instance.id

_log = logging.getLogger(__name__)


def processes(config: Config) -> int:
    """Return the number of members: by default at most one per CPU and partition."""
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
    """Run members until SIGTERM or SIGINT, and return the worst exit code. Raise UsageError where the state
    directory belongs to one process, and StateInUse where other members use it."""
    state_dir = config.named_state_dir()
    if config.run.own is not None:
        raise UsageError("--own says what one member works on: give --processes 1, or leave it out")
    check_for_members(state_dir)
    make_private_folder(state_dir)
    with ExitStack() as stack:
        stack.enter_context(locked(state_dir))
        members = [_member(stack, config, command, number, count) for number in range(count)]
        if (port := config.run.metrics_port) is not None:
            metrics = MemberMetrics(members)
            stack.enter_context(Probes(config.run.metrics_host, port, metrics.registry, metrics.obstacle))
        names = {member.name for member in members}
        if left := [folder.name for folder in member_folders(state_dir) if folder.name not in names]:
            _log.warning(
                "%s of %s are not used by %d members: their partitions are restored or read again elsewhere",
                ", ".join(left), state_dir, count,
            )  # fmt: skip
        _log.info("%d members share %s, each with a folder in %s", count, config.topics.memory, state_dir)
        return Supervisor(members, backoff_s).run()


def _member(stack: ExitStack, config: Config, command: Sequence[str], number: int, count: int) -> MemberProcess:
    name = member_name(number)
    probes = None
    # Static members keep their partitions during a restart, and after a restart of all.
    run = replace(config.run, processes=1, instance_id=f"{_instance(config)}-{name}")
    if config.run.metrics_port is not None:
        probes = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        run = replace(run, metrics_host=f"fd://{probes.fileno()}", metrics_port=0)
    # The configured memory is for all members together.
    engine = replace(config.engine, cache_bytes=max(CACHE_MIN_BYTES, config.engine.cache_bytes // count))
    folder = config.named_state_dir() / name
    return MemberProcess(
        name,
        [*command, str(folder)],
        as_file(replace(config, state_dir=folder, run=run, engine=engine)),
        environment_of(name, os.environ),
        probes,
        as_json=config.run.log_format == "json",
    )


def _instance(config: Config) -> str:
    """Return a unique prefix of the members' names in the group."""
    if config.run.instance_id is not None:
        return config.run.instance_id
    here = hashlib.sha256(directory_id(config.named_state_dir()).encode()).hexdigest()
    return f"{_UNNAMEABLE.sub('-', socket.gethostname())}-{here[:12]}"


def environment_of(name: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Return a member's environment: ours without settings, which are in its file."""
    kept = {key: value for key, value in ours.items() if key not in VARIABLES and not key.startswith(PREFIX)}
    return kept | {MEMBER_VARIABLE: name}
