"""Queries of one state partition that wait, by the reason: for models (`ModelQueries`), for subqueries (`Subqueries`),
for their next step (`SteppedQueries`), for the index of a past moment of a large owner (`PastQueryQueue`), for catch-up
before an answer claims absence (`HeldQueries`), or for a position (`WaitingQuery`).

Parked queries are stored as records of the input, and are read again after a crash.

A language model makes subqueries. Each takes as long as a query, so that they are served in a round robin with other
work. An answer reflects a single state: after an event of the owner, all subqueries are repeated with one less. A
frequently changing owner therefore has an answer after at most ten rounds, and no write waits.

A past index reflects the state at the query's offset; later commits are not visible."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from recallflow.embedder import Embedder
from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.fields import EPOCH_MS_MAX
from recallflow.operators.answers.answer import Answerer
from recallflow.operators.answers.models import ModelAnswers, ModelJob, Models
from recallflow.operators.async_call import AsyncCall, CallCompletion, CallError, call_numbers
from recallflow.operators.events import Ask
from recallflow.operators.guard import once
from recallflow.operators.recall.model_calls import LeftOut, ModelResults, Wanted, subqueries
from recallflow.operators.recall.moment import AT_ONCE, Moment, Steps, build, keep, present_index
from recallflow.operators.recall.stages import ComposedAnswer, Effects, Find
from recallflow.outputs import Answer
from recallflow.owner import Owner
from recallflow.queries import ReplyTo
from recallflow.records import Position, Record
from recallflow.responses import Response, Warn
from recallflow.state.hot_owner import Owners
from recallflow.state.index import OwnerIndex
from recallflow.stepped import SteppedWork

# The queries of a partition whose answers are composed during model calls; further ones are composed afterwards.
COMPOSED_MAX = 16
STEP = "state"
WORDS_AT_ONCE = 50_000  # total words of an owner's memories: long texts take time even if they are few
HELD_BYTES_MAX = 8 * 1024 * 1024  # total size of queries waiting for catch-up, per partition
HELD_BYTES_EACH = 2_048  # in addition to the record's value
LOOK_MS = 50  # interval of checks for catch-up without new batches
SUBQUERIED_MAX = 16  # parked queries with results; further ones are answered without subqueries


class ParkedQuery(NamedTuple):
    """A query between rounds of model calls."""

    ask: Ask
    warnings: list[Warn]  # warnings for its answer
    results: ModelResults  # the model results so far
    found: ComposedAnswer | None  # the answer composed during the calls
    subanswers: tuple[ComposedAnswer, ...] = ()  # the answers of subqueries so far


class _ModelQuery(NamedTuple):
    """A parked query with its running call."""

    parked: ParkedQuery
    wanted: Wanted
    call: AsyncCall[ModelJob, ModelAnswers]
    began_s: float  # the start of the call, in seconds from any origin


class QueryPool:
    """Parked queries of one state partition that wait for the same reason, in the order of arrival."""

    def __init__(self) -> None:
        self._parked: deque[ParkedQuery] = deque()

    def __bool__(self) -> bool:
        return bool(self.queries())

    def queries(self) -> Collection[ParkedQuery]:
        return self._parked

    def add(self, parked: ParkedQuery) -> None:
        self._parked.append(parked)

    def take(self, is_wanted: Callable[[ParkedQuery], bool]) -> list[ParkedQuery]:
        """Remove the wanted queries, and return them."""
        taken, left = list[ParkedQuery](), deque[ParkedQuery]()
        for parked in self._parked:
            (taken if is_wanted(parked) else left).append(parked)
        self._parked = left
        return taken

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        """Remove the queries of these owners, and return them."""
        return self.take(lambda parked: parked.ask.owner in owners)


class ModelQueries(QueryPool):
    """The queries of one state partition that wait for models."""

    def __init__(self, models: Models, key: str, timer: Callable[[], float], answerer: Answerer) -> None:
        """`key` is the partition's in the dataflow."""
        self._models, self._key, self._timer, self._answerer = models, key, timer, answerer
        self._calls: dict[int, _ModelQuery] = {}  # by the number of the completion

    def queries(self) -> Collection[ParkedQuery]:
        return [query.parked for query in self._calls.values()]

    def begin(self, parked: ParkedQuery, wanted: Wanted, find: Find) -> int:
        """Start all model calls of a query, and search meanwhile. Return the number of the completion."""
        number = next(call_numbers)
        job = ModelJob(parked.ask.owner.tenant_id, wanted, parked.ask.record.position)
        call = AsyncCall(job, self._models.ask, CallCompletion(self._key, number))
        began_s = self._timer()
        self._models.runtime.submit([call])
        is_room = sum(query.found is not None for query in self.queries()) < COMPOSED_MAX
        parked = parked._replace(found=find() if is_room else None)
        self._calls[number] = _ModelQuery(parked, wanted, call, began_s)
        return number

    def take(self, is_wanted: Callable[[ParkedQuery], bool]) -> list[ParkedQuery]:
        wanted = [number for number, query in self._calls.items() if is_wanted(query.parked)]
        return [self._calls.pop(number).parked for number in wanted]

    def wait(self, number: int) -> None:
        """Block until all results are there, for a log that ends."""
        self._models.runtime.wait([self._calls[number].call])
        self._models.runtime.completions.pop_all()

    def end(self, finished: Iterable[int]) -> list[ParkedQuery]:
        """Return the queries of finished calls. Completions of an earlier run are ignored."""
        return [self._ended(self._calls.pop(number)) for number in finished if number in self._calls]

    def _ended(self, query: _ModelQuery) -> ParkedQuery:
        parked, result = query.parked, query.call.result
        answers = self._models.unanswered(query.wanted) if isinstance(result, CallError | None) else result
        took_ms = (self._timer() - query.began_s) * 1000
        if parked.found is not None:
            parked.found.run.timings.wait("models")
        return parked._replace(results=self._answerer.receive(parked.results, query.wanted, answers, took_ms))


