"""Seeded schedules of events and faults, the invariants that each must keep, and the shrinking of one that fails."""

import concurrent.futures
import contextlib
import gc
import itertools
import logging
import random
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import orjson
import rocksdict

from recallflow.connectors.kafka import cluster, control, group_consumer, input_scheduler, membership
from recallflow.connectors.kafka.messages import identity_of, record_of
from recallflow.connectors.kafka.partition import PartitionProgress
from recallflow.errors import OutputsGone, RecallflowError, SinkError, SourceError
from recallflow.flows import ownership, partition_copies
from recallflow.flows.embedded import state_opener
from recallflow.flows.router import OwningPartitions
from recallflow.operators.events import decode
from recallflow.operators.prepare import prepare
from recallflow.owner import state_partition
from recallflow.records import Position
from recallflow.state import directory as state_directory
from recallflow.state.database import shared_options
from recallflow.state.directory import StateDirectory
from recallflow.state.state_hash import hash_of
from tests.simulation import kafka as model
from tests.simulation import world as simulated
from tests.simulation.member import DEPLOYMENT, EMBEDDER, ENGINE, SESSION_S, TOPICS, Member, Watcher, patch_members

PARTITIONS = 2
MEMBERS = 3
TENANTS = ("acme", "globex")
USERS = ("ann", "bob", "cy")
SCRIPT_MS = int(simulated.EPOCH_S * 1000) - 86_400_000  # the log time of the first event
ACTIVE_S = 12.0  # actions happen within this time
SETTLE_S = 90.0  # the time for everything to be delivered once faults have ended
COLLECTED = 20  # schedules between two garbage collections

# Most queries list memories: a recall takes ten times as long, and is delivered in the same way.
RECALL = {"type": "recall", "query": "a parcel from Porto", "k": 20}
LISTING = {"type": "memories.list", "limit": 20}
RECALLED = 4
INPUTS = (TOPICS.memory, TOPICS.queries)
Owner = tuple[str, str]


@dataclass(frozen=True)
class Action:
    """One thing that happens in a schedule. `value`: a duration in seconds, a probability, or a number of records."""

    at_s: float
    kind: str
    member: int = 0
    value: float = 0.0


@dataclass(frozen=True)
class Schedule:
    seed: int
    actions: tuple[Action, ...]
    static: tuple[bool, ...] = (False,) * MEMBERS
    twins: bool = False  # the first and the last member have one name

    @property
    def instances(self) -> tuple[str | None, ...]:
        """The `group.instance.id` of each member."""
        names = [f"m{number}" if static else None for number, static in enumerate(self.static)]
        return ("twin", *names[1:-1], "twin") if self.twins else tuple(names)

    def __str__(self) -> str:
        lines = (f"  {one.at_s:6.2f} {one.kind} m{one.member} {one.value:.2f}" for one in self.actions)
        return "\n".join((f"seed {self.seed}, static members {self.static}, twins {self.twins}", *lines))


# kind → weight, and the range of its value
FAULTS: dict[str, tuple[float, float, float]] = {
    "kill": (5, 0.1, 4.0),  # for so long the member stays away
    "crash": (3, 0.1, 4.0),
    "pause": (3, 0.2, SESSION_S * 0.9),
    "zombie": (3, SESSION_S, 2.2 * SESSION_S),
    "stop": (2, 0.1, 3.0),
    "join": (3, 0.0, 0.0),
    "outage": (2, 0.2, 8.0),
    "cut": (3, 0.5, 2.0 * SESSION_S),  # one member from the brokers
    "lossy": (2, 0.1, 0.5),
    "slow": (2, 0.1, 0.6),
    "retention": (1, 0.0, 0.0),
    "ambush": (3, 0.02, 0.7),  # a member is killed so long after it gains a partition
}
LOSSY_S = 4.0
WAIT_MS = (2_000, 5_500)  # of queries for a position
APPENDS: dict[str, tuple[float, float, float]] = {
    "memory": (6, 1, 4),
    "query": (3, 1, 3),
    "waiting": (1.5, 1, 2),  # queries for a position that no record has yet
    "erase": (0.5, 1, 1),
    "misrouted": (0.7, 1, 2),
    "broken": (0.3, 1, 1),  # a record for the dead letters
}


