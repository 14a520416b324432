"""Schedules of the simulation, run by processes on the real broker: the outcome is that of the model."""

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.broker import Cluster
from benchmarks.fleet import engine
from benchmarks.kafka_flow import own_topics
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.messages import identity_of
from recallflow.flows.topics import Topics
from recallflow.owner import state_partition
from recallflow.state.directory import StateDirectory, describe
from recallflow.state.logical import hash_of
from recallflow.state.partition import Partition
from tests.kafka.harness import FLAGS, GIVE_UP_S, Names, read_topic, until
from tests.simulation import schedule
from tests.simulation.coordinator import SCENARIOS, Group, Scenario
from tests.simulation.member import ENGINE, SESSION_S, TOPICS
from tests.simulation.schedule import MEMBERS, PARTITIONS, Action, Outcome, Schedule, Script, events_of, straight_hash
from tests.starts import COMMAND

SEEDS = range(1, 21)
AT_ONCE = 7  # schedules that run at the same time
FIRST_S = 5.0  # every partition has an owner before the first event
ACTIVE_S = 4.0
KINDS: dict[str, tuple[float, float, float]] = {  # weight, and the range of the value
    "memory": (6, 1, 4),
    "query": (4, 1, 3),
    "misrouted": (1, 1, 2),
    "broken": (1, 1, 1),
    "kill": (3, 0.1, 2.0),
    "stop": (2, 0.1, 2.0),
    "join": (2, 0, 0),
    "pause": (2, 0.2, SESSION_S / 3),
}
LATE_MS = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}  # records have the log times of the script

# An output: its topic's field in `Topics`, the event's id, and its number among the outputs of that record.
Outputs = Counter[tuple[str, str, int]]
Due = tuple[float, int, Callable[[], None]]  # time in the schedule, order among equal times


def drawn(seed: int) -> Schedule:
    """Draw a schedule of what processes can do in a few seconds."""
    draw = random.Random(seed)
    actions = [Action(0.0, "join", number) for number in range(draw.choice((1, 2)))]
    kinds, weights = [*KINDS], [weight for weight, _, _ in KINDS.values()]
    for kind in draw.choices(kinds, weights, k=draw.randint(6, 10)):
        at_s = FIRST_S + draw.uniform(0.0, ACTIVE_S)
        actions.append(Action(at_s, kind, draw.randrange(MEMBERS), draw.uniform(*KINDS[kind][1:])))
    static = tuple(draw.random() < 0.3 for _ in range(MEMBERS))
    return Schedule(seed, tuple(sorted(actions, key=lambda one: one.at_s)), static)


def outputs_of(found: dict[tuple[bytes, bytes], str] | list[Any], events: dict[str, str], topics: Topics) -> Outputs:
    """Name outputs by their events: the offset of a record that was forwarded depends on the time."""
    names = {getattr(topics, field.name): field.name for field in fields(topics)}
    placed = (
        [(identity, where.partition(":")[0]) for identity, where in found.items()]
        if isinstance(found, dict)
        else [(identity, one.topic()) for one in found for identity in identity_of(one)]
    )
    return Counter((names[topic], events[source.decode()], int(number)) for (source, number), topic in placed)


