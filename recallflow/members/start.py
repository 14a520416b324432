"""The members that a configuration asks for, each with the part of it that is its own."""

import hashlib
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from recallflow.connectors.kafka.group import directory_id
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.probes import Probes
from recallflow.errors import UsageError
from recallflow.flows.config import AUTO, PREFIX, VARIABLES, Config, as_file
from recallflow.members.cpus import usable_cpus
from recallflow.members.folders import check_for_members, member_folders, member_name
from recallflow.members.member import Member
from recallflow.members.probing import MemberMetrics
from recallflow.members.supervisor import BACKOFF_S, Supervisor
from recallflow.private_files import make_private_folder
from recallflow.state.lock import locked
from recallflow.supervised import MEMBER_VARIABLE

CACHE_MIN_BYTES = 1024 * 1024
# Not from the current folder, where a state directory may be called like a module.
COMMAND = (sys.executable, "-P", "-m", "recallflow", "run", "--create", "--processes", "1", "--state-dir")

_UNNAMEABLE = re.compile(r"[^A-Za-z0-9._-]")  # in a group.instance.id

_log = logging.getLogger(__name__)


def processes(config: Config) -> int:
    """How many members there are to be: no more by themselves than there are CPUs, and partitions to share."""
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
    """Runs so many members until SIGTERM or SIGINT, and returns the exit code of the worst. Raises UsageError where the
    state directory is one process' own, and StateInUse where other members are at work on it."""
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


def _member(stack: ExitStack, config: Config, command: Sequence[str], number: int, count: int) -> Member:
    name = member_name(number)
    probes = None
    # Static: who starts again at once has its partitions kept, and all of them have after all were stopped.
    run = replace(config.run, processes=1, instance_id=f"{_instance(config)}-{name}")
    if config.run.metrics_port is not None:
        probes = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        run = replace(run, metrics_host=f"fd://{probes.fileno()}", metrics_port=0)
    # What was asked for is for all of them: more members take no more memory.
    engine = replace(config.engine, cache_bytes=max(CACHE_MIN_BYTES, config.engine.cache_bytes // count))
    folder = config.named_state_dir() / name
    return Member(
        name,
        [*command, str(folder)],
        as_file(replace(config, state_dir=folder, run=run, engine=engine)),
        environment_of(name, os.environ),
        probes,
        as_json=config.run.log_format == "json",
    )


def _instance(config: Config) -> str:
    """What members' names in the group begin with: that of nobody else, here or on another machine."""
    if config.run.instance_id is not None:
        return config.run.instance_id
    here = hashlib.sha256(directory_id(config.named_state_dir()).encode()).hexdigest()
    return f"{_UNNAMEABLE.sub('-', socket.gethostname())}-{here[:12]}"


def environment_of(name: str, ours: Mapping[str, str]) -> dict[str, str]:
    """A member's environment: ours without settings, as those are in its file, where they hold for all."""
    kept = {key: value for key, value in ours.items() if key not in VARIABLES and not key.startswith(PREFIX)}
    return kept | {MEMBER_VARIABLE: name}