def schedule_of(seed: int) -> Schedule:
    draw = random.Random(seed)
    actions = [Action(0.0, "join", number) for number in range(draw.choice((1, 2, 2, 2)))]
    actions += [_drawn(draw, APPENDS, draw.uniform(0.0, ACTIVE_S)) for _ in range(draw.randint(3, 7))]
    at_s = 2.0
    for _ in range(draw.randint(1, 4)):
        at_s = min(at_s + draw.expovariate(1 / 3.0), ACTIVE_S)
        actions += _with_company(draw, _drawn(draw, FAULTS, at_s))
    static = tuple(draw.random() < 0.25 for _ in range(MEMBERS))
    twins = draw.random() < 0.1
    return Schedule(seed, tuple(sorted(actions, key=lambda one: one.at_s)), static, twins)


def _with_company(draw: random.Random, fault: Action) -> Iterator[Action]:
    """A fault with records under way and another fault soon after."""
    yield fault
    for _ in range(draw.choice((0, 1, 1, 2))):
        yield _drawn(draw, APPENDS, max(0.0, fault.at_s - draw.choice((0.003, 0.006, 0.012, 0.02, 0.04, 0.1, 0.5))))
    if fault.kind in ("pause", "zombie", "cut", "outage") and draw.random() < 0.6:
        yield _drawn(draw, APPENDS, fault.at_s + fault.value * draw.uniform(0.8, 1.0))
    if fault.kind == "cut" and draw.random() < 0.5:  # queries whose wait ends meanwhile
        yield Action(max(0.0, fault.at_s - 0.1), "waiting", 0, draw.uniform(1, 4))
    if fault.kind == "ambush":
        yield _drawn(draw, {kind: FAULTS[kind] for kind in ("stop", "join", "kill")}, fault.at_s)
    if fault.kind in ("stop", "join") and draw.random() < 0.4:
        again_s = fault.at_s + draw.uniform(0.3, 3.0)
        yield _drawn(draw, APPENDS, again_s - draw.uniform(0.0, 0.3))
        yield Action(again_s, "kill", draw.randrange(MEMBERS), draw.uniform(0.1, 2.0))


def _drawn(draw: random.Random, kinds: dict[str, tuple[float, float, float]], at_s: float) -> Action:
    (kind,) = draw.choices([*kinds], [weight for weight, _, _ in kinds.values()])
    _, least, most = kinds[kind]
    return Action(at_s, kind, draw.randrange(MEMBERS), draw.uniform(least, most))


