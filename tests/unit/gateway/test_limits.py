"""How much, and for how long, a client may take: over real sockets, as no client library would do it."""

import asyncio
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any
from unittest.mock import AsyncMock, call
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from recallflow import process
from recallflow.connectors.http import errors, server
from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.handler import RequestHandler
from recallflow.connectors.http.requests import Limits
from recallflow.credentials import KEY_HEADER
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.responses import Response
from tests.unit.gateway.serving import Engine, Everybody, Undecided, gateway

JSON = {"content-type": "application/json"}
QUERY = orjson.dumps({"type": "recall", "tenant_id": "acme", "user_id": "ann", "query": "tea?"})
HEAD = b"POST /memory/query HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
REQUEST = HEAD % len(QUERY) + QUERY
CONCURRENCY = 3


@pytest.fixture(scope="module")
def limits() -> Limits:
    return Limits(body_timeout_s=0.3, concurrency=CONCURRENCY)


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADERS_S", 0.3)
    monkeypatch.setattr(server, "UNREAD_S", 0.3)


@contextmanager
def raw(client: httpx.Client) -> Iterator[socket.socket]:
    where = urlsplit(str(client.base_url))
    with socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=30) as opened:
        yield opened


def until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_s


def send_all(opened: socket.socket, parts: Iterable[bytes]) -> None:
    for part in parts:
        opened.sendall(part)


def read_all(opened: socket.socket) -> bytes:
    read = b""
    while part := opened.recv(65_536):
        read += part
    return read


