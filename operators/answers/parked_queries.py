"""Parked queries: they wait for a position, for the index of a large owner's past, for models, for subqueries, for a
next step, or for catch-up before an answer claims absence. They are stored as records of the input, and read again
after a crash.

A subquery, made by a language model, takes as long as the query itself, and is served in a round robin with other work.
The answer still reflects a single state: after an event of the owner, all subqueries are repeated with one less. A
frequently changing owner therefore has an answer after at most ten rounds, and no write waits.

A past index reflects the state at the query's offset; later commits are not visible. It is built in steps, interleaved
with other work."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from recallflow.embedder import Embedder
from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.fields import EPOCH_MS_MAX
from recallflow.operators.answers.answer import Answerer
from recallflow.operators.answers.models import Answers, ModelJob, Models
from recallflow.operators.async_call import AsyncCall, CallCompletion, CallError, call_numbers
from recallflow.operators.events import Ask
from recallflow.operators.guard import once
from recallflow.operators.recall.model_calls import LeftOut, ModelResults, Received, Wanted, subqueries
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

    question: ParkedQuery
    wanted: Wanted
    call: AsyncCall[ModelJob, Answers]
    began_s: float  # the start of the call, in seconds from any origin


class ModelQueries:
    """The queries of one state partition that wait for models."""

    def __init__(
        self, models: Models, key: str, timer: Callable[[], float], receive: Callable[[Wanted, Answers], Received]
    ) -> None:
        """`key` is the partition's in the dataflow; `receive` converts the results of models for an answer."""
        self._models, self._key, self._timer, self._receive = models, key, timer, receive
        self._queries: dict[int, _ModelQuery] = {}

    def asked(self) -> list[Ask]:
        return [query.question.ask for query in self._queries.values()]

    def begin(self, question: ParkedQuery, wanted: Wanted, find: Find) -> int:
        """Start all model calls of a query, and search meanwhile. Return the number of the completion."""
        number = next(call_numbers)
        job = ModelJob(question.ask.owner.tenant_id, wanted, question.ask.record.position)
        call = AsyncCall(job, self._models.ask, CallCompletion(self._key, number))
        began_s = self._timer()
        self._models.runtime.submit([call])
        is_room = sum(query.question.found is not None for query in self._queries.values()) < COMPOSED_MAX
        question = question._replace(found=find() if is_room else None)
        self._queries[number] = _ModelQuery(question, wanted, call, began_s)
        return number

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        """Drop the queries of these owners, and return them."""
        finished = [number for number, query in self._queries.items() if query.question.ask.owner in owners]
        return [self._queries.pop(number).question for number in finished]

    def wait(self, number: int) -> None:
        """Block until all results are there, for a log that ends."""
        self._models.runtime.wait([self._queries[number].call])
        self._models.runtime.completions.pop_all()

    def end(self, finished: Iterable[int]) -> list[ParkedQuery]:
        """Return the queries of finished calls. Completions of an earlier run are ignored."""
        return [self._ended(self._queries.pop(number)) for number in finished if number in self._queries]

    def _ended(self, query: _ModelQuery) -> ParkedQuery:
        question, result = query.question, query.call.result
        answers = self._models.unanswered(query.wanted) if isinstance(result, CallError | None) else result
        took_ms = (self._timer() - query.began_s) * 1000
        if question.found is not None:
            question.found.run.timings.wait("models")
        received = self._receive(query.wanted, answers)
        return question._replace(results=question.results.after(query.wanted, received, took_ms))


class Subqueries:
    """The queries of one state partition with unanswered subqueries."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._questions: deque[ParkedQuery] = deque()

    def __bool__(self) -> bool:
        return bool(self._questions)

    def asked(self) -> list[Ask]:
        return [question.ask for question in self._questions]

    def begin(self, question: ParkedQuery) -> ParkedQuery | None:
        """Park a query until its subqueries are answered, or return a query that can be answered now."""
        found, smaller = question.found, self._smaller(question)
        if found is None or not smaller:
            return question
        if found.change <= AT_ONCE and found.run.index.words.lengths().sum() <= WORDS_AT_ONCE:
            return question  # all subqueries are answered at once
        if len(self._questions) == SUBQUERIED_MAX:
            return _without(question, len(smaller), "busy")
        self._questions.append(question)
        return None

    def advance(self, is_at_work: Callable[[Owner], bool]) -> ParkedQuery | None:
        """Answer one subquery. Return a query that can be answered now, or must be repeated. `is_at_work` returns
        whether an owner's event has steps left."""
        question = self._questions.popleft()
        if is_at_work(question.ask.owner):
            self._questions.append(question)
            return None
        found, smaller = question.found, self._smaller(question)
        if found is None or not self._answerer.still_holds(found):
            return _without(question, 1, "changed")._replace(found=None)
        found.run.timings.wait("turns")
        if len(question.subanswers) == len(smaller):
            return question
        try:
            text = smaller[len(question.subanswers)]
            answer = once(
                STEP, question.ask.record.position, self._answerer.answer_subquery, found, question.results, text
            )
        except (InvalidRecord, DecryptionFailed):
            return _without(question, len(smaller), "internal_error")
        self._questions.appendleft(question._replace(subanswers=(*question.subanswers, answer)))
        return None

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        given_up = [question for question in self._questions if question.ask.owner in owners]
        self._questions = deque(question for question in self._questions if question.ask.owner not in owners)
        return given_up

    def _smaller(self, question: ParkedQuery) -> Sequence[str]:
        return () if question.found is None else subqueries(question.results, question.found.run.question.text)


