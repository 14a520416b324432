"""A simulated member of a deployment: the product's own main flow, on a simulated machine."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recallflow.connectors.embedders import load_embedder
from recallflow.errors import DeploymentLost, RecallflowError
from recallflow.flows import kafka as main_flow
from recallflow.flows import member as flow_member
from recallflow.flows.config import Config, RunSettings
from recallflow.flows.ownership import Ownership
from recallflow.flows.runner import run_loop
from recallflow.flows.settings import Settings, TopicNames
from recallflow.kafka_options import KafkaOptions
from recallflow.state.partition import Partition
from tests.simulation import world as simulated
from tests.simulation.world import Patches, Process, World

TOPICS = TopicNames()
OPTIONS = KafkaOptions("simulated:9092")
DEPLOYMENT = "simulated"
SESSION_S = 6.0
SUPERVISOR_S = 1.0  # pause before a member that ended is started again
SYNC_MAX_S = 0.02  # duration of a sync of the disk
ENGINE = Settings(embedder="hash", cache_bytes=1024 * 1024)
EMBEDDER = load_embedder("hash")


class Watcher:
    def has_gained(self, member: "Member", partitions: Any) -> None:
        """A member begins with partitions."""

    def ended(self, member: "Member", error: RecallflowError) -> None:
        """A member's process ended with an error."""


class Member:
    """One member, which a supervisor starts again when it ends with an error."""

    def __init__(self, world: World, name: str, folder: Path, instance_id: str | None, watcher: Watcher) -> None:
        self.world, self.name, self.folder, self.watcher = world, name, folder, watcher
        run = RunSettings(deployment=DEPLOYMENT, session_timeout_s=SESSION_S, instance_id=instance_id)
        self._config = Config(state_dir=folder, kafka=OPTIONS, topics=TOPICS, engine=ENGINE, run=run)
        self.process: Process | None = None
        self.parts: Any = None  # of the membership under way
        self._flow: main_flow.MainKafkaFlow | None = None
        self._synced: dict[str, int] = {}  # write-ahead log → its bytes that survive a machine crash
        self.synced_positions: dict[str, int] = {}  # what the disk surely holds, by source
        self.opened: list[Partition] = []  # by this process, whether closed since or not
        self.is_wanted = False
        self._starts = 0

    @property
    def open_partitions(self) -> dict[int, Partition]:
        directory = getattr(self.parts, "directory", None)
        return {} if directory is None or self.process is None else directory._partitions

    @property
    def membership(self) -> Any:
        return None if self.process is None else getattr(self.parts, "membership", None)

    def start(self) -> None:
        self.is_wanted = True
        if self.process is not None:
            return
        self._starts += 1
        self._flow = main_flow.MainKafkaFlow(self._config)
        self.process = self.world.process(f"{self.name}.{self._starts}", self.world.random.uniform(-0.2, 0.2))
        self.process.member = self
        self.process.spawn(self._main, "main")

    def stop(self) -> None:
        self.is_wanted = False
        if self._flow is not None:
            self._flow._stopping.set()

    def kill(self, *, machine: bool = False) -> None:
        if self.process is None:
            return
        image = self.folder.with_name(self.folder.name + ".image")
        self._copy(image, machine)
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        if image.exists():
            image.rename(self.folder)

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
        for partition in self.opened:
            with contextlib.suppress(Exception):  # it was closed before
                partition.close()
        self.parts = None
        self._forget_synced()

    def _forget_synced(self) -> None:
        self.opened.clear()
        self._synced.clear()
        self.synced_positions.clear()

    def _copy(self, image: Path, machine: bool) -> None:
        """Copy the state directory as the disk holds it."""
        for folder, _, names in os.walk(self.folder):
            to = image / os.path.relpath(folder, self.folder)
            to.mkdir(parents=True, exist_ok=True)
            for name in names:
                path = Path(folder, name)
                if name.endswith(".sst"):
                    os.link(path, to / name)
                elif not name.startswith("LOG"):
                    data = path.read_bytes()
                    lost = machine and name.endswith(".log")
                    (to / name).write_bytes(data[: self._synced.get(str(path), 0)] if lost else data)

    def note_synced(self, partition: Partition, applied: dict[str, int]) -> None:
        own = f"{TOPICS.memory}:{partition.number}"
        self.synced_positions[own] = applied.get(own, -1)
        with os.scandir(partition.path) as files:
            self._synced |= {file.path: file.stat().st_size for file in files if file.name.endswith(".log")}

    def _main(self) -> None:
        process, flow = self.process, self._flow
        try:
            if flow is not None:
                flow.run()
        except DeploymentLost:  # another process has its name
            self.is_wanted = False
        except RecallflowError as error:
            self.watcher.ended(self, error)
        if process is not None and self.process is process:
            self.process = self.parts = None
            self.world.later(0.0, process.kill)  # its daemon threads end with it
            self._forget_synced()
            if self.is_wanted:
                self.world.later(SUPERVISOR_S, lambda: self.start() if self.is_wanted else None)


def current_member() -> Member | None:
    """The member whose thread runs."""
    task = simulated.world().current
    return None if task is None else task.process.member


class _Parts(main_flow.MainFlowMember):
    def __init__(self, *arguments: Any) -> None:
        if (member := current_member()) is not None:
            member.parts = self
        super().__init__(*arguments)


def patch_members(patches: Patches) -> None:
    """Let members run in the simulation: on the loop without Bytewax, without signals, and watched."""
    patches.replace(flow_member, "run", run_loop)
    patches.replace(flow_member, "FlowMetrics", lambda: SimpleNamespace(attach=lambda *_: None))
    patches.replace(flow_member, "stop_on_signals", lambda _: None)
    patches.replace(flow_member, "sys", SimpleNamespace(setswitchinterval=lambda _: None))
    patches.replace(main_flow, "MainFlowMember", _Parts)
    real_gain: Callable[..., None] = Ownership.gain
    real_sync: Callable[..., None] = Partition.sync

    def gain(self: Ownership, places: Any) -> None:
        if (member := current_member()) is not None:
            member.watcher.has_gained(member, places)
        real_gain(self, places)

    def sync(self: Partition) -> None:
        if (member := current_member()) is None:
            real_sync(self)
            return
        simulated.sleep(member.world.random.random() * SYNC_MAX_S)
        applied = self.committed_positions()
        real_sync(self)
        member.note_synced(self, applied)

    real_open: Callable[..., None] = Partition.__init__

    def opened(self: Partition, *arguments: Any) -> None:
        real_open(self, *arguments)
        if (member := current_member()) is not None:  # RocksDB syncs what it recovers
            member.opened.append(self)
            member.note_synced(self, self.applied)

    patches.replace(Partition, "__init__", opened)
    patches.replace(Ownership, "gain", gain)
    patches.replace(Partition, "sync", sync)
