"""Enrichment of one partition: batches of requests, model calls, and results.

Requests without a result are open. A barrier names them, and the next owner of the partition repeats their calls. When
the partition closes, running calls are cancelled and late results are dropped."""

from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from recallflow.events import EnrichmentRequest, EnrichmentResult
from recallflow.operators.async_call import AsyncCall, CallCompletion, Completed, Runtime, numbers
from recallflow.operators.enrichment.results import PositionedRequest, unanswered
from recallflow.operators.events import key_of_partition
from recallflow.operators.guard import report
from recallflow.outputs import Done, Enriched, EnrichmentOutput, Marked
from recallflow.records import Mark, Open, Position, Signal

ASK = "ask"  # the step in reports of internal errors

AskModels = Callable[[Sequence[PositionedRequest], int], Awaitable[Sequence[EnrichmentResult]]]
"""Calls the models, with the decisions of a time (epoch ms), and returns one result per request, in order."""


class PendingRequest(NamedTuple):
    """A request that waits for a model. Requests with an equal `key` may share a call."""

    asked: PositionedRequest
    append_ms: int
    key: Hashable


EnrichmentItem = PendingRequest | tuple[EnrichmentOutput, ...]
"""A request, or the outputs of a record that needs no model."""

ToEnrich = EnrichmentItem | CallCompletion | Signal


@dataclass(frozen=True, slots=True)
class Enricher:
    """The configuration that all partitions of a process share.

    Attributes:
        within: Makes the span of a record the current one.
        answered: Called with each request and its result.
        now_ms: Returns the time in epoch milliseconds.
    """

    runtime: Runtime
    ask: AskModels
    batch_size: int
    batch_wait_ms: int
    within: Callable[[Position], AbstractContextManager[object]]
    answered: Callable[[EnrichmentRequest, EnrichmentResult], None]
    now_ms: Callable[[], int]


class _Batch(NamedTuple):
    """Requests that wait for more requests of their key."""

    due_ms: int
    requests: list[PendingRequest]


class PartitionEnrichment:
    """One partition, from the signal that opens it to its last barrier."""

    def __init__(self, enricher: Enricher) -> None:
        self._enricher = enricher
        self._partition: int | None = None  # None while it is closed
        self._batches: dict[Hashable, _Batch] = {}  # in order of due time, because all wait equally long
        self._calls: dict[int, AsyncCall[tuple[PendingRequest, ...], Sequence[EnrichmentResult]]] = {}

    def on_batch(self, values: list[ToEnrich]) -> tuple[list[EnrichmentOutput | Marked], bool]:
        """Process values in order. Return outputs, and whether the partition is closed."""
        outputs: list[EnrichmentOutput | Marked] = []
        for value in values:
            match value:
                case Open():
                    self._partition = value.partition
                case Mark():
                    outputs += self._mark(value)
                case CallCompletion():
                    outputs += self._results(value.call)
                case PendingRequest():
                    self._add(value)
                case _:
                    outputs += value
        return outputs, self._partition is None

    def due_ms(self) -> int | None:
        """Return the time of the next call of `on_notify`."""
        return next((batch.due_ms for batch in self._batches.values()), None)

    def on_notify(self) -> list[EnrichmentOutput | Marked]:
        """Submit the batches that have waited long enough."""
        now_ms = self._enricher.now_ms()
        for key in [key for key, batch in self._batches.items() if batch.due_ms <= now_ms]:
            self._submit(self._batches.pop(key))
        return []

    def on_eof(self) -> list[EnrichmentOutput | Marked]:
        return []

    def _add(self, request: PendingRequest) -> None:
        due_ms = self._enricher.now_ms() + self._enricher.batch_wait_ms
        batch = self._batches.setdefault(request.key, _Batch(due_ms, []))
        batch.requests.append(request)
        if len(batch.requests) == self._enricher.batch_size:
            self._submit(self._batches.pop(request.key))

    def _submit(self, batch: _Batch) -> None:
        number = next(numbers)
        completion = CallCompletion(key_of_partition(self._number), number)
        call = self._calls[number] = AsyncCall(tuple(batch.requests), partial(_ask, self._enricher), completion)
        self._enricher.runtime.submit([call])

    def _mark(self, mark: Mark) -> list[EnrichmentOutput | Marked]:
        """Return the barrier with the offsets of open requests. The last barrier closes the partition, and ends its
        open requests here."""
        opened = sorted(self._open())
        source = opened[0].source if opened else ""
        still = {source: tuple(position.offset for position in opened)} if opened else {}
        marked = Marked(self._number, mark.number, still, mark.last, has_nothing_to_sync)
        if not mark.last:
            return [marked]
        self._enricher.runtime.cancel(self._calls.values())
        self._batches.clear()
        self._calls.clear()
        self._partition = None
        return [*(Done(source, offsets) for source, offsets in still.items()), marked]

    def _open(self) -> Iterator[Position]:
        waiting = (batch.requests for batch in self._batches.values())
        for requests in (*waiting, *(call.item for call in self._calls.values())):
            yield from (request.asked.position for request in requests)

    def _results(self, number: int) -> Iterator[EnrichmentOutput]:
        """Yield the outputs of a call. An unknown call was submitted before the partition was closed."""
        call = self._calls.pop(number, None)
        if call is None or call.result is None:
            return
        asked = [request.asked for request in call.item]
        if isinstance(call.result, Completed):
            results = call.result.value
        else:
            results = [unanswered(one, f"{call.result.error.kind} in our own code") for one in asked]
        for one, result in zip(asked, results, strict=True):
            self._enricher.answered(one.request, result)
            bare = unanswered(one, "its topic does not take a result so large")
            yield Enriched(one.position, 0, result.owner.record_key, _encoded(result), _encoded(bare))
            yield Done(one.position.source, (one.position.offset,))

    @property
    def _number(self) -> int:
        if self._partition is None:
            raise RuntimeError("the partition is not open")
        return self._partition


async def _ask(enricher: Enricher, requests: tuple[PendingRequest, ...]) -> Sequence[EnrichmentResult]:
    asked = [request.asked for request in requests]
    try:
        with enricher.within(asked[0].position):
            results = await enricher.ask(asked, requests[-1].append_ms)
        _check_all_answered(asked, results)
    except Exception as error:
        report(ASK, asked[0].position, error)
        raise
    return results


def _check_all_answered(asked: Sequence[PositionedRequest], results: Sequence[EnrichmentResult]) -> None:
    if [result.request for result in results] != [str(one.position) for one in asked]:
        raise ValueError("the results do not match the requests one to one")


def has_nothing_to_sync() -> bool:
    """Return true: this flow has no state to sync before a barrier."""
    return True


def _encoded(result: EnrichmentResult) -> bytes:
    return result.model_dump_json(exclude_unset=True).encode()
