"""Service of an engine on Kafka, for any tenant: one producer, and one reader of the engine's outputs.

Every output of the engine has the position of its input in a header that only the engine sets. So two senders with
equal ids of one owner do not interfere, nor do two gateways on one topic, and no other sender can forge an answer."""

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from recallflow.cloud_events import response_json
from recallflow.connectors.kafka.messages import SOURCE_HEADER, Letter, headers_of
from recallflow.credentials import Headers
from recallflow.errors import DeliveryFailed, InvalidRecord, QueryTimeout, SourceError
from recallflow.events import MemoryEvent
from recallflow.kafka_clients import Inbox, ProducerAndReader
from recallflow.kafka_options import KafkaOptions
from recallflow.owner import Owner
from recallflow.queries import QueryEvent
from recallflow.records import Position
from recallflow.responses import ErrorBody, Receipt, Response
from recallflow.service import StoredEvent

EARLY_MAX = 64  # outputs kept per record key, because an output may arrive before the position of its record
M = TypeVar("M", Response, Receipt)
Output = asyncio.Future[Any]
Delivered = Callable[[Position | DeliveryFailed], None]


class LoopCalls:
    """Queue of calls of functions on one event loop, from other threads. All calls that come while the loop is busy
    share one wake-up, which costs a system call and a turn of the loop."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = False

    def attach(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call. Without an attached and open loop, drop it, because no request waits."""
        if self._loop is None:
            return
        self._calls.append((function, arguments))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._woken = False  # before the calls, so that later ones wake the loop again
        while self._calls:
            function, arguments = self._calls.popleft()
            function(*arguments)


def resolve(future: "asyncio.Future[Any]", outcome: Any) -> None:
    """Set the result or the error of a future that is still awaited."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


@dataclass(slots=True, eq=False)
class Expected:
    """Record whose outcome is awaited. `receive` is called once, with the output or with an error."""

    key: bytes
    receive: Callable[[Any], None]
    source: bytes | None = None  # position of the record, once it is known


@dataclass(slots=True)
class _KeyOutcomes:
    """Awaited outcomes of one record key, by position. `early` are outputs that match no known position yet."""

    without_position: int = 0
    by_source: dict[bytes, Expected] = field(default_factory=dict)
    early: dict[bytes, Any] = field(default_factory=dict)


class ExpectedOutcomes:
    """Records whose outcomes are awaited. For one thread; `is_awaited` may be called on any. They are indexed by record
    key, which an output has too: most outputs of other senders are skipped by their key."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, _KeyOutcomes] = {}

    def expect(self, expected: Expected) -> None:
        """Register a record before it is sent; `set_position` or `drop` follows."""
        self._by_key.setdefault(expected.key, _KeyOutcomes()).without_position += 1

    def set_position(self, expected: Expected, position: Position) -> None:
        """Set the position of the record. If its outcome came earlier, deliver that."""
        if expected.source is not None:  # no longer awaited
            return
        expected.source = str(position).encode()
        outcomes = self._by_key[expected.key]
        outcomes.without_position -= 1
        output = outcomes.early.pop(expected.source, None)
        if output is None:
            outcomes.by_source[expected.source] = expected
        self._drop_unused(expected.key, outcomes)
        if output is not None:
            expected.receive(output)

    def drop(self, expected: Expected) -> None:
        outcomes = self._by_key.get(expected.key)
        if outcomes is None:
            return
        if expected.source is None:
            outcomes.without_position -= 1
            expected.source = b""
        else:
            outcomes.by_source.pop(expected.source, None)
        self._drop_unused(expected.key, outcomes)

    def is_awaited(self, key: bytes) -> bool:
        return key in self._by_key

    def receive(self, message: Any) -> None:
        """Deliver an output if its record is awaited. It may belong to a record of another sender."""
        key: bytes = message.key() or b""
        outcomes = self._by_key.get(key)
        if outcomes is None:
            return
        # The last header of this name, because the headers of a dead letter begin with the sender's own.
        headers = reversed(headers_of(message) or ())
        source = next((value for name, value in headers if name == SOURCE_HEADER), None) or b""
        expected = outcomes.by_source.pop(source, None)
        if expected is not None:
            self._drop_unused(key, outcomes)
            expected.receive(message)
        elif outcomes.without_position:
            outcomes.early[source] = message
            if len(outcomes.early) > EARLY_MAX:
                del outcomes.early[next(iter(outcomes.early))]

    def fail_all(self, error: Exception) -> None:
        """Fail all records with known positions."""
        for outcomes in [*self._by_key.values()]:
            for expected in [*outcomes.by_source.values()]:
                self.drop(expected)
                expected.receive(error)

    def _drop_unused(self, key: bytes, outcomes: _KeyOutcomes) -> None:
        if not outcomes.without_position:
            outcomes.early.clear()
            if not outcomes.by_source:
                del self._by_key[key]


class ServiceTopics(NamedTuple):
    """Topics to write and to read. `replies` receives answers instead of the response topic, if set."""

    memory: str
    queries: str
    responses: str
    receipts: str
    dead_letters: str
    replies: Inbox | None = None


