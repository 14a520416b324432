"""POST /memory/events/batch: one result for each line."""

import asyncio
import gc
import http.client
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from recallflow.connectors.http import handler
from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.errors import Problem
from recallflow.connectors.http.handler import PENDING_BYTES, PENDING_LINES, lines
from recallflow.connectors.http.requests import Limits
from recallflow.events import Event
from tests.unit.gateway.serving import Engine, Everybody, Undecided, gateway

LINES = {"content-type": "application/x-ndjson"}
EVENT = {"type": "memory", "tenant_id": "acme", "user_id": "ann"}
MOST = 4_096


def line(content: str) -> bytes:
    return orjson.dumps(EVENT | {"content": content}) + b"\n"


@pytest.fixture(scope="module")
def limits() -> Limits:
    return Limits(body_bytes=MOST)


def post(client: httpx.Client, body: bytes | Iterator[bytes]) -> list[dict[str, object]]:
    answered = client.post("/memory/events/batch", content=body, headers=LINES)
    assert (answered.status_code, answered.headers["content-type"]) == (200, LINES["content-type"])
    return [orjson.loads(one) for one in answered.content.splitlines()]


def test_each_line_has_its_result_in_order(engine: Engine, client: httpx.Client) -> None:
    found = post(client, line("a") + b'{"type": "memory"}\n\n' + line("b") + line("c").rstrip())
    assert [one["line"] for one in found] == [1, 2, 4, 5]
    assert ["error" in one for one in found] == [False, True, False, False]
    assert [event.content for event, _ in engine.stored] == ["a", "b", "c"]  # type: ignore[union-attr]


@pytest.mark.parametrize("piece", [1, 1_000], ids=["in pieces", "at once"])
def test_result_carries_its_line_number(client: httpx.Client, piece: int) -> None:
    body = b"\n  \n" + line("a") + b"\r\n{}\n" + line("x" * MOST) + b"\n\n" + line("b") + b"\n"
    found = post(client, (body[at : at + piece] for at in range(0, len(body), piece)))
    assert [one["line"] for one in found] == [3, 5, 6, 9]
    assert ["error" in one for one in found] == [False, True, True, False]


def test_a_line_that_is_too_long_costs_no_other(engine: Engine, client: httpx.Client) -> None:
    found = post(client, line("a") + line("x" * 40 * MOST) + line("b") + line("y" * MOST))
    errors = [one.get("error", {}).get("code") for one in found]  # type: ignore[attr-defined]
    assert (errors, len(engine.stored)) == ([None, "too_large", None, "too_large"], 2)


def test_internal_error_fails_one_line_and_is_not_logged(
    engine: Engine, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: Event) -> None:
        if event.user_id == "bob":
            raise RuntimeError(str(event))

    engine.refuse = fail
    bobs = orjson.dumps(EVENT | {"user_id": "bob", "content": "green tea"}) + b"\n"
    found = post(client, line("a") + bobs + bobs + line("c"))
    codes = [one.get("error", {}).get("code") for one in found]  # type: ignore[attr-defined]
    assert codes == [None, "internal_error", "internal_error", None]
    gc.collect()  # what asyncio says of an error that nobody asked for
    logged = [record.__dict__["error_id"] for record in caplog.records if "error_id" in record.__dict__]
    assert [error_id in str(one) for error_id, one in zip(logged, found[1:3], strict=True)] == [True, True]
    assert "green tea" not in caplog.text + str(found)


@contextmanager
def begun(client: httpx.Client) -> Iterator[http.client.HTTPConnection]:
    """Open a connection that has sent the headers of a chunked batch."""
    connection = http.client.HTTPConnection(urlsplit(str(client.base_url)).netloc, timeout=30)
    connection.putrequest("POST", "/memory/events/batch")
    connection.putheader("transfer-encoding", "chunked")
    connection.putheader("content-type", LINES["content-type"])
    connection.endheaders()
    with closing(connection):
        yield connection


def send(connection: http.client.HTTPConnection, sent: bytes) -> None:
    connection.send(b"%x\r\n%s\r\n" % (len(sent), sent))


def test_results_come_while_lines_are_still_sent(client: httpx.Client) -> None:
    with begun(client) as connection:
        stream = connection.sock.makefile("rb")
        for number in (1, 2, 3):
            send(connection, line(f"n{number}"))
            while not (read := stream.readline()).startswith(b'{"line"'):
                assert read
            assert orjson.loads(read)["line"] == number
        send(connection, b"")


def test_lines_that_stop_coming_end_the_batch(engine: Engine) -> None:
    with gateway(engine, limits=Limits(body_timeout_s=0.3)) as client, begun(client) as connection:
        send(connection, line("a") + b'{"type": ')
        answered = connection.getresponse().read().splitlines()  # up to the end, though the body has none
    assert orjson.loads(answered[0])["position"]
    assert len(engine.stored) == 1


