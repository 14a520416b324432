"""Seeded traffic: memories, changes and queries of many owners with a Zipf distribution, a share of it misrouted."""

import random
import threading
import zlib
from typing import Any

from tests.fleet.records import AS_USUAL, How, Log, Reader, Sent, who

WORDS = ("walnut", "harbour", "violin", "ticket", "lantern", "garden", "bicycle", "sister", "launch", "coffee")
OPEN_MAX = 400  # records that are not delivered yet: the producer waits while the broker is unavailable
OWNERS = 200
TENANTS = {"acme": 6, "globex": 3, "initech": 1}
KINDS = {"tell": 50, "change": 12, "forget": 5, "ask": 33}
QUESTIONS = ("recall", "marked", "marked", "memory.get", "memory.history", "memories.list", "user.stats")
TRIES = 20  # owners that are looked at for one who may speak


def owners(draw: random.Random, count: int = OWNERS) -> dict[str, float]:
    """Owners of three tenants, with how often each comes up: the n-th 1/n times as often as the first."""
    tenants = draw.choices([*TENANTS], [*TENANTS.values()], k=count)
    return {f"{tenant}/user{number}": 1 / (number + 1) for number, tenant in enumerate(tenants)}


class Astray:
    """Where records land that are not keyed as they should be."""

    def __init__(self, draw: random.Random, share: float, partitions: int) -> None:
        self._draw, self._share, self._partitions = draw, share, partitions

    def way(self, owner: str) -> How:
        """As usual, or for a share of records: without a key, at any partition, or where librdkafka's own default would
        put it."""
        if self._draw.random() >= self._share:
            return AS_USUAL
        anywhere = self._draw.randrange(self._partitions)
        key = "/".join(who(owner).values()).encode()
        ways: list[How] = [
            {"partition": anywhere}, {"partition": anywhere, "key": None},
            {"partition": zlib.crc32(key) % self._partitions},
        ]  # fmt: skip
        return self._draw.choice(ways)


class Traffic(threading.Thread):
    """A producer that sends records until it is told to stop.

    An owner with a misrouted memory event sends nothing more until its receipt is there: the model needs an order, and
    there is none between two partitions.
    """

    def __init__(self, log: Log, reader: Reader, seed: int, per_second: float, misrouted: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._log, self._reader = log, reader
        self._random = random.Random(seed)
        self._pause_s = 1 / per_second
        self._over = threading.Event()
        self._owners = owners(self._random)
        self._ways = Astray(self._random, misrouted, len(log.topics.bounds("memory")))
        self._told: dict[str, list[Sent]] = {}
        self._open: dict[str, Sent] = {}
        self.error: Exception | None = None
        self.astray = 0

    def run(self) -> None:
        try:
            while not self._over.wait(self._pause_s * self._random.uniform(0.2, 1.8)):
                if self._log.waiting() < OPEN_MAX:
                    self.step()
        except Exception as error:  # noqa: BLE001 - `end` raises it
            self.error = error

    def end(self) -> None:
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error

    def step(self) -> None:
        owner = next((owner for owner in self._drawn() if self._may_speak(owner)), None)
        if owner is None:
            return
        told = self._told.setdefault(owner, [])
        match self._random.choices([*KINDS], [*KINDS.values()])[0]:
            case "change" if told:
                old = self._random.choice(told)
                self._tell(owner, "memory.update", memory_id=old.query_id, content=self._text())
            case "forget" if told:
                old = told.pop(self._random.randrange(len(told)))
                self._tell(owner, "memory.forget", memory_id=old.query_id)
            case "ask" if told:
                self._ask(owner, self._random.choice(told))
            case _:
                told.append(self._tell(owner, "memory", content=self._text(), tags=[f"mark{self._log.number()}"]))

    def _drawn(self) -> list[str]:
        return self._random.choices([*self._owners], [*self._owners.values()], k=TRIES)

    def _may_speak(self, owner: str) -> bool:
        if (sent := self._open.get(owner)) is None:
            return True
        if ("receipt", sent.position) not in self._reader.seen:
            return False
        del self._open[owner]
        return True

    def _tell(self, owner: str, event_type: str, **fields: Any) -> Sent:
        how = self._ways.way(owner)
        sent = self._log.tell(owner, event_type, how=how, **fields)
        if how:
            self._open[owner] = sent
            self.astray += 1
        return sent

    def _ask(self, owner: str, old: Sent) -> None:
        """A question; one in three waits for a memory that its tag alone lets through."""
        assert old.event is not None
        how, kind = self._ways.way(owner), self._random.choice(QUESTIONS)
        self.astray += bool(how)
        match kind:
            case "marked" if old.position:
                mark: dict[str, Any] = {"filters": {"tags": old.event["tags"]}, "wait_for": old.position}
                self._log.ask(owner, "recall", how=how, query=self._text(), **mark).expects = old.query_id
            case "memory.get" | "memory.history":
                self._log.ask(owner, kind, how=how, memory_id=old.query_id)
            case "memories.list" | "user.stats":
                self._log.ask(owner, kind, how=how)
            case _:
                self._log.ask(owner, "recall", how=how, query=self._text(), k=5)

    def _text(self) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randint(3, 30)))