class Subqueries(QueryPool):
    """The queries of one state partition with unanswered subqueries."""

    def __init__(self, answerer: Answerer) -> None:
        super().__init__()
        self._answerer = answerer

    def begin(self, parked: ParkedQuery) -> ParkedQuery | None:
        """Park a query until its subqueries are answered, or return a query that can be answered now."""
        found, texts = parked.found, _subqueries(parked)
        if found is None or not texts:
            return parked
        if found.change <= AT_ONCE and found.run.index.words.lengths().sum() <= WORDS_AT_ONCE:
            return parked  # all subqueries are answered at once
        if len(self._parked) == SUBQUERIED_MAX:
            return _without(parked, len(texts), "busy")
        self.add(parked)
        return None

    def advance(self, is_at_work: Callable[[Owner], bool]) -> ParkedQuery | None:
        """Answer one subquery. Return a query that can be answered now, or must be repeated. `is_at_work` returns
        whether an owner's event has steps left."""
        parked = self._parked.popleft()
        if is_at_work(parked.ask.owner):
            self.add(parked)
            return None
        found, texts = parked.found, _subqueries(parked)
        if found is None or not self._answerer.still_holds(found):
            return _without(parked, 1, "changed")._replace(found=None)
        found.run.timings.wait("turns")
        if len(parked.subanswers) == len(texts):
            return parked
        try:
            text, position = texts[len(parked.subanswers)], parked.ask.record.position
            answer = once(STEP, position, self._answerer.answer_subquery, found, parked.results, text)
        except (InvalidRecord, DecryptionFailed):
            return _without(parked, len(texts), "internal_error")
        self._parked.appendleft(parked._replace(subanswers=(*parked.subanswers, answer)))
        return None


def _subqueries(parked: ParkedQuery) -> Sequence[str]:
    return () if parked.found is None else subqueries(parked.results, parked.found.run.question.text)


def _without(parked: ParkedQuery, count: int, code: str) -> ParkedQuery:
    """Return a query with fewer subqueries, all unanswered."""
    before = parked.results.left_out
    left_out = LeftOut(count + (before.questions if before is not None else 0), code)
    return parked._replace(results=replace(parked.results, left_out=left_out), subanswers=())


Outcome = tuple[Answer, Effects | None]


class Answering(NamedTuple):
    """A query whose answer is computed in steps."""

    parked: ParkedQuery
    reply_to: ReplyTo | None
    work: SteppedWork[Outcome]