def _without(question: ParkedQuery, count: int, code: str) -> ParkedQuery:
    """Return a query with fewer subqueries, all unanswered."""
    before = question.results.left_out
    left_out = LeftOut(count + (before.questions if before is not None else 0), code)
    return question._replace(results=replace(question.results, left_out=left_out), subanswers=())


Outcome = tuple[Answer, Effects | None]


class Answering(NamedTuple):
    question: ParkedQuery
    reply_to: ReplyTo | None
    work: SteppedWork[Outcome]


@dataclass(slots=True)
class _OwnerQueue:
    answering: Answering | None = None
    waiting: deque[ParkedQuery] = field(default_factory=deque)


class SteppedQueries:
    """The queries in steps of one state partition, by tenant and owner."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[Owner, _OwnerQueue]] = {}  # by tenant; the next owner comes first

    def __bool__(self) -> bool:
        return bool(self._lines)

    def tenants(self) -> Collection[str]:
        return self._lines.keys()

    def has(self, owner: Owner) -> bool:
        return owner in self._lines.get(owner.tenant_id, ())

    def hold(self, answering: Answering) -> None:
        self._line(answering.question.ask.owner).answering = answering

    def wait(self, question: ParkedQuery) -> None:
        """Queue a query after earlier ones of its owner."""
        self._line(question.ask.owner).waiting.append(question)

    def next(self, tenant_id: str) -> Answering | ParkedQuery | None:
        """Take the next query of a tenant: one in progress, or a waiting one."""
        owners = self._lines.get(tenant_id)
        if not owners:
            return None
        owner = next(iter(owners))
        line = owners.pop(owner)
        taken: Answering | ParkedQuery | None = line.answering
        line.answering = None
        if taken is None:
            taken = line.waiting.popleft()
        owners[owner] = line  # other owners precede this owner's next query or step
        return taken

    def take(self, covers: Callable[[Owner], bool]) -> Iterator[Answering]:
        for owners in self._lines.values():
            for owner, line in owners.items():
                if line.answering is not None and covers(owner):
                    answering, line.answering = line.answering, None
                    yield answering

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        given_up: list[ParkedQuery] = []
        for owner in owners:
            if self.has(owner):
                given_up += self._questions(self._lines[owner.tenant_id].pop(owner))
        self.prune()
        return given_up

    def questions(self) -> list[ParkedQuery]:
        return [one for owners in self._lines.values() for line in owners.values() for one in self._questions(line)]

    def prune(self) -> None:
        """Forget owners without queries."""
        for tenant_id, owners in [*self._lines.items()]:
            for owner, line in [*owners.items()]:
                if line.answering is None and not line.waiting:
                    del owners[owner]
            if not owners:
                del self._lines[tenant_id]

    def _line(self, owner: Owner) -> _OwnerQueue:
        return self._lines.setdefault(owner.tenant_id, {}).setdefault(owner, _OwnerQueue())

    @staticmethod
    def _questions(line: _OwnerQueue) -> list[ParkedQuery]:
        own = [] if line.answering is None else [line.answering.question]
        return [*own, *line.waiting]


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
    detail = f"up to {record.unread:,} memory records that were appended before the query are not applied yet"
    return [Warn(code="stale_read", detail=detail)] if record.unread else []


class PastQuery(NamedTuple):
    """A query with the remaining steps. A change of the owner after the first step invalidates the steps."""

    question: ParkedQuery
    moment: Moment
    steps: Steps[OwnerIndex]
    change: int


class PastQueryQueue:
    """The queries of one state partition whose past moments are being built, one by one."""

    def __init__(self, owners: Owners, embedder: Embedder, episode_gap_ms: int) -> None:
        self._owners, self._embedder, self._episode_gap_ms = owners, embedder, episode_gap_ms
        self._asked: dict[str, deque[PastQuery]] = {}  # by tenant
        self._built: dict[str, OwnerIndex] = {}  # by tenant: the past of its first query

    def __bool__(self) -> bool:
        return bool(self._asked)

    def asked(self) -> list[Ask]:
        return [asked.question.ask for line in self._asked.values() for asked in line]

    def tenants(self) -> Collection[str]:
        return self._asked.keys()

    def begin(self, question: ParkedQuery) -> bool:
        """Park the query if its index must be built in steps. Return whether it was parked."""
        owner, moment = question.ask.owner, Moment.of_ask(question.ask)
        hot = self._owners.get(owner)
        if moment is None or hot.next_change <= AT_ONCE:
            return False
        model, dimension = self._embedder.name, self._embedder.dimension
        if present_index(hot, moment, model, dimension) is not None:
            return False
        steps = build(hot, moment, model, dimension, self._episode_gap_ms)
        next(steps)  # the first step takes the snapshot
        line = self._asked.setdefault(owner.tenant_id, deque())
        line.append(PastQuery(question, moment, steps, hot.next_change))
        return True

    def advance(self, tenant_id: str) -> ParkedQuery | None:
        """Take one step of a tenant's first query. After the last step, return the query, which can be answered now.
        After an internal error or unreadable data, its answer has a warning."""
        asked, built = self._asked[tenant_id][0], self._built.pop(tenant_id, None)
        ask = asked.question.ask
        try:
            if built is None:
                once(STEP, ask.record.position, self._step, tenant_id, asked.steps)
                return None
            # Answering takes long enough for a separate step.
            hot = self._owners.get(ask.owner)
            hot.past = asked.moment, built
            if hot.next_change == asked.change:
                keep(hot, asked.moment, built, self._episode_gap_ms)
        except (InvalidRecord, DecryptionFailed):
            pass
        self._asked[tenant_id].popleft()
        if not self._asked[tenant_id]:
            del self._asked[tenant_id]
        return asked.question

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        given_up: list[ParkedQuery] = []
        for tenant_id, line in [*self._asked.items()]:
            if line[0].question.ask.owner in owners:
                self._built.pop(tenant_id, None)
            given_up += [asked.question for asked in line if asked.question.ask.owner in owners]
            if left := deque(asked for asked in line if asked.question.ask.owner not in owners):
                self._asked[tenant_id] = left
            else:
                del self._asked[tenant_id]
        return given_up

    def _step(self, tenant_id: str, steps: Steps[OwnerIndex]) -> None:
        try:
            next(steps)
        except StopIteration as ended:
            self._built[tenant_id] = ended.value

    def end(self, owner: Owner) -> None:
        """Drop the past of an answered query."""
        with suppress(DecryptionFailed):
            self._owners.get(owner).past = None


class HeldQueries:
    """The queries of one state partition whose answers would claim absence while the partition is catching up. They are
    answered once it has caught up, or after their `wait_timeout_ms`."""

    def __init__(self) -> None:
        self._held: list[ParkedQuery] = []
        self._held_bytes = 0
        self._deadlines_ms: dict[Position, int] = {}  # of all unanswered queries that were held
        self._look_ms = 0  # time of the next check for catch-up

    def hold(self, question: ParkedQuery, now_ms: int) -> bool:
        """Hold a query. Return False if its time is up, or too many are held."""
        ask = question.ask
        size = _size_of(ask)
        if self._held_bytes + size > HELD_BYTES_MAX:
            return False
        deadline_ms = min(now_ms + ask.query.wait_timeout_ms, EPOCH_MS_MAX)
        if now_ms >= self._deadlines_ms.setdefault(ask.record.position, deadline_ms):
            return False
        self._look_ms = self._look_ms if self._held else now_ms + LOOK_MS
        self._held.append(question._replace(found=None, subanswers=()))
        self._held_bytes += size
        return True

    def release(self, now_ms: int, *, caught_up: bool) -> list[ParkedQuery]:
        """Return the queries that are due, and release them."""
        self._look_ms = now_ms + LOOK_MS
        return self._take(lambda ask: caught_up or now_ms >= self._deadlines_ms[ask.record.position])

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        return self._take(lambda ask: ask.owner in owners)

    def end(self, position: Position) -> None:
        """Forget the deadline of an answered query."""
        self._deadlines_ms.pop(position, None)

    def asked(self) -> list[Ask]:
        return [question.ask for question in self._held]

    def due_ms(self) -> int | None:
        """Return when `release` is to be called next, in epoch milliseconds."""
        deadlines_ms = [self._deadlines_ms[question.ask.record.position] for question in self._held]
        return min(self._look_ms, *deadlines_ms) if deadlines_ms else None

    def _take(self, is_wanted: Callable[[Ask], bool]) -> list[ParkedQuery]:
        taken, held = list[ParkedQuery](), list[ParkedQuery]()
        for question in self._held:
            (taken if is_wanted(question.ask) else held).append(question)
        self._held = held
        self._held_bytes -= sum(_size_of(question.ask) for question in taken)
        return taken


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