@dataclass
class Process:
    """A member in a process of its own."""

    words: list[str]
    folder: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.running is None:
            with self.folder.with_suffix(".log").open("ab") as log:
                self.running = engine.spawn(COMMAND, self.words, log.fileno())

    def kill(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running.wait()
            self.running = None

    def stop(self) -> None:
        """Ask it to end in order, and wait. While its modules are imported, the signal ends it at once."""
        if self.running is not None:
            self.running.send_signal(signal.SIGTERM)
            assert self.running.wait(GIVE_UP_S) in (0, -signal.SIGTERM), self.said()
            self.running = None

    def signal(self, number: signal.Signals) -> None:
        if self.running is not None:
            self.running.send_signal(number)

    def said(self) -> str:
        return self.folder.with_suffix(".log").read_text()


class Run:
    """A schedule on the real broker."""

    def __init__(self, broker: Cluster, chosen: Schedule, folder: Path) -> None:
        self.broker, self.schedule = broker, chosen
        self.topics = own_topics()
        self.deployment = f"simulated-{self.topics.memory}"
        counts = dict.fromkeys((*self.topics.read(), *self.topics.outputs()), PARTITIONS)
        broker.create_topics({**counts, self.topics.control: 1}, LATE_MS)
        self.options = KafkaOptions(broker.bootstrap_servers)
        names = [word for flag, name in FLAGS.items() for word in (flag, getattr(self.topics, name))]
        shared = ["--bootstrap-servers", broker.bootstrap_servers, "--deployment", self.deployment, *names]
        shared += ["--embedder", "hash", "--cache-bytes", "1MiB", "--session-timeout-s", f"{SESSION_S:g}", "--create"]
        self.members = []
        for number, instance in enumerate(chosen.instances):
            place = folder / f"m{number}"
            folder.mkdir(exist_ok=True)
            static = [] if instance is None else ["--instance-id", instance]
            self.members.append(Process(["run", "--state-dir", str(place), *shared, *static], place))
        self._script = Script()
        self._producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
        self._again: list[Due] = []  # what begins after the schedule's actions

    def run(self, expected: int) -> tuple[Outputs, dict[int, int], str, str]:
        """Return the outputs, the applied positions, the state hash, and that of a straight run over the same log."""
        try:
            self._act_all()
            until_s = time.monotonic() + GIVE_UP_S
            while len(self._outputs()) < expected and time.monotonic() < until_s:
                time.sleep(0.3)
            for member in self.members:
                member.stop()
            memories = read_topic(self.broker, self.topics.memory)
            events = events_of([*memories, *read_topic(self.broker, self.topics.queries)])
            found = outputs_of(self._outputs(), events, self.topics)
            logs = {number: [one for one in memories if one.partition() == number] for number in range(PARTITIONS)}
            return found, *self._state(), straight_hash(logs)
        finally:
            for member in self.members:
                member.kill()

    def _act_all(self) -> None:
        actions = self.schedule.actions
        due: list[Due] = [(one.at_s, number, partial(self._act, one)) for number, one in enumerate(actions)]
        begun_s: float | None = None
        while due or self._again:
            due += self._again
            self._again.clear()
            due.sort(key=lambda one: one[:2], reverse=True)
            at_s, _, act = due.pop()
            if at_s >= FIRST_S and begun_s is None:
                self._await_owners()
                begun_s = time.monotonic() - FIRST_S
            if begun_s is not None:
                time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
            act()
        assert self._producer.flush(GIVE_UP_S) == 0
        if all(member.running is None for member in self.members):
            self.members[0].start()

    def _await_owners(self) -> None:
        """Return once each partition has a committed offset: queries count from then on."""
        asked = [TopicPartition(self.topics.memory, number) for number in range(PARTITIONS)]
        with closing(Consumer(self.options.consumer() | {"group.id": self.deployment})) as consumer:

            def are_owned() -> bool:
                with suppress(KafkaException):  # the coordinator of a new group is away at first
                    return all(one.offset >= 0 for one in consumer.committed(asked, timeout=GIVE_UP_S))
                return False

            until(are_owned)

    def _act(self, action: Action) -> None:
        running = [one for one in self.members if one.running is not None]
        is_fault = action.kind in ("kill", "stop", "pause")
        member = running[action.member % len(running)] if running and is_fault else self.members[action.member]
        match action.kind:
            case "join":
                member.start()
            case "kill" | "stop" if member.running is not None:
                member.kill() if action.kind == "kill" else member.stop()
                self._later(action, member.start)
            case "pause" if member.running is not None:
                member.signal(signal.SIGSTOP)
                self._later(action, partial(member.signal, signal.SIGCONT))
            case "memory" | "query" | "misrouted" | "broken":
                for _ in range(round(action.value)):
                    self._append(action.kind)

    def _later(self, action: Action, call: Callable[[], None]) -> None:
        self._again.append((action.at_s + action.value, len(self.schedule.actions), call))

    def _append(self, kind: str) -> None:
        owner, value, log_ms = self._script.next(kind)
        number = state_partition(*owner, PARTITIONS)
        number = 1 - number if kind == "misrouted" else number
        topic = self.topics.queries if kind == "query" else self.topics.memory
        self._producer.produce(topic, value, "/".join(owner), number, timestamp=log_ms)

    # ------------------------------------------------------------------ the outcome

    def _outputs(self) -> list[Any]:
        """Return all messages that the engine wrote, with those that it forwarded."""
        topics = (self.topics.memory, *self.topics.outputs())
        return [one for topic in topics for one in read_topic(self.broker, topic) if identity_of(one)]

    def _state(self) -> tuple[dict[int, int], str]:
        """Return the applied positions and the state hash of the partitions that are ahead."""
        with ExitStack() as stack:
            newest: dict[int, tuple[int, int, Partition]] = {}
            for place, member in enumerate(self.members):
                if not member.folder.exists():
                    continue
                found = describe(member.folder)[0]
                directory = stack.enter_context(StateDirectory.open(member.folder, found, ENGINE.cache_bytes))
                for partition in directory.existing_partitions():
                    applied = partition.committed_positions().get(f"{self.topics.memory}:{partition.number}", -1)
                    copy = applied, place, partition
                    newest[partition.number] = max(newest.get(partition.number, copy), copy, key=lambda one: one[0])
            applied_positions = {number: applied for number, (applied, _, _) in newest.items() if applied >= 0}
            return applied_positions, hash_of([partition for _, _, partition in newest.values()])


@pytest.fixture(scope="module")
def modelled() -> dict[int, Outcome]:
    """Return the outcome of each schedule on the model."""
    with schedule.simulating():
        return {seed: schedule.run(drawn(seed)) for seed in SEEDS}


def test_schedules_have_the_outcome_of_the_model(broker: Cluster, tmp_path: Path, modelled: dict[int, Outcome]) -> None:
    def run(seed: int) -> str | None:
        model, chosen = modelled[seed], drawn(seed)
        expected = outputs_of(model.outputs, model.events, TOPICS)
        applied: dict[int, int] = {}
        for position in model.events:
            topic, number, offset = position.split(":")
            if topic == TOPICS.memory:
                applied[int(number)] = max(applied.get(int(number), -1), int(offset))
        real = Run(broker, chosen, tmp_path / str(seed))
        outputs, positions, state, straight = real.run(expected.total())
        is_alike = any(action.kind == "misrouted" for action in chosen.actions) or state == model.state
        if (model.broken, outputs, positions, state, is_alike) == (None, expected, applied, straight, True):
            return None
        lost, more = expected - outputs, outputs - expected
        return (
            f"{chosen}\nmodel broke {model.broken}; only in the model {lost}, only on the broker {more}; applied "
            f"{applied}, {positions}; hashes {model.state[:8]}, {state[:8]}, straight {straight[:8]}"
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        differing = [one for one in pool.map(run, SEEDS) if one is not None]
    assert not differing, "\n".join(differing)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_coordinator_gives_the_results_of_the_model(broker: Cluster, topics: Names, scenario: Scenario) -> None:
    topic = topics("memory.events")
    broker.create_topics({topic: PARTITIONS})
    with closing(Group(Consumer, KafkaOptions(broker.bootstrap_servers).consumer(), topics("group"), topic)) as group:
        assert scenario(group) == SCENARIOS[scenario]