class SteppedQueries(QueryPool):
    """The queries in steps of one state partition, by tenant and owner. Only an owner's first query may have begun."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[Owner, deque[Answering | ParkedQuery]]] = {}  # the next owner comes first

    def queries(self) -> Collection[ParkedQuery]:
        lines = (line for owners in self._lines.values() for line in owners.values())
        return [one.parked if isinstance(one, Answering) else one for line in lines for one in line]

    def tenants(self) -> Collection[str]:
        return self._lines.keys()

    def has(self, owner: Owner) -> bool:
        return owner in self._lines.get(owner.tenant_id, ())

    def hold(self, answering: Answering) -> None:
        """Queue a query with steps left, before later ones of its owner."""
        self._line(answering.parked.ask.owner).appendleft(answering)

    def add(self, parked: ParkedQuery) -> None:
        """Queue a query after earlier ones of its owner."""
        self._line(parked.ask.owner).append(parked)

    def next(self, tenant_id: str) -> Answering | ParkedQuery | None:
        """Take the next query of a tenant, if there is one. Other owners precede this owner's next query or step."""
        if (owners := self._lines.get(tenant_id)) is None:
            return None
        owner, line = next(iter(owners.items()))
        taken = line.popleft()
        owners[owner] = owners.pop(owner)
        self._prune()
        return taken

    def begun(self, covers: Callable[[Owner], bool]) -> list[Answering]:
        """Take the queries in progress of some owners."""
        found: list[Answering] = []
        for owners in self._lines.values():
            for owner, line in owners.items():
                if covers(owner) and isinstance(line[0], Answering):
                    found.append(line[0])
                    line.popleft()
        self._prune()
        return found

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        gone = [line for owner in owners if (line := self._lines.get(owner.tenant_id, {}).pop(owner, None)) is not None]
        self._prune()
        return [one.parked if isinstance(one, Answering) else one for line in gone for one in line]

    def _prune(self) -> None:
        """Forget owners and tenants without queries."""
        lines = {tenant_id: {one: line for one, line in of.items() if line} for tenant_id, of in self._lines.items()}
        self._lines = {tenant_id: owners for tenant_id, owners in lines.items() if owners}

    def _line(self, owner: Owner) -> deque[Answering | ParkedQuery]:
        return self._lines.setdefault(owner.tenant_id, {}).setdefault(owner, deque())


class WaitingQuery:
    """A query that waits for its positions, if it names any, until a time (epoch milliseconds)."""

    def __init__(self, ask: Ask) -> None:
        given = ask.query.wait_for or ()
        self.ask, self._targets = ask, [*map(Position.parse, [given] if isinstance(given, str) else given)]
        # the upper limit of datetime, which Bytewax requires
        self.deadline_ms = min(ask.record.append_ms + ask.query.wait_timeout_ms, EPOCH_MS_MAX)

    def missing(self, applied: Mapping[str, int]) -> list[Position]:
        return [target for target in self._targets if applied.get(target.source, -1) < target.offset]

    def stale(self, applied: Mapping[str, int]) -> list[Warn]:
        """Return a warning if some positions are not applied yet."""
        behind = [
            f"{target} is {target.offset - applied.get(target.source, -1)} records ahead of what is applied"
            for target in self.missing(applied)
        ]
        return [Warn(code="stale_read", detail="; ".join(behind))] if behind else []


def unread_warning(record: Record) -> list[Warn]:
    """Return the warning of an answer that could not wait for all memory records before its query."""
    detail = f"up to {record.unapplied:,} memory records that were appended before the query are not applied yet"
    return [Warn(code="stale_read", detail=detail)] if record.unapplied else []


@dataclass(slots=True)
class _PastQuery:
    """A query whose past index is built in steps. A change of the owner after the first step invalidates the index."""

    parked: ParkedQuery
    moment: Moment
    steps: Steps[OwnerIndex]
    change: int
    built: OwnerIndex | None = None

    def step(self) -> None:
        try:
            next(self.steps)
        except StopIteration as ended:
            self.built = ended.value


