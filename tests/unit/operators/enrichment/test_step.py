"""Enrichment of one partition: batches, calls of models, and marks that name open requests."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import orjson
import pytest

from recallflow.events import EnrichmentRequest, EnrichmentResult
from recallflow.operators.async_call import CallCompletion, Completions, Runtime
from recallflow.operators.enrichment.enrich import Enricher, PartitionEnrichment, PendingRequest, has_nothing_to_sync
from recallflow.operators.enrichment.results import PositionedRequest, result
from recallflow.outputs import Ack, OutputBarrier, ResultOutput
from recallflow.parsing import parse_as
from recallflow.records import Barrier, PartitionStart, Position

TOPIC, PARTITION = "enrichment.requests", 3
SOURCE = f"{TOPIC}:{PARTITION}"
SIZE, WAIT_MS = 2, 1_000
OPENED = PartitionStart(PARTITION)


def request(offset: int, key: str = "session") -> PendingRequest:
    memory = {"memory_id": f"m{offset}", "content": "x", "content_hash": "h", "kind": "message", "created_at": 0}
    value: dict[str, Any] = {"type": "enrichment.request", "tenant_id": "acme", "user_id": "ann", "tasks": ["facts"]}
    value |= {"source": f"memory.events:0:{offset}", "memories": [memory]}
    posed = parse_as(EnrichmentRequest, orjson.dumps(value))
    return PendingRequest(PositionedRequest(Position(TOPIC, PARTITION, offset), posed), 0, (key,))


class Models:
    """Calls finish when the test says so."""

    def __init__(self) -> None:
        self.runtime = Runtime(Completions(), capacity=10, timeout_s=None)
        self.batches: list[list[int]] = []
        self.now_ms = 5_000
        self.answered: list[str] = []
        self.fails = False
        self._gate: asyncio.Event | None = None
        self.enricher = Enricher(
            self.runtime,
            self.ask,
            SIZE,
            WAIT_MS,
            lambda _: nullcontext(),
            lambda request, _: self.answered.append(request.source),
            lambda: self.now_ms,
        )

    async def ask(self, asked: Sequence[PositionedRequest], at_ms: int) -> Sequence[EnrichmentResult]:  # noqa: ARG002
        self.batches.append([one.position.offset for one in asked])
        self._gate = self._gate or asyncio.Event()
        await self._gate.wait()
        return [] if self.fails else [result(one, []) for one in asked]

    def finish(self, calls: int) -> list[CallCompletion]:
        """Let all calls finish. Return the completions of so many."""

        async def let_through() -> None:
            self._gate = self._gate or asyncio.Event()
            self._gate.set()

        self.runtime.run(let_through())
        found: list[CallCompletion] = []
        while len(found) < calls:
            assert self.runtime.completions.wake.wait(10)
            self.runtime.completions.wake.clear()
            found += self.runtime.completions.pop_all()
        return found

    def settled(self) -> list[list[int]]:
        async def nothing() -> None:
            await asyncio.sleep(0)

        self.runtime.run(nothing())
        return self.batches


@pytest.fixture
def models() -> Iterator[Models]:
    made = Models()
    with made.runtime:
        yield made


def opened(models: Models, *values: Any) -> PartitionEnrichment:
    made = PartitionEnrichment(models.enricher)
    assert made.on_batch([OPENED, *values]) == ([], False)
    return made


def marked(number: int, *still: int, last: bool = False) -> OutputBarrier:
    return OutputBarrier(PARTITION, number, {SOURCE: still} if still else {}, last, has_nothing_to_sync)


def test_full_batch_is_sent_at_once_the_rest_when_due(models: Models) -> None:
    made = opened(models, request(0), request(1, "other"), request(2), request(3))
    assert models.settled() == [[0, 2]]
    assert made.due_ms() == 6_000
    models.now_ms = 5_500
    made.on_batch([request(4, "third")])
    models.now_ms = 6_000
    assert made.on_notify() == []
    assert models.settled() == [[0, 2], [1], [3]]
    assert made.due_ms() == 6_500


def test_each_request_gets_one_result_and_is_done(models: Models) -> None:
    made = opened(models, request(0), request(1))
    outputs, closed = made.on_batch([*models.finish(1)])
    assert not closed
    assert [type(output) for output in outputs] == [ResultOutput, Ack, ResultOutput, Ack]
    assert [output.position.offset for output in outputs if isinstance(output, ResultOutput)] == [0, 1]
    assert models.answered == ["memory.events:0:0", "memory.events:0:1"]
    assert made.on_batch([Barrier(PARTITION, 0)]) == ([marked(0)], False)


def test_a_call_that_fails_gives_results_without_events(models: Models) -> None:
    models.fails = True
    made = opened(models, request(0), request(1))
    outputs, _ = made.on_batch([*models.finish(1)])
    found = [orjson.loads(output.body) for output in outputs if isinstance(output, ResultOutput)]
    assert [(one["events"], len(one["failures"])) for one in found] == [([], 1)] * 2


def test_a_mark_names_open_requests_in_batches_and_calls(models: Models) -> None:
    made = opened(models, request(5), request(2), request(7, "other"))
    outputs, _ = made.on_batch([Barrier(PARTITION, 1)])
    assert outputs == [marked(1, 2, 5, 7)]


def test_the_last_mark_cancels_calls_and_drops_late_results(models: Models) -> None:
    made = opened(models, request(0), request(1), request(2))
    models.settled()
    outputs, closed = made.on_batch([Barrier(PARTITION, 4, last=True)])
    assert outputs == [Ack(SOURCE, (0, 1, 2)), marked(4, 0, 1, 2, last=True)]
    assert closed
    late = models.finish(1)
    assert PartitionEnrichment(models.enricher).on_batch([*late]) == ([], True)
    again = opened(models, request(0))
    assert again.on_batch([*late]) == ([], False)
