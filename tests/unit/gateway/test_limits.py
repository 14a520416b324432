"""How much, and for how long, a client may take: over real sockets, as no client library would do it."""

import itertools
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from recallflow.connectors.http import connection
from recallflow.connectors.http.limits import Limits
from recallflow.responses import Response
from tests.unit.gateway.serving import Engine

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
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    monkeypatch.setattr(connection, "READ_S", 0.3)


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
    """What comes until the other side closes."""
    read = b""
    while part := opened.recv(65_536):
        read += part
    return read


def statuses(answered: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", answered)]


def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(client: httpx.Client) -> None:
    large = b" " * (2 * Limits().body_bytes)
    for body in (large, iter([large])):
        answered = client.post("/memory/query", content=body, headers=JSON)
        assert (answered.status_code, answered.json()["error"]["code"]) == (413, "too_large")
    assert client.get("/livez").status_code == 200


def test_a_body_that_says_it_is_huge_is_refused_unread(client: httpx.Client) -> None:
    with raw(client) as opened:
        opened.sendall(HEAD % 10**12)
        assert statuses(opened.recv(65_536)) == [413]


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


def test_one_more_than_there_is_room_for_is_told_to_come_back(engine: Engine, client: httpx.Client) -> None:
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


def test_who_leaves_before_the_answer_does_no_harm(engine: Engine, client: httpx.Client) -> None:
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
def test_what_is_no_http_is_refused_and_nothing_else_suffers(client: httpx.Client, sent: bytes) -> None:
    with raw(client) as opened:
        opened.sendall(sent)
        assert statuses(read_all(opened)) == [400]
    assert client.get("/livez").status_code == 200


def test_a_defect_of_ours_is_told_without_what_it_quotes(
    engine: Engine, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ValueError(f"what {engine.asked[0][0].user_id} said: {QUERY!r}")

    engine.refuse = fail
    answered = client.post("/memory/query", content=QUERY, headers=JSON)
    assert (answered.status_code, answered.json()["error"]["code"]) == (500, "internal_error")
    assert "ValueError" in caplog.text
    assert "tea?" not in caplog.text + answered.text


def test_requests_are_counted_by_route_and_never_by_what_stands_in_it(client: httpx.Client) -> None:
    client.get("/memories/secret-id?tenant_id=acme&user_id=ann")
    client.get("/nowhere/secret-id")
    shown = client.get("/metrics").text
    assert 'recallflow_http_requests_total{method="GET",route="/memories/{memory_id}",status="200"} 1.0' in shown
    assert 'recallflow_http_requests_total{method="GET",route="none",status="404"} 1.0' in shown
    assert "secret-id" not in shown