def statuses(answered: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", answered)]


def test_oversized_body_is_refused_with_or_without_length(client: httpx.Client) -> None:
    large = b" " * (2 * Limits().body_bytes)
    for body in (large, iter([large])):
        answered = client.post("/memory/query", content=body, headers=JSON)
        assert (answered.status_code, answered.json()["error"]["code"]) == (413, "too_large")
    assert client.get("/livez").status_code == 200


def test_a_body_that_trickles_in_is_given_up(engine: Engine, client: httpx.Client) -> None:
    with raw(client) as opened:
        opened.sendall(REQUEST[:-5])
        answered = read_all(opened)  # and the connection is closed
    assert statuses(answered) == [408]
    assert b"slow_body" in answered
    assert engine.asked == []


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /live", b"GET /livez HTTP/1.1\r\nhost: h"], ids=len)
def test_headers_that_do_not_come_are_not_waited_for(client: httpx.Client, sent: bytes) -> None:
    with raw(client) as opened:
        opened.sendall(sent)
        assert read_all(opened) == b""


def test_headers_without_end_are_not_kept(client: httpx.Client) -> None:
    headers = (b"x-%d: %s\r\n" % (number, b"y" * 1_000) for number in range(100_000))
    with raw(client) as opened:
        opened.sendall(b"GET /livez HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            send_all(opened, headers)


@pytest.mark.usefixtures("_hasty")
def test_a_client_that_does_not_read_is_dropped(engine: Engine, client: httpx.Client) -> None:
    engine.answer = lambda _: Response(query_id="x" * 30_000_000, status="ok")  # more than sockets hold
    with raw(client) as opened:
        opened.sendall(REQUEST)
        with pytest.raises(ConnectionError):
            send_all(opened, itertools.repeat(b"\r\n"))


def test_request_over_the_concurrency_limit_gets_retry_after(engine: Engine, client: httpx.Client) -> None:
    engine.release.clear()
    answers: list[int] = []
    asked = partial(httpx.post, f"{client.base_url}/memory/query", timeout=30, content=QUERY, headers=JSON)
    asking = [Thread(target=lambda: answers.append(asked().status_code)) for _ in range(CONCURRENCY)]
    for one in asking:
        one.start()
    until(lambda: engine.under_way == CONCURRENCY)
    refused = client.post("/memory/query", content=QUERY, headers=JSON)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "too_many_requests"
    assert client.get("/readyz").status_code == 200  # probes are always answered
    engine.release.set()
    for one in asking:
        one.join()
    assert answers == [200] * CONCURRENCY
    assert client.post("/memory/query", content=QUERY, headers=JSON).status_code == 200


def test_pipelined_requests_are_answered_in_their_order(engine: Engine, client: httpx.Client) -> None:
    engine.answer = lambda query: Response(query_id=query.id or "", status="ok")
    bodies = [orjson.dumps(orjson.loads(QUERY) | {"id": f"q{number}"}) for number in range(20)]
    with raw(client) as opened:
        opened.sendall(b"".join(HEAD % len(body) + body for body in bodies))
        opened.sendall(b"GET /livez HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        answered = read_all(opened)
    assert re.findall(rb'"query_id":"(q\d+)"', answered) == [b"q%d" % number for number in range(20)]


def test_disconnecting_clients_free_their_slots(engine: Engine, client: httpx.Client) -> None:
    engine.release.clear()
    for _ in range(CONCURRENCY):
        with raw(client) as opened:
            opened.sendall(REQUEST)
    with raw(client) as opened:  # in the middle of a body, too
        opened.sendall(REQUEST[:-5])
    until(lambda: engine.under_way == CONCURRENCY)
    engine.release.set()
    until(lambda: engine.under_way == 0)
    answered = client.post("/memory/query", content=QUERY, headers=JSON)
    assert answered.status_code == 200


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 100], ids=len)
def test_invalid_http_gets_400_and_server_stays_up(client: httpx.Client, sent: bytes) -> None:
    with raw(client) as opened:
        opened.sendall(sent)
        assert statuses(read_all(opened)) == [400]
    assert client.get("/livez").status_code == 200


def test_request_metrics_use_routes_not_paths(client: httpx.Client) -> None:
    client.get("/memories/secret-id?tenant_id=acme&user_id=ann")
    client.get("/nowhere/secret-id")
    shown = client.get("/metrics").text
    assert 'recallflow_http_requests_total{method="GET",route="/memories/{memory_id}",status="200"} 1.0' in shown
    assert 'recallflow_http_requests_total{method="GET",route="none",status="404"} 1.0' in shown
    assert "secret-id" not in shown


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Iterator[httpx.Client]:
    monkeypatch.setattr(process, "max_connections", lambda: 3)
    with gateway(engine) as client:
        yield client


def test_idle_connections_make_room_for_new_ones_the_oldest_first(few: httpx.Client) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(raw(few)) for _ in range(10)]
        assert ([read_all(one) for one in idle[:7]], few.get("/livez").status_code) == ([b""] * 7, 200)
        assert read_all(idle[7]) == b""
        idle[9].sendall(b"GET /livez HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        assert statuses(read_all(idle[9])) == [200]


def test_connection_with_an_admitted_request_outlives_strangers(few: httpx.Client) -> None:
    with raw(few) as admitted, ExitStack() as stack:
        for _ in range(2):
            admitted.sendall(REQUEST)
            assert statuses(admitted.recv(65_536)) == [200]
            strangers = [stack.enter_context(raw(few)) for _ in range(10)]
            assert [read_all(one) for one in strangers[:8]] == [b""] * 8


def test_new_connection_is_refused_while_all_are_at_work(engine: Engine, few: httpx.Client) -> None:
    engine.release.clear()
    with ExitStack() as stack:
        working = [stack.enter_context(raw(few)) for _ in range(3)]
        for one in working:
            one.sendall(REQUEST)
        until(lambda: engine.under_way == 3)
        with raw(few) as refused:
            answered = read_all(refused)
        assert (statuses(answered), b"retry-after: 1" in answered) == ([503], True)
        assert orjson.loads(answered.partition(b"\r\n\r\n")[2])["error"]["code"] == "unavailable"
        engine.release.set()
        assert [statuses(one.recv(65_536)) for one in working] == [[200]] * 3


@pytest.mark.usefixtures("_hasty")
def test_idle_connection_is_kept_only_after_an_admitted_request(client: httpx.Client) -> None:
    with raw(client) as stranger, raw(client) as admitted:
        admitted.sendall(REQUEST)
        stranger.sendall(b"GET /livez HTTP/1.1\r\nhost: h\r\n\r\n")
        assert statuses(read_all(stranger)) == [200]  # up to its end
        admitted.recv(65_536)
        admitted.sendall(REQUEST)
        assert statuses(admitted.recv(65_536)) == [200]


@pytest.mark.usefixtures("_hasty")
def test_client_that_reads_a_little_at_a_time_is_dropped(
    engine: Engine, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READ_BYTES_PER_S", 10**9)
    engine.answer = lambda _: Response(query_id="x" * 30_000_000, status="ok")
    with raw(client) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        opened.sendall(REQUEST)
        size, pause = 0, threading.Event()
        with suppress(ConnectionError):
            while part := opened.recv(1_000_000):
                size += len(part)
                pause.wait(0.02)
    assert size < 30_000_000


def test_liveness_ends_with_the_engine(engine: Engine, client: httpx.Client) -> None:
    engine.in_the_way = "the state is opened anew"
    assert [client.get(path).status_code for path in ("/livez", "/readyz")] == [200, 503]
    engine.ended = "the engine has stopped"
    assert [client.get(path).status_code for path in ("/livez", "/readyz")] == [503, 503]


def paths_of(router: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield path and methods of every route, also of undocumented ones."""
    for route in router.routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from paths_of(included)
        else:
            yield route.path, route.methods


def test_refused_credentials_are_delayed_and_no_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    admission, reads, delay = Everybody(), 0, AsyncMock()
    monkeypatch.setattr(errors.RefusalPace, "wait", delay)
    app = build_app(Engine(), admission, Undecided(), Limits(), CollectorRegistry())

    async def receive() -> Message:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def ask(method: str, path: str, content_type: bytes) -> tuple[int, int, Any]:
        """Return the status, how often something of the body was read, and the delays."""
        nonlocal reads
        reads, status = 0, 0
        delay.reset_mock()
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(),
            "headers": [(b"content-type", content_type)], "query_string": b"", "root_path": "",
        }  # fmt: skip

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)

        await app(scope, receive, send)
        return status, reads, [*delay.mock_calls]

    def refuse(*_: object) -> None:
        raise InvalidRecord("unauthenticated", [FieldProblem("", "no credentials")])

    async def ask_all() -> dict[tuple[str, str], tuple[int, int, Any]]:
        return {
            (method, path): await ask(method, re.sub(r"{\w+}", "x", path), kind)
            for path, methods in paths_of(app)
            for method in methods
            for kind in [b"application/x-ndjson" if path.endswith("/batch") else b"application/json"]
        }

    with_bodies = [one for one, (_, read, _) in asyncio.run(ask_all()).items() if read]
    assert len(with_bodies) >= 10
    admission.refuse = admission.refuse_unread = refuse
    refused = asyncio.run(ask_all())
    assert {one: refused[one] for one in with_bodies} == dict.fromkeys(with_bodies, (401, 0, [call("unauthenticated")]))
    assert [one for one, (_, read, _) in refused.items() if read] == []


def test_many_refusals_wait_and_few_do_not() -> None:
    now_s = 0.0
    pace = errors.RefusalPace(lambda: now_s)
    waits = [pace.next_delay_s() for _ in range(errors.REFUSALS_PER_S + 5)]
    assert waits == [0.0] * errors.REFUSALS_PER_S + [errors.REFUSAL_WAIT_S] * 5
    now_s = 1.0
    assert pace.next_delay_s() == 0.0


def test_delayed_refusals_are_few() -> None:
    async def held() -> int:
        pace = errors.RefusalPace(lambda: 0.0)
        waiting = [asyncio.ensure_future(pace.wait("forbidden")) for _ in range(3 * errors.DELAYED_REFUSALS_MAX)]
        await asyncio.sleep(0)
        delayed = [one for one in waiting if not one.done()]
        for one in delayed:
            one.cancel()
        await asyncio.gather(*delayed, return_exceptions=True)
        return len(delayed)

    assert asyncio.run(held()) == errors.DELAYED_REFUSALS_MAX


def test_one_credential_holds_a_share_of_bodies_and_batches() -> None:
    evil, honest = ((KEY_HEADER, b"evil"),), ((KEY_HEADER, b"honest"),)
    handler = RequestHandler(Engine(), Everybody(), Limits(concurrency=64), lambda _: {})
    for share, most in ((handler.batch_slot, 8), (handler.body_slot, 16)):
        with ExitStack() as under_way:
            for _ in range(most):
                under_way.enter_context(share(evil))
            with pytest.raises(errors.Problem) as refused, share(evil):
                pass
            assert errors.STATUSES[refused.value.body.code] == 429
            with share(honest):
                pass


def test_tenant_over_its_share_of_requests_is_refused_alone() -> None:
    handler = RequestHandler(Engine(), Everybody(), Limits(concurrency=64), lambda _: {})
    with ExitStack() as under_way:
        for _ in range(16):
            under_way.enter_context(handler.slot("noisy"))
        with pytest.raises(errors.Problem) as refused, handler.slot("noisy"):
            pass
        assert errors.STATUSES[refused.value.body.code] == 429
        with handler.slot("quiet"):
            pass
    with handler.slot("noisy"):
        pass