class PastQueryQueue(QueryPool):
    """The queries of one state partition whose past moments are being built, one by one of each tenant."""

    def __init__(self, owners: Owners, embedder: Embedder, episode_gap_ms: int) -> None:
        self._owners, self._embedder, self._episode_gap_ms = owners, embedder, episode_gap_ms
        self._lines: dict[str, deque[_PastQuery]] = {}  # by tenant

    def queries(self) -> Collection[ParkedQuery]:
        return [query.parked for line in self._lines.values() for query in line]

    def tenants(self) -> Collection[str]:
        return self._lines.keys()

    def begin(self, parked: ParkedQuery) -> bool:
        """Park the query if its index must be built in steps. Return whether it was parked."""
        owner, moment = parked.ask.owner, Moment.of_ask(parked.ask)
        hot = self._owners.get(owner)
        if moment is None or hot.next_change <= AT_ONCE:
            return False
        model, dimension = self._embedder.name, self._embedder.dimension
        if present_index(hot, moment, model, dimension) is not None:
            return False
        steps = build(hot, moment, model, dimension, self._episode_gap_ms)
        next(steps)  # the first step takes the snapshot
        query = _PastQuery(parked, moment, steps, hot.next_change)
        self._lines.setdefault(owner.tenant_id, deque()).append(query)
        return True

    def advance(self, tenant_id: str) -> ParkedQuery | None:
        """Take one step of a tenant's first query. After the last step, return the query, which can be answered now.
        After an internal error or unreadable data, its answer has a warning."""
        query = self._lines[tenant_id][0]
        ask = query.parked.ask
        try:
            if query.built is None:
                once(STEP, ask.record.position, query.step)
                return None
            # Answering takes long enough for a separate step.
            hot = self._owners.get(ask.owner)
            hot.past = query.moment, query.built
            if hot.next_change == query.change:
                keep(hot, query.moment, query.built, self._episode_gap_ms)
        except (InvalidRecord, DecryptionFailed):
            pass
        self.take(lambda parked: parked is query.parked)
        return query.parked

    def take(self, is_wanted: Callable[[ParkedQuery], bool]) -> list[ParkedQuery]:
        taken = [parked for parked in self.queries() if is_wanted(parked)]
        lines = self._lines.items()
        left = {tenant_id: deque(one for one in line if not is_wanted(one.parked)) for tenant_id, line in lines}
        self._lines = {tenant_id: line for tenant_id, line in left.items() if line}
        return taken

    def end(self, owner: Owner) -> None:
        """Drop the past of an answered query."""
        with suppress(DecryptionFailed):
            self._owners.get(owner).past = None


class HeldQueries(QueryPool):
    """The queries of one state partition whose answers would claim absence while the partition is catching up. They are
    answered once it has caught up, or after their `wait_timeout_ms`."""

    def __init__(self) -> None:
        super().__init__()
        self._held_bytes = 0
        self._deadlines_ms: dict[Position, int] = {}  # of all unanswered queries that were held
        self._check_ms = 0  # time of the next check for catch-up

    def hold(self, parked: ParkedQuery, now_ms: int) -> bool:
        """Hold a query. Return False if its time is up, or too many are held."""
        ask = parked.ask
        size = _size_of(ask)
        if self._held_bytes + size > HELD_BYTES_MAX:
            return False
        deadline_ms = min(now_ms + ask.query.wait_timeout_ms, EPOCH_MS_MAX)
        if now_ms >= self._deadlines_ms.setdefault(ask.record.position, deadline_ms):
            return False
        self._check_ms = self._check_ms if self else now_ms + LOOK_MS
        self.add(parked._replace(found=None, subanswers=()))
        self._held_bytes += size
        return True

    def release(self, now_ms: int, *, caught_up: bool) -> list[ParkedQuery]:
        """Return the queries that are due, and release them."""
        self._check_ms = now_ms + LOOK_MS
        return self.take(lambda parked: caught_up or now_ms >= self._deadlines_ms[parked.ask.record.position])

    def take(self, is_wanted: Callable[[ParkedQuery], bool]) -> list[ParkedQuery]:
        taken = super().take(is_wanted)
        self._held_bytes -= sum(_size_of(parked.ask) for parked in taken)
        return taken

    def end(self, position: Position) -> None:
        """Forget the deadline of an answered query."""
        self._deadlines_ms.pop(position, None)

    def due_ms(self) -> int | None:
        """Return when `release` is to be called next, in epoch milliseconds."""
        deadlines_ms = [self._deadlines_ms[parked.ask.record.position] for parked in self._parked]
        return min(self._check_ms, *deadlines_ms) if deadlines_ms else None


def claims_absence(response: Response) -> bool:
    """Return whether an answer says that nothing was found. Each type of query sets some of these parts."""
    parts = (
        response.memories or response.episodes or response.versions,
        response.memory_page and response.memory_page.memories,
        response.graph_status and any(response.graph_status.nodes.values()),
        response.graph_trace and response.graph_trace.seeds,
        response.subgraph and (response.subgraph.nodes or response.subgraph.memories),
        response.graph_facts and response.graph_facts.facts,
        response.stats and response.stats["memories"],
    )
    return not any(parts)


def _size_of(ask: Ask) -> int:
    return len(ask.record.value or b"") + HELD_BYTES_EACH