class KafkaService:
    """Service of an engine on Kafka. Create it on any thread; then use it on one event loop."""

    def __init__(
        self,
        options: KafkaOptions,
        topics: ServiceTopics,
        delivery_timeout_s: float,
        decisions_failure: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        """Create the service without waiting for Kafka. Raise UsageError for invalid options of librdkafka."""
        self._topics, self._decisions_failure = topics, decisions_failure
        self._loop_calls = LoopCalls()
        self._outcomes = ExpectedOutcomes()
        self._is_ready = asyncio.Event()  # whether the reader is ready
        # Dead letters are read for queries too: a query with refused credentials gets no answer in its reply topic.
        answers = topics.replies or Inbox(topics.responses)
        inboxes = [answers, Inbox(topics.receipts), Inbox(topics.dead_letters)]
        fail_all = partial(self._loop_calls.call, self._outcomes.fail_all)
        self._kafka = ProducerAndReader(options, inboxes, delivery_timeout_s, self._received, fail_all)
        # Once, and not for each request: a callback cannot be removed from a future that stays open for hours.
        self._kafka.ready.add_done_callback(lambda _: self._loop_calls.call(self._is_ready.set))

    async def ask(self, query: QueryEvent, headers: Headers, timeout_s: float) -> Response:
        if query.reply_to is not None:
            raise InvalidRecord.of("invalid_event", "the request gets the answer: omit reply_to", "reply_to")
        query_id = query.id or uuid.uuid4().hex
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_ready()
                reply_to = self._kafka.reply_to
                added = {"id": query_id} if reply_to is None else {"id": query_id, "reply_to": reply_to}
                sent = query.model_copy(update=added)
                with self._expected(sent) as (expected, output):
                    self._send(self._topics.queries, sent, headers, partial(self._note_position, expected))
                    return _response(query_id, await output)
        except TimeoutError:
            raise QueryTimeout(query_id, timeout_s, self._kafka.last_error) from None

    async def store(self, event: MemoryEvent, headers: Headers) -> StoredEvent:
        position = self._loop_calls.attach().create_future()
        self._send(self._topics.memory, event, headers, partial(resolve, position))
        return StoredEvent(await position)

    async def apply(self, event: MemoryEvent, headers: Headers, timeout_s: float) -> StoredEvent:
        ends_s = asyncio.get_running_loop().time() + timeout_s
        with suppress(TimeoutError):  # the record is stored nevertheless
            async with asyncio.timeout_at(ends_s):
                await self._until_ready()
        sent = event.model_copy(update={"receipt": True})
        with self._expected(sent) as (expected, output):
            position = asyncio.get_running_loop().create_future()

            def delivered(outcome: Position | DeliveryFailed) -> None:
                self._note_position(expected, outcome)
                resolve(position, outcome)

            self._send(self._topics.memory, sent, headers, delivered)
            stored = StoredEvent(await position)
            try:
                async with asyncio.timeout_at(ends_s):
                    return stored._replace(receipt=_receipt(await output))
            except (TimeoutError, SourceError):
                return stored

    def stop_reason(self) -> str:
        error = self._decisions_failure()
        return "" if error is None else f"the control topic cannot be read; correct this, and start again: {error}"

    def owners(self) -> Collection[Owner]:
        return ()

    def obstacle(self) -> str:
        if reason := self.stop_reason():
            return reason
        if not self._kafka.ready.done():
            trouble = self._kafka.last_error
            return f"Kafka has not answered yet{f': {trouble}' if trouble else ''}"
        return "" if self._kafka.metadata_error is None else f"Kafka is unavailable: {self._kafka.metadata_error}"

    def close(self) -> None:
        """Wait for sent records, at most about the delivery timeout. Call it once no request waits."""
        self._kafka.close()

    async def _until_ready(self) -> None:
        """Wait until the reader is ready: the answer to a query sent earlier could be missed."""
        self._loop_calls.attach()  # before the check, so that later outputs wake this task
        if not self._kafka.ready.done():
            await self._is_ready.wait()

    @contextmanager
    def _expected(self, event: MemoryEvent | QueryEvent) -> Iterator[tuple[Expected, Output]]:
        """Await the outcome of the record of an event within the block."""
        output = self._loop_calls.attach().create_future()
        expected = Expected(event.owner.record_key, partial(resolve, output))
        self._outcomes.expect(expected)
        try:
            yield expected, output
        finally:
            self._outcomes.drop(expected)
            if not output.cancel() and not output.cancelled():
                output.exception()  # asyncio logs unread errors

    def _note_position(self, expected: Expected, found: Position | DeliveryFailed) -> None:
        if isinstance(found, Position):
            self._outcomes.set_position(expected, found)
        else:
            expected.receive(found)

    def _send(self, topic: str, event: MemoryEvent | QueryEvent, headers: Headers, delivered: Delivered) -> None:
        """Send a record. `delivered` is called on the event loop. Raise InvalidRecord."""
        value = event.model_dump_json(exclude_unset=True).encode()
        self._kafka.send(topic, value, event.owner.record_key, headers, partial(self._loop_calls.call, delivered))

    # ------------------------------------------------------------------ called by the reader's thread

    def _received(self, message: Any) -> None:
        if self._outcomes.is_awaited(message.key() or b""):
            self._loop_calls.call(self._outcomes.receive, message)


def _response(query_id: str, output: Any) -> Response:
    """Return the response of a query's output. Raise SourceError for other content."""
    if (letter := Letter.of(output)) is not None:
        return Response(query_id=query_id, status="error", error=ErrorBody.of(letter.refusal))
    return _read(Response, output)


def _receipt(output: Any) -> Receipt:
    """Return the receipt of an event's output. Raise InvalidRecord where the event was refused, and SourceError."""
    if (letter := Letter.of(output)) is not None:
        raise letter.refusal
    return _read(Receipt, output)


def _read(model: type[M], output: Any) -> M:
    try:
        return model.model_validate_json(response_json(output.value() or b""))
    except ValidationError:  # without the cause, which quotes the value: it may be a memory
        problem = f"a record of {output.topic()} is no {model.__name__.lower()}"
        raise SourceError(f"{problem}: is the engine of another version?") from None
