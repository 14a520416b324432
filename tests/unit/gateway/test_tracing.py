"""The trace of a request goes on to the engine, and back with the answer; without an SDK it goes on as it came."""

import httpx
import pytest

from recallflow.tracing import TRACE_HEADER
from tests.unit.gateway.serving import Engine

ANN = {"tenant_id": "acme", "user_id": "ann"}
QUERY = {"type": "recall", **ANN, "query": "what can't Ann eat?"}
EVENT = {"type": "memory", **ANN, "content": "Ann is allergic to peanuts"}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MALFORMED = {
    "words": "peanuts",
    "no id": "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
    "half": PARENT[:40],
    "capitals": PARENT.upper(),
    "long": PARENT + "0" * 10_000,
    "forbidden version": "ff" + PARENT[2:],
}


def test_trace_of_the_caller_reaches_the_engine_and_returns(engine: Engine, client: httpx.Client) -> None:
    for path, body in (("/memory/query", QUERY), ("/memory/events", EVENT)):
        answered = client.post(path, json=body, headers={TRACE_HEADER: PARENT, "x-api-key": "k"})
        assert answered.headers[TRACE_HEADER] == PARENT
    refused = client.post("/memory/query", json={}, headers={TRACE_HEADER: PARENT})
    assert (refused.status_code, refused.headers[TRACE_HEADER]) == (400, PARENT)
    for _, headers in (*engine.asked, *engine.stored):
        assert dict(headers) == {"x-api-key": b"k", TRACE_HEADER: PARENT.encode()}


@pytest.mark.parametrize("given", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_parent_is_none(engine: Engine, client: httpx.Client, given: str) -> None:
    answered = client.post("/memory/query", json=QUERY, headers={TRACE_HEADER: given})
    assert answered.status_code == 200
    assert TRACE_HEADER not in answered.headers
    assert [headers for _, headers in engine.asked] == [()]
