"""Parked queries: they wait for models, for their subqueries, or for their next step. They are stored as records of the
input, and read again after a crash.

A subquery, made by a language model, takes as long as the query itself, and is served in a round robin with other work.
The answer still reflects a single state: after an event of the owner, all subqueries are repeated with one less. A
frequently changing owner therefore has an answer after at most ten rounds, and no write waits."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.operators.answers.answer import Answerer
from recallflow.operators.answers.models import Answers, ModelJob, Models
from recallflow.operators.async_call import AsyncCall, CallCompletion, CallError, call_numbers
from recallflow.operators.events import Ask
from recallflow.operators.guard import once
from recallflow.operators.recall.model_calls import LeftOut, ModelResults, Received, Wanted
from recallflow.operators.recall.moment import AT_ONCE
from recallflow.operators.recall.stages import ComposedAnswer, Effects, Find
from recallflow.outputs import Answer
from recallflow.owner import Owner
from recallflow.queries import ReplyTo
from recallflow.responses import Warn
from recallflow.stepped import SteppedWork

# The queries of a partition whose answers are composed during model calls; further ones are composed afterwards.
COMPOSED_MAX = 16
STEP = "state"
WORDS_AT_ONCE = 50_000  # total words of an owner's memories: long texts take time even if they are few
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
        return () if question.found is None else self._answerer.subqueries_of(question.found, question.results)


def _without(question: ParkedQuery, count: int, code: str) -> ParkedQuery:
    """Return a query with fewer subqueries, all unanswered."""
    before = question.results.left_out
    left_out = LeftOut(count + (before.questions if before is not None else 0), code)
    return question._replace(results=replace(question.results, left_out=left_out), subanswers=())


Outcome = tuple[Answer, Effects | None]


class Answering(NamedTuple):
    """A query whose answer is in progress."""

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
        """Keep a query until its next step."""
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
        """Take the queries in progress of some owners."""
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