class Script:
    """The records of a schedule. The n-th one of a topic depends on its kind alone: schedules share straight runs."""

    def __init__(self) -> None:
        self._appended = dict.fromkeys(INPUTS, 0)

    def next(self, kind: str) -> tuple[Owner, bytes, int]:
        """The owner, the value and the log time of the next record."""
        topic = TOPICS.queries if kind in ("query", "waiting") else TOPICS.memory
        number = self._appended[topic]
        self._appended[topic] += 1
        owner = TENANTS[number % 2], USERS[(number // 2) % len(USERS)]
        event: dict[str, Any] = {"tenant_id": owner[0], "user_id": owner[1], "id": f"{kind}-{number}"}
        if kind in ("query", "waiting"):
            event |= RECALL if number % RECALLED == 1 else LISTING
        elif kind == "erase":
            event |= {"type": "user.erase", "receipt": True}
        elif kind == "broken":
            event |= {"type": "unknown"}
        else:
            event |= {"type": "memory", "content": f"{tag_of(owner)} sent parcel {number} from Porto", "receipt": True}
        return owner, orjson.dumps(event), SCRIPT_MS + number * 1000


def tag_of(owner: Owner) -> str:
    return f"{owner[0]}-{owner[1]}"


class Watch(Watcher):
    """Sees every append, commit and gain, and raises no error: `broken` is the first invariant that was broken."""

    def __init__(self, world: simulated.World, broker: model.Broker, members: list[Member]) -> None:
        self.world, self.broker, self.members = world, broker, members
        self.broken: str | None = None
        self.expected: set[tuple[str, int, int]] = set()  # records whose first output must come
        self.outputs: dict[tuple[bytes, bytes], str] = {}
        self.delivered: set[tuple[str, int, int]] = set()  # records whose first output is in a topic
        self.changes: set[tuple[str, int, int]] = set()  # records that change the state
        self.owner_of: dict[tuple[str, int, int], Owner] = {}
        self.ambush: Callable[[Member], None] | None = None  # what happens to the next member that gains a partition
        self._checked: dict[int, int] = {}
        self._places: dict[int, PartitionProgress] = {}  # the last one that was checked
        broker.appended.append(self._appended)
        broker.committed.append(self._committed)

    def fail(self, what: str) -> None:
        self.broken = self.broken or f"{self.world.now_s:.3f} s: {what}"
        self.world.is_over = True

    def _appended(self, message: Any) -> None:
        for identity in identity_of(message):
            where = f"{message.topic()}:{message.partition()}:{message.offset()}"
            if (before := self.outputs.get(identity)) is not None:
                sender = message.sender.name if message.sender else "?"
                self.fail(f"output {identity} of {sender} came twice: {before} and {where}")
            self.outputs[identity] = where
            source = Position.parse(identity[0].decode())
            if identity[1] == b"0":
                self.delivered.add(source)
            if message.topic() == TOPICS.memory:  # it was sent on to its owner's partition
                moved = TOPICS.memory, message.partition(), message.offset()
                self.expected.add(moved)
                self.owner_of[moved] = self.owner_of[source]
            elif message.topic() == TOPICS.responses:
                self._check_owner(message, self.owner_of[source])

    def expect_no_receipts(self, owner: Owner) -> None:
        """An erasure takes receipts that are kept until they are delivered."""
        self.expected = {one for one in self.expected if one[0] != TOPICS.memory or self.owner_of[one] != owner}

    def _check_owner(self, message: Any, owner: Owner) -> None:
        body = orjson.loads(message.value() or b"{}")
        if message.key() != "/".join(owner).encode():
            self.fail(f"a response to {owner} has the key {message.key()!r}")
        for found in body.get("memories", ()):
            if tag_of(owner) not in found["content"]:
                self.fail(f"a response to {owner} has a memory of another owner: {found['content']}")

    def _committed(self, part: model.Part, text: str, process: simulated.Process) -> None:
        topic, number = part
        if topic != TOPICS.memory or (place := PartitionProgress.parse(text)) in (None, self._places.get(number)):
            return
        self._places[number] = place
        begun = self._checked.setdefault(number, place.memory.first)
        synced = process.member.synced_positions.get(f"{TOPICS.memory}:{number}", -1)
        for one in range(max(begun, synced + 1), place.memory.first):
            if (TOPICS.memory, number, one) in self.changes and not process.is_dead:
                self.fail(f"{TOPICS.memory}:{number}:{one} is committed as done, and is not synced")
        for one in range(begun, place.memory.first):
            self._check_delivered(TOPICS.memory, number, one)
        self._checked[number] = max(begun, place.memory.first)
        for topic_, partition, one in self.expected:
            if topic_ == TOPICS.queries and partition == number and place.queries.is_done(one):
                self._check_delivered(TOPICS.queries, number, one)

    def _check_delivered(self, topic: str, number: int, offset: int) -> None:
        where = topic, number, offset
        if where in self.expected and where not in self.delivered:
            self.fail(f"{topic}:{number}:{offset} is committed as done, and its output is not delivered")

    def ended(self, member: Member, error: RecallflowError) -> None:
        if not isinstance(error, SinkError | SourceError) or isinstance(error, OutputsGone):
            self.fail(f"{member.name} ended with {error!r}")

    def has_gained(self, member: Member, partitions: Collection[int]) -> None:
        for other in self.members:
            if other is member or other.membership is None or other.membership._lease.seconds_left() == 0:
                continue
            if both := other.membership.partitions & frozenset(partitions):
                self.fail(f"{member.name} and {other.name} own partitions {sorted(both)} at the same time")
        if self.ambush is not None:
            ambush, self.ambush = self.ambush, None
            ambush(member)


@dataclass
class Outcome:
    """The result of a schedule. `broken`: the broken invariant; `trace`: a hash of all decisions."""

    broken: str | None
    trace: int
    outputs: dict[tuple[bytes, bytes], str]
    state: str
    virtual_s: float


class Simulation:
    def __init__(self, schedule: Schedule, world: simulated.World, folder: Path) -> None:
        self.schedule, self.world = schedule, world
        self.broker = model.Broker(world, dict.fromkeys((*TOPICS.read_topics(), *TOPICS.outputs()), PARTITIONS))
        self.members: list[Member] = []
        self.watch = Watch(world, self.broker, self.members)
        self.members += [
            Member(world, f"m{number}", folder / f"m{number}", instance, self.watch)
            for number, instance in enumerate(schedule.instances)
        ]
        self._script = Script()
        self._is_healed = False

    def run(self) -> Outcome:
        for action in self.schedule.actions:
            self.world.later(action.at_s, partial(self._act, action))
        state = ""
        last_s = max((action.at_s for action in self.schedule.actions), default=0.0)
        self.world.run(lambda: False, last_s + 0.01)
        if not self._is_broken:
            self._heal()
            self.world.run(lambda: self._is_settled, SETTLE_S)
            if not self._is_settled and not self._is_broken:
                lost = sorted(self.watch.expected - self.watch.delivered)
                self.watch.fail(f"not delivered {SETTLE_S:.0f} s after all faults: {lost}; owned: {self._owned()}")
        trace, virtual_s = self.world.trace, self.world.now_s
        if not self._is_broken:
            owned = sorted(self._owned().items())
            state = self._within(lambda: hash_of([member.open_partitions[number] for number, member in owned]))
            if state != (straight := self._straight()):
                self.watch.fail(f"the state hash is {state[:8]}, and {straight[:8]} after a straight run")
        return Outcome(self._broken, trace, self.watch.outputs, state, virtual_s)

    @property
    def _broken(self) -> str | None:
        return self.watch.broken or (self.world.failures[0] if self.world.failures else None)

    @property
    def _is_broken(self) -> bool:
        return self._broken is not None

    def _owned(self) -> dict[int, Member]:
        """The member that works on each partition."""
        return {
            number: member
            for member in self.members
            if member.membership is not None
            for number in member.parts.source.partitions()
        }

    @property
    def _is_settled(self) -> bool:
        applied = {
            number: member.open_partitions[number].committed_positions().get(f"{TOPICS.memory}:{number}", -1)
            for number, member in self._owned().items()
            if number in member.open_partitions
        }
        ends = {number: self.broker.logs[TOPICS.memory, number].end - 1 for number in range(PARTITIONS)}
        return self.watch.expected <= self.watch.delivered and applied == ends

    def _act(self, action: Action) -> None:
        running = [one for one in self.members if one.process is not None]
        faulty = action.kind in ("kill", "crash", "pause", "zombie", "stop", "cut")
        member = running[action.member % len(running)] if running and faulty else self.members[action.member]
        match action.kind:
            case kind if kind in APPENDS:
                for _ in range(round(action.value)):
                    self._append(action.kind)
            case "join":
                member.start()
            case "kill" | "crash" if member.process is not None:
                member.kill(machine=action.kind == "crash")
                self.world.later(action.value, member.start)
            case "pause" | "zombie" if member.process is not None:
                process = member.process
                process.pause()
                self.world.later(action.value, process.resume)
            case "stop" if member.process is not None:
                member.stop()
                self.world.later(action.value, member.start)
            case "cut" if member.process is not None:
                process = member.process
                process.is_cut_off = True
                self.world.later(action.value, lambda: setattr(process, "is_cut_off", False))
            case "outage":
                self.broker.is_away = True
                self.world.later(action.value, self._come_back)
            case "lossy":
                self.broker.lost = action.value
                self.world.later(LOSSY_S, lambda: setattr(self.broker, "lost", 0.0))
            case "slow":
                self.broker.delayed = action.value
                self.world.later(LOSSY_S, lambda: setattr(self.broker, "delayed", 0.0))
            case "ambush":
                self.watch.ambush = lambda gaining: self._ambush(gaining, action.value)
            case "retention":
                self._cut()

    def _ambush(self, member: Member, after_s: float) -> None:
        def strike() -> None:
            if not self._is_healed:
                member.kill()
                self.world.later(1.0, member.start)

        self.world.later(after_s * 0.3, lambda: self._append("memory"))
        self.world.later(after_s, strike)

    def _come_back(self) -> None:
        self.broker.is_away = False

    def _append(self, kind: str) -> None:
        if self._is_healed:
            return
        is_query = kind in ("query", "waiting")
        owner, value, append_ms = self._script.next(kind)
        number = state_partition(*owner, PARTITIONS)
        if kind == "misrouted":
            number = 1 - number
        elif kind == "waiting":
            next_ = f"{TOPICS.memory}:{number}:{self.broker.logs[TOPICS.memory, number].end}"
            value = orjson.dumps(
                orjson.loads(value) | {"wait_for": next_, "wait_timeout_ms": self.world.random.randint(*WAIT_MS)}
            )
        topic = TOPICS.queries if is_query else TOPICS.memory
        message = self.broker.append(
            (topic, number), "/".join(owner).encode(), value, append_ms=None if is_query else append_ms
        )
        where = topic, number, message.offset()
        self.watch.owner_of[where] = owner
        if kind == "memory":
            self.watch.changes.add(where)
        elif kind == "erase":
            self.watch.expect_no_receipts(owner)
        # Nobody waits for an answer to what was asked before there was an engine.
        if not is_query or (TOPICS.memory, number) in self.broker.group(DEPLOYMENT).offsets:
            self.watch.expected.add(where)

    def _cut(self) -> None:
        """Let retention take queries that are done for good, and older than any mark that counts."""
        offsets = self.broker.group(DEPLOYMENT).offsets
        places = [
            PartitionProgress.parse(offsets.get((TOPICS.memory, number), (0, ""))[1]) for number in range(PARTITIONS)
        ]
        oldest_ms = min(0 if place is None else place.at_ms for place in places)
        for number in range(PARTITIONS):
            done, _ = offsets.get((TOPICS.queries, number), (0, ""))
            log = self.broker.logs[TOPICS.queries, number]
            while log.low < done and log.records[log.low].append_ms < oldest_ms:
                log.low += 1

    def _heal(self) -> None:
        """End all faults, and let a member run that was never started if none does."""
        self._is_healed, self.watch.ambush = True, None
        self._come_back()
        self.broker.lost = self.broker.delayed = 0.0
        for member in self.members:
            if member.process is not None:
                member.process.is_cut_off = False
                member.process.resume()
        if all(not member.is_wanted for member in self.members):
            self.members[0].start()

    def _straight(self) -> str:
        """The state hash after the same logs without faults, in one process."""
        logs = {number: self.broker.logs[TOPICS.memory, number].records for number in range(PARTITIONS)}
        key = tuple(
            (number, one.value(), one.append_ms, one.headers() is None) for number, log in logs.items() for one in log
        )
        if key not in _straight:
            _straight[key] = self._within(lambda: straight_hash(logs))
        return _straight[key]

    def _within(self, work: Callable[[], str]) -> str:
        found: list[str] = []
        reference = self.world.process("reference")
        reference.spawn(lambda: found.append(work()), "main")
        self.world.run(lambda: bool(found), 10.0)
        return found[0] if found else ""

    def end(self) -> None:
        for member in self.members:
            member.end()


_straight: dict[Any, str] = {}


def straight_hash(logs: dict[int, list[model.Message]]) -> str:
    """Apply logs of memory partitions in order, without faults, to a new directory."""
    engine = replace(ENGINE, partitions=PARTITIONS)
    rules = engine.rules(EMBEDDER, TOPICS.queries, {TOPICS.responses: PARTITIONS}, input_ends=True)
    homes = OwningPartitions(PARTITIONS)
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        opened = StateDirectory.open(Path(folder) / "state", engine.fingerprint(EMBEDDER), engine.cache_bytes)
        with opened as directory:
            open_step = state_opener(directory, EMBEDDER, rules)
            for number, log in logs.items():
                step = open_step(number)
                items = [homes.judge(decode(record_of(message))) for message in log]
                step.apply(prepare(EMBEDDER, items))
                step.end()
            return hash_of(directory.existing_partitions())


SHM = "/dev/shm" if Path("/dev/shm").is_dir() else None
_REPLACED = {
    threading: simulated.THREADING, threading.Lock: simulated.Lock, time: simulated.TIME,
    time.monotonic: simulated.monotonic, time.perf_counter: simulated.monotonic, time.time: simulated.wall_s,
    uuid: simulated.UUID, concurrent.futures.Future: simulated.Future,
    concurrent.futures.wait: simulated.wait_for_all,
    concurrent.futures.ThreadPoolExecutor: simulated.ThreadPoolExecutor, confluent_kafka.Consumer: model.Consumer,
    confluent_kafka.Producer: model.Producer, confluent_kafka.admin.AdminClient: model.AdminClient,
}  # fmt: skip


@contextlib.contextmanager
def simulating() -> Iterator[None]:
    patches = simulated.Patches(_REPLACED)
    try:
        patches.apply()
        # Waits that an event ends anyway; polling more seldom costs the model no behaviour.
        patches.replace(input_scheduler, "WAIT_S", 0.3)
        patches.replace(input_scheduler, "POLL_S", 0.4)
        patches.replace(membership, "POLL_S", 0.2)
        patches.replace(ownership, "PAUSE_S", 0.05)
        patches.replace(group_consumer, "COMMIT_TIMEOUT_S", 2.0)  # shorter than the session, as by default
        patches.replace(state_directory, "shared_options", _quick_options)
        patch_members(patches)
        patches.replace(control, "POLL_S", 1.0)
        for module, name in (
            (cluster, "OUTAGE_CHECK_INTERVAL_S"),
            (cluster, "POLL_INTERVAL_S"),
            (partition_copies, "RELEASED_INTERVAL_S"),
        ):
            patches.replace(module, name, 3 * getattr(module, name))
        logging.disable(logging.CRITICAL)
        gc.freeze()  # what is there by now is not looked through again
        gc.disable()
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        logging.disable(logging.NOTSET)
        patches.undo()  # also where a name is missing: other tests share the process


def _quick_options(partitions: int) -> rocksdict.Options:
    """Return options of RocksDB for fast opening."""
    found = shared_options(partitions)
    found.set_max_file_opening_threads(1)
    found.set_skip_stats_update_on_db_open(True)
    found.set_stats_dump_period_sec(0)
    found.set_stats_persist_period_sec(0)
    found.set_max_open_files(100)
    return found


def run(schedule: Schedule) -> Outcome:
    folder = Path(tempfile.mkdtemp(dir=SHM))
    with simulated.running(schedule.seed) as world:
        simulation = Simulation(schedule, world, folder)
        try:
            with model.connected(simulation.broker):
                return simulation.run()
        finally:
            simulation.end()
            shutil.rmtree(folder, ignore_errors=True)
            vars(simulation.broker).clear()  # the cycles of most objects end here, so that few are left to collect
            vars(simulation).clear()
            if next(_runs) % COLLECTED == 0:
                gc.collect()


_runs = itertools.count()


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool] = lambda one: run(one).broken is not None) -> Schedule:
    """Leave out actions, one after the other, as long as the schedule fails."""
    shorter = True
    while shorter:
        shorter = False
        for place in reversed(range(len(schedule.actions))):
            actions = schedule.actions[:place] + schedule.actions[place + 1 :]
            if fails(smaller := replace(schedule, actions=actions)):
                schedule, shorter = smaller, True
    return schedule