@pytest.mark.parametrize("size", [10, 100_000])
def test_no_more_is_read_than_can_be_stored(engine: Engine, size: int) -> None:
    engine.release.clear()
    app = build_app(engine, Everybody(), Undecided(), Limits(), CollectorRegistry())
    headers = [(name.encode(), value.encode()) for name, value in LINES.items()]
    path = "/memory/events/batch"
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers,
        "query_string": b"", "root_path": "",
    }  # fmt: skip
    sent = line("x" * size)
    reads = 0

    async def receive() -> Message:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": sent, "more_body": True}

    async def send(_: Message) -> None:
        """Send without reading."""

    async def run() -> None:
        answering = asyncio.create_task(app(scope, receive, send))
        before = -1
        while before < reads:  # until it stops reading: turns of the loop, whatever time they take
            before = reads
            for _ in range(100):
                await asyncio.sleep(0)
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
        engine.release.set()

    asyncio.run(run())
    assert 1 < reads <= PENDING_LINES + 1
    assert reads * len(sent) <= PENDING_BYTES + 2 * len(sent)
    assert reads in (PENDING_LINES, PENDING_BYTES // len(sent) + 1)


WITHIN_S = 10.0


class ClockedLoop(asyncio.SelectorEventLoop):
    now_s = 0.0

    def time(self) -> float:
        return self.now_s


def read_lines(pieces: Iterator[bytes], every_s: float) -> tuple[list[bytes | Problem], float]:
    """Read the lines of a body whose pieces come at an interval; return them, and how long they took."""
    loop = ClockedLoop()

    class Body:
        async def stream(self) -> AsyncIterator[bytes]:
            for piece in pieces:
                loop.now_s += every_s
                for _ in range(3):  # the loop looks at its timers
                    await asyncio.sleep(0)
                yield piece

    async def read() -> list[bytes | Problem]:
        body: Any = Body()
        return [found async for _, found in lines(body, MOST, WITHIN_S)]

    try:
        return loop.run_until_complete(read()), loop.now_s
    finally:
        loop.close()


@pytest.mark.parametrize("piece", [b"\n", b" ", b" \r\n", b"x", b"x" * 100], ids=repr)
def test_slow_body_times_out_despite_trickling_bytes(piece: bytes) -> None:
    found, took_s = read_lines(itertools.repeat(piece), WITHIN_S * 0.9)
    assert took_s < 3 * WITHIN_S
    assert isinstance(found[-1], Problem)
    assert found[-1].body.code == "slow_body"


def test_body_takes_its_time_if_lines_come_fast_enough() -> None:
    rounds = 40
    pieces = itertools.repeat((b"x" * (MOST - 1) + b"\n") * 8, rounds)  # 16 kB a second
    found, took_s = read_lines(pieces, 8 * MOST / (16 * 1024) * 0.9)
    assert (len(found), took_s > 5 * WITHIN_S) == (8 * rounds, True)
    assert not [one for one in found if isinstance(one, Problem)]


def test_no_body_takes_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "BODY_S", 5 * WITHIN_S)
    found, took_s = read_lines(itertools.repeat((b"x" * (MOST - 1) + b"\n") * 100), 1.0)
    assert isinstance(found[-1], Problem)
    assert took_s <= 5 * WITHIN_S + 1


def test_blank_lines_without_end_are_refused() -> None:
    found, _ = read_lines(itertools.repeat(b"\n" * 1_000), 0.0)
    (problem,) = found
    assert isinstance(problem, Problem)
    assert problem.body.code == "invalid_event"


def test_a_blank_line_after_each_event_is_allowed() -> None:
    found, _ = read_lines(itertools.repeat(line("a") + b"\r\n", 5_000), 0.0)
    assert len(found) == 5_000
    assert not isinstance(found[-1], Problem)


def test_batches_leave_room_for_other_requests(engine: Engine) -> None:
    limits = Limits(concurrency=4)
    assert limits.batches == 1
    with gateway(engine, limits=limits) as client, begun(client) as first:
        send(first, line("a"))
        first.sock.recv(1)  # its response has begun
        with begun(client) as second:
            refused = second.getresponse()
            assert (refused.status, refused.getheader("retry-after")) == (429, "1")
        answered = client.post("/memory/query", json={**EVENT, "type": "recall", "query": "tea?"})
        assert answered.status_code == 200
    with gateway(engine, limits=limits) as client:
        for _ in range(3):  # a place is given back
            assert len(post(client, line("a"))) == 1
