"""A steady stream of memories and questions of many owners, drawn from a seed: sound ones, odd ones and garbage."""

import random
import threading
from typing import Any

from benchmarks.torture.log import ANSWER, LETTER, RECEIPT, REFUSED_ANSWER, TENANT, Log, Sent

OWNERS = 40
OPEN_MAX = 400  # records that are sent and not in their topic: while the broker is away, it waits
GARBAGE = (
    b"",
    b"{",
    b"\xff\xfe{\x00",
    b"[1, 2]",
    b"\x00\x00\x00\x00\x01{}",
    b'{"type": "message"}',
    b"null",
    b'"x"' * 500,
)
ODD_HEADERS = ([("traceparent", b"00-1-2-01"), ("empty", b"")], [("null", None)], [("same", b"1"), ("same", b"2")])
BIG_BYTES = (20_000, 300_000, 980_000)
WORDS = ("walnut", "harbour", "violin", "ticket", "lantern", "garden", "bicycle", "sister", "launch", "coffee")


class Producer(threading.Thread):
    """Sends until it is told to stop. `paused` holds it back; `lock` of the log keeps others out for a moment."""

    def __init__(self, log: Log, seed: int, per_second: float) -> None:
        super().__init__(daemon=True)
        self._log = log
        self._random = random.Random(seed)
        self._pause_s = 1 / per_second
        self._over = threading.Event()
        self.error: Exception | None = None
        self._told: dict[str, list[Sent]] = {}

    def run(self) -> None:
        try:
            while not self._over.wait(self._pause_s * self._random.uniform(0.2, 1.8)):
                if self._log.waiting() < OPEN_MAX:
                    self.step()
        except Exception as error:  # noqa: BLE001 - told to whoever ends the run
            self.error = error

    def end(self) -> None:
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error

    def step(self) -> None:
        """One or two records."""
        draw = self._random
        user = f"user{int(OWNERS * draw.random() ** 2)}"
        told = self._told.setdefault(user, [])
        match draw.choices(("tell", "change", "forget", "ask", "odd"), (50, 10, 4, 30, 6))[0]:
            case "change" if told:
                old = draw.choice(told)
                self._log.tell(user, "memory.update", memory_id=old.query_id, content=self._text())
            case "forget" if told:
                old = told.pop(draw.randrange(len(told)))
                self._log.tell(user, "memory.forget", memory_id=old.query_id)
            case "ask" if told:
                self._ask(user, draw.choice(told))
            case "odd":
                self._odd(user)
            case _:
                mark = f"mark{self._log.number()}"
                told.append(self._log.tell(user, content=self._text(), tags=[mark]))

    def _text(self) -> str:
        """Some words; now and then many."""
        words = " ".join(self._random.choices(WORDS, k=self._random.randint(3, 30)))
        if self._random.random() < 0.01:
            words = (words + " ") * (self._random.choice(BIG_BYTES) // (len(words) + 1))
        return words.strip()

    def _ask(self, user: str, old: Sent) -> None:
        """A question; one in two waits for a memory that its tag alone lets through."""
        kind = self._random.choice(
            ("recall", "marked", "marked", "memory.get", "memory.history", "user.stats", "context")
        )
        assert old.event is not None
        match kind:
            case "marked" if old.position:
                mark: dict[str, Any] = {"filters": {"tags": old.event["tags"]}, "wait_for": old.position}
                self._log.ask(user, "recall", query="walnut", **mark).expects = old.query_id
            case "memory.get" | "memory.history":
                sent = self._log.ask(user, kind, memory_id=old.query_id)
                sent.wants = [ANSWER]
            case "user.stats":
                self._log.ask(user, kind)
            case "context":
                self._log.ask(user, "recall", query=self._text()[:200], max_tokens=1_000_000, k=50)
            case _:
                self._log.ask(user, "recall", query=self._text()[:200], k=self._random.randint(-1, 60))

    def _odd(self, user: str) -> None:
        draw = self._random
        key = f"{TENANT}/{user}".encode()
        match draw.randrange(6):
            case 0:
                self._log.raw("memory", draw.choice(GARBAGE), key=key)
            case 1:
                self._log.raw("query", draw.choice(GARBAGE), key=key)
            case 2:
                self._log.raw("memory", None, key=key)
            case 3:
                event = {
                    "type": "recall",
                    "tenant_id": TENANT,
                    "user_id": user,
                    "id": f"bad{self._log.number()}",
                    "k": "x",
                }
                self._log.event("query", event, [REFUSED_ANSWER])
            case 4:
                ended: dict[str, Any] = {"type": "episode.end", "tenant_id": TENANT, "user_id": user, "receipt": True}
                self._log.event("memory", ended, [RECEIPT, LETTER], headers=draw.choice(ODD_HEADERS))
            case _:
                self._log.raw("memory", b"x" * draw.choice((1_000, 600_000, 1_040_000)), key=key)
