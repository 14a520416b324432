"""Gateways in processes of their own, and clients that check by a secret that each answer is theirs."""

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

import aiohttp
import orjson

from benchmarks.broker import HOST, Cluster, free_ports, retry
from benchmarks.kafka_flow import READY_S, TENANT
from benchmarks.kafka_load import produce, until_applied
from recallflow.flows.settings import TopicNames

COMMAND = "import sys; from recallflow.cli import main; sys.exit(main())"
FACTS = 10  # a person's memories
ANSWER_S = 30.0
GONE_S = 120.0  # longest outage of a gateway: its restart waits for others, on busy cores
AGAIN_S = 0.05  # a gateway that is gone is asked again after so long
JSON = {"content-type": "application/json"}


# ---------------------------------------------------------------------- gateways


class Gateway:
    def __init__(self, cluster: Cluster, topics: TopicNames, *flags: str) -> None:
        port = free_ports(None)[0]
        self.url = f"http://{HOST}:{port}"
        named = {
            "--memory-topic": topics.memory, "--query-topic": topics.queries, "--control-topic": topics.control,
            "--response-topic": topics.responses, "--receipt-topic": topics.receipts,
            "--dead-letter-topic": topics.dead_letters, "--bootstrap-servers": cluster.bootstrap_servers,
            "--host": HOST, "--port": str(port),
        }  # fmt: skip
        self._words = ["serve", *(word for pair in named.items() for word in pair), *flags]

    @contextmanager
    def running(self, log: Path | None = None) -> Iterator["subprocess.Popen[bytes]"]:
        """Yield the process once it is ready; RuntimeError after READY_S. `log` gets its output."""
        with (log or Path(os.devnull)).open("ab") as said:
            command = [sys.executable, "-c", COMMAND, *self._words]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=said)
            try:
                self._await(process)
                yield process
            finally:
                process.kill()
                process.wait()

    def is_ready(self) -> bool:
        with suppress(URLError, ConnectionError):  # a status but 2xx is one of these, too
            urllib.request.urlopen(f"{self.url}/readyz").close()
            return True
        return False

    def _await(self, process: "subprocess.Popen[bytes]") -> None:
        def has_begun() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the gateway has ended by itself, with exit code {process.returncode}")
            return self.is_ready()

        if not retry(has_begun, time.monotonic() + READY_S):
            raise RuntimeError(f"the gateway was not ready within {READY_S:.0f} s")


# ---------------------------------------------------------------------- people


class Person(NamedTuple):
    """A user, and a word that only this user's memories contain."""

    user: str
    secret: str

    def events(self) -> Iterator[bytes]:
        for number in range(FACTS):
            said = {"content": f"Code {number} of {self.user} is {self.secret}", "kind": "fact", "id": f"m{number}"}
            yield orjson.dumps({"type": "memory", "tenant_id": TENANT, "user_id": self.user} | said)

    def query(self, query_id: str) -> bytes:
        asked = {"query": "What is my code?", "k": 3, "id": query_id}
        return orjson.dumps({"type": "recall", "tenant_id": TENANT, "user_id": self.user} | asked)


def people(cluster: Cluster, topics: TopicNames, count: int) -> list[Person]:
    """Create this many users, whose memories are applied."""
    every = [Person(f"user{number}", uuid.uuid4().hex) for number in range(count)]
    last = produce(cluster, topics.memory, (event for person in every for event in person.events()))
    until_applied(cluster, topics, last)
    return every


@dataclass
class Tally:
    """Answers to users. `lost`: questions without an answer; `crossed`: answers to somebody else's question."""

    times_ms: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    crossed: list[str] = field(default_factory=list)
    retried: int = 0

    def judge(self, person: Person, query_id: str, status: int, body: bytes) -> None:
        answer: Any = orjson.loads(body)
        if status != 200:
            self.lost.append(f"{person.user} {query_id}: {status} {answer['error']['code']}")
            return
        found = [memory["content"] for memory in answer["memories"]]
        if answer["query_id"] != query_id or not found or not all(person.secret in content for content in found):
            self.crossed.append(f"{person.user} {query_id}: {answer['query_id']} {found}")


async def ask(
    session: aiohttp.ClientSession, url: str, person: Person, query_id: str, tally: Tally, *, again: bool = False
) -> None:
    """One question. `again`: it is asked anew while the gateway is gone."""
    body, until_s = person.query(query_id), time.monotonic() + GONE_S
    while True:
        try:
            async with session.post(f"{url}/memory/query", data=body, headers=JSON) as response:
                tally.judge(person, query_id, response.status, await response.read())
                return
        except (aiohttp.ClientError, TimeoutError) as error:
            if not again or time.monotonic() > until_s:
                tally.lost.append(f"{person.user} {query_id}: {type(error).__name__}")
                return
            tally.retried += 1
            await asyncio.sleep(AGAIN_S)


async def crowd(
    urls: Sequence[str], every: Sequence[Person], goes_on: Callable[[], bool], tally: Tally, *, again: bool = False
) -> None:
    """Everybody asks, each on a connection of their own and as soon as the last answer is there, while `goes_on()`.
    All use the same ids."""

    async def one(number: int, person: Person) -> None:
        url, asked = urls[number % len(urls)], 0
        async with connection() as session:
            while goes_on():
                began_s = time.perf_counter()
                await ask(session, url, person, f"q{asked}", tally, again=again)
                tally.times_ms.append((time.perf_counter() - began_s) * 1000)
                asked += 1

    await asyncio.gather(*(one(number, person) for number, person in enumerate(every)))


def connection() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1), timeout=aiohttp.ClientTimeout(total=ANSWER_S))
