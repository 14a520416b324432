"""Query scheduling: a query is answered at once, or as soon as its conditions are met.

A query reads applied records, and its effects join the transaction. It may wait for a position until its timeout, for
the index of a past moment of a large owner, or for models. If it finds nothing during catch-up, it waits until
the partition has caught up or its timeout."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.operators import audit, redaction
from recallflow.operators.answers import parked_queries
from recallflow.operators.answers.answer import Answerer, EffectLog
from recallflow.operators.answers.parked_queries import STEP, ParkedQuery, SteppedQuery
from recallflow.operators.events import Ask, Refused, key_of
from recallflow.operators.graph.rollout import Expansions
from recallflow.operators.guard import retry_once, try_once
from recallflow.operators.recall.model_calls import NO_RESULTS, ModelRequests
from recallflow.operators.recall.moment import Moment
from recallflow.operators.recall.stages import AnswerComposer, ComposedAnswer, Effects
from recallflow.operators.rules import Rules
from recallflow.outputs import Answer, DeadLetter, Output, Verdict
from recallflow.owner import Owner
from recallflow.queries import Recall, ReplyTo
from recallflow.records import Position
from recallflow.responses import ErrorBody, Response, Warn
from recallflow.state.hot_owner import Owners
from recallflow.state.partition import Partition
from recallflow.stepped import Rotation, SteppedWork

Outcome = tuple[Answer, Effects | None]
Pending = TypeVar("Pending", ParkedQuery, SteppedQuery[Outcome])


class Queries:
    def __init__(
        self,
        partition: Partition,
        owners: Owners,
        answerer: Answerer,
        expansions: Expansions,
        rules: Rules,
        now_ms: Callable[[], int],
        missing_state: Callable[[], str],
        model_queries: parked_queries.ModelQueries | None,
        rotation: Rotation,
    ) -> None:
        """`missing_state` describes the records that answers lack; `rotation` is the round robin of tenants."""
        self._partition, self._owners, self._answerer = partition, owners, answerer
        self._expansions, self._rules, self._now_ms, self._missing_state = expansions, rules, now_ms, missing_state
        self._model_queries = model_queries
        self._ready = parked_queries.QueryPool()  # queries with model results, after a hold, or restarted
        self.effects = EffectLog(partition, owners, rules)
        self._past_queries = parked_queries.PastQueries(owners, answerer.embedder, rules.episode_gap_ms)
        self._stepped = parked_queries.SteppedQueries[Outcome]()
        self._rotation = rotation
        self._has_event = False  # whether an event waits for the answers in progress of its owner
        self._waiting: list[parked_queries.WaitingQuery] = []
        self._held = parked_queries.HeldQueries()
        pools = self._past_queries, self._stepped, self._held, model_queries, self._ready
        self._pools: list[parked_queries.QueryPool] = [pool for pool in pools if pool is not None]
        self._loading: set[Position] = set()  # of queries whose owner's index is loaded in steps

    def ask(self, ask: Ask) -> list[Output] | None:
        """Answer a query, or park it. Return None if the owner's index is loaded first: ask again afterwards."""
        if ask.record.silent:
            return []
        waiting = parked_queries.WaitingQuery(ask)
        if not waiting.missing(self._partition.applied):
            if self._begin_load(ask):
                return None
            # During catch-up, every answer has a warning already.
            return self._begin(ask, [] if self._missing_state() else parked_queries.unread_warning(ask.record))
        if self._rules.input_ends:  # no later record is applied before this query
            return self._begin(ask, waiting.warnings(self._partition.applied))
        self._waiting.append(waiting)
        return []

    def advance(self, is_at_work: Callable[[Owner], bool], end: bool) -> list[Output]:
        """Answer the queries whose conditions are met or whose time is up; all of them at the `end` of the input.
        `is_at_work` returns whether an owner's event or index has steps left, for which its queries wait."""
        outputs = self._step(is_at_work)
        for parked in self._held.release(self._now_ms(), caught_up=end or not self._missing_state()):
            self._ready.add(parked)
        outputs += self._answer_ready(is_at_work)
        outputs += self._end_waits(is_at_work, end)
        while end and (self._stepped or self._past_queries):
            self._update_rotation()
            outputs += self._step(is_at_work)
        self._update_rotation()
        return outputs

    def _end_waits(self, is_at_work: Callable[[Owner], bool], end: bool) -> list[Output]:
        """Answer the queries whose positions are applied, or whose time is up."""
        outputs: list[Output] = []
        now_ms, waiting, self._waiting = self._now_ms(), self._waiting, []
        for query in waiting:
            missing = query.missing(self._partition.applied) and now_ms < query.deadline_ms
            if is_at_work(query.ask.owner) or (not end and (missing or self._begin_load(query.ask))):
                self._waiting.append(query)
            else:
                outputs += self._begin(query.ask, query.warnings(self._partition.applied))
        return outputs

    def _begin_load(self, ask: Ask) -> bool:
        """Begin to load the index that a query needs. Return whether steps are left. After an error in a step, the
        query is answered without a loaded index, so that the answer reports the error."""
        moment, position = Moment.of_ask(ask), ask.record.position
        if position in self._loading:
            self._loading.remove(position)
            return False
        if moment is None or not moment.has_present_knowledge or moment.projects is not None:
            return False
        with suppress(DecryptionFailed):
            hot = self._owners.get(ask.owner)
            if hot.index is None or hot.index.needs_rebuild():
                embedder = self._answerer.embedder
                work = SteppedWork(partial(hot.search_index, embedder.name, embedder.dimension))

                def step() -> bool:
                    try:
                        return try_once(STEP, position, work.step)
                    except (InvalidRecord, DecryptionFailed):
                        return True

                if self._owners.begin(ask.owner, step):
                    self._loading.add(position)
                    return True
        return False

    def _update_rotation(self) -> None:
        self._rotation.update(self._partition.number, {*self._stepped.tenants(), *self._past_queries.tenants()})

    def _step(self, is_at_work: Callable[[Owner], bool]) -> list[Output]:
        """Take one step for the next tenant, if it has a query here."""
        if (tenant_id := self._rotation.take_turn(self._partition.number)) is None:
            return []
        outputs: list[Output] = []
        match query := self._stepped.next(tenant_id):
            case SteppedQuery():
                outputs += self._guarded(self._continue, query)
            case ParkedQuery() if is_at_work(query.ask.owner):
                self._stepped.add(query)
            case ParkedQuery():
                outputs += self._guarded(self._begin_answer, query)
        if (parked := self._past_queries.advance(tenant_id)) is not None:
            outputs += self._guarded(self._ask_models, parked)
            self._past_queries.end(parked.ask.owner)
        return outputs

    def finish(self, covers: Callable[[Owner], bool]) -> list[Output]:
        """Finish the begun answers of owners with a new event: an answer never mixes two states."""
        if not self._stepped:
            return []
        begun, to_end = self._stepped.take_begun(covers), partial(self._continue, to_end=True)
        self._has_event = True
        outputs = [output for query in begun for output in self._guarded(to_end, query)]
        self._has_event = False
        return outputs

    def close(self) -> None:
        """Leave the round robin. Unanswered queries are read again by the next owner."""
        self._rotation.update(self._partition.number, set())

    def receive(self, calls: list[int], is_at_work: Callable[[Owner], bool]) -> list[Output]:
        """Answer the queries of finished model calls."""
        if self._model_queries is not None:
            for parked in self._model_queries.end(calls):
                self._ready.add(parked)
        return self._answer_ready(is_at_work)

    def restart(self, owners: Collection[Owner]) -> None:
        """Restart the queries in progress of these owners, without earlier results."""
        for parked in [parked for pool in self._pools for parked in pool.take(lambda one: one.ask.owner in owners)]:
            self._ready.add(ParkedQuery(parked.ask, parked.warnings, NO_RESULTS, None))

    def due_ms(self) -> int | None:
        """Return the time of the next `advance` in epoch milliseconds; 0 is immediately."""
        if self._past_queries or self._stepped:
            return 0
        due_ms = [query.deadline_ms for query in self._waiting]
        if (check_ms := self._held.due_ms()) is not None:
            due_ms.append(check_ms)
        return min(due_ms, default=None)

    def failure(self, refused: Refused) -> Answer:
        """Return the answer to a refused query, after its dead letter. It does not reveal the applied position."""
        response = Response(query_id=str(refused.query_id), status="error", error=ErrorBody.of(refused.error))
        return Answer(refused.record.position, 1, key_of(refused), response.encode(), response)

    def waiting(self) -> list[Ask]:
        """Return the queries that wait for a position."""
        return [query.ask for query in self._waiting]

    def held(self) -> list[Ask]:
        """Return the queries that wait for another condition than a position."""
        return [parked.ask for pool in self._pools for parked in pool.queries()]

    def _begin(self, ask: Ask, warnings: list[Warn]) -> list[Output]:
        return self._guarded(self._start, ParkedQuery(ask, warnings, NO_RESULTS, None))

    def _guarded(self, step: Callable[[Pending], list[Output]], query: Pending) -> list[Output]:
        """Return the outputs of a step, or an answer about unreadable data if required data cannot be decrypted."""
        try:
            return step(query)
        except DecryptionFailed:
            parked = parked_queries.parked_of(query)
            ask = parked.ask
            self._owners.drop(ask.owner)
            try:
                reply_to = _checked_reply(ask.query.reply_to, self._rules.reply_topics)
            except InvalidRecord as error:
                return self._failed(ask, error)
            response = redaction.unreadable_answer(ask.query, ask.query_id)
            return self._recorded(ask, self._output_of(ask, response, reply_to, parked.warnings))

    def _start(self, parked: ParkedQuery) -> list[Output]:
        """Answer a query, or park it while the past index of a large owner is built. In a finite log it is built at
        once."""
        if parked.composed is not None and not self._answerer.is_still_valid(parked.composed):
            parked = parked._replace(composed=None)
        if parked.composed is None and not self._rules.input_ends:
            with suppress(InvalidRecord):  # after an internal error, the answer builds the index itself
                if try_once(STEP, parked.ask.record.position, self._past_queries.begin, parked):
                    return []
        return self._ask_models(parked)

    def _ask_models(self, parked: ParkedQuery) -> list[Output]:
        """Answer a query, or park it until its models have results. In a finite log, block until then."""
        while self._model_queries is not None:
            requests, compose = self._plan_model_calls(parked)
            if not requests:
                parked = parked._replace(composed=compose())
                break
            number = self._model_queries.begin(parked, requests, compose)
            if not self._rules.input_ends:
                return []
            self._model_queries.wait(number)
            (parked,) = self._model_queries.end([number])
        if self._stepped.has(parked.ask.owner):  # earlier queries of the owner come first
            self._stepped.add(parked)
            return []
        return self._begin_answer(parked)

    def _plan_model_calls(self, parked: ParkedQuery) -> tuple[ModelRequests, Callable[[], ComposedAnswer | None]]:
        """Return a query's model requests, and a function that composes the answer, or None after an internal error."""
        position, plan = parked.ask.record.position, self._answerer.plan_model_calls
        planned: tuple[ModelRequests, AnswerComposer | None] = ModelRequests(), None
        with suppress(InvalidRecord):
            planned = try_once(STEP, position, plan, parked.ask, parked.results, parked.composed)
        requests, compose = planned

        def compose_or_none() -> ComposedAnswer | None:
            with suppress(InvalidRecord, DecryptionFailed):
                return None if compose is None else try_once(STEP, position, compose)
            return None

        return requests, compose_or_none

    def _answer_ready(self, is_at_work: Callable[[Owner], bool]) -> list[Output]:
        """Continue the queries that need not wait any longer, unless an event of the owner is in steps."""
        ready = self._ready.take(lambda parked: not is_at_work(parked.ask.owner))
        return [output for parked in ready for output in self._guarded(self._start, parked)]

    def _begin_answer(self, parked: ParkedQuery) -> list[Output]:
        ask = parked.ask
        try:
            reply_to = _checked_reply(ask.query.reply_to, self._rules.reply_topics)
        except InvalidRecord as error:
            return self._failed(ask, error)
        if parked.composed is not None and not self._answerer.is_still_valid(parked.composed):
            parked = parked._replace(composed=None)
        # After an internal error the second attempt starts without earlier results.
        attempts = iter((parked, parked._replace(composed=None)))

        def respond() -> Outcome:
            attempt = next(attempts)
            response, effects = self._answerer.answer(ask, attempt.results, attempt.composed, lambda: self._has_event)
            return self._output_of(ask, response, reply_to, attempt.warnings), effects

        drop = partial(self._owners.drop, ask.owner)
        work = SteppedWork(partial(retry_once, STEP, ask.record.position, respond, undo=drop))
        return self._continue(SteppedQuery(parked, work, reply_to), to_end=self._rules.input_ends)

    def _continue(self, query: SteppedQuery[Outcome], *, to_end: bool = False) -> list[Output]:
        """Take one step of an answer, and hold it if there are more; or take all of them."""
        (parked, work, reply_to), ask = query, query.parked.ask
        try:
            while not work.step():
                if not to_end:
                    self._stepped.hold(query)
                    return []
        except InvalidRecord as error:
            if error.code == "not_found" and (missing := self._missing_state()):
                return self._hold_or_refuse(parked, reply_to, missing)
            return self._failed(ask, error, reply_to)
        answer, effects = work.outcome
        if parked_queries.claims_absence(answer.response) and (missing := self._missing_state()):
            return self._hold_or_refuse(parked, reply_to, missing)
        if effects is not None:
            drop = partial(self._owners.drop, ask.owner)
            with suppress(InvalidRecord, DecryptionFailed):  # a failure of its effects does not affect the answer
                try_once(STEP, ask.record.position, self.effects.stage, ask, effects, undo=drop)
        if not isinstance(ask.query, Recall) or ask.query.strategy != "hybrid_graph":
            return self._recorded(ask, answer)
        verdict = self._expansions.verdict(ask.owner.tenant_id)
        verdicts = [] if verdict is None else [Verdict(ask.record.position, 2, ask.record.append_ms, verdict)]
        return self._recorded(ask, answer, *verdicts)

    def _hold_or_refuse(self, parked: ParkedQuery, reply_to: ReplyTo | None, missing: str) -> list[Output]:
        """Park a query whose answer would claim absence, or answer that the partition is catching up."""
        if self._held.hold(parked, self._now_ms()):
            return []
        error = InvalidRecord.of("catching_up", f"nothing is found yet, with {missing}: ask again")
        return self._failed(parked.ask, error, reply_to)

    def _recorded(self, ask: Ask, answer: Answer, *further: Output) -> list[Output]:
        """Return an answer with its access log entry, if there is one."""
        self._held.end(ask.record.position)
        if self._rules.input_ends:
            self._partition.stage({}, ask.record.position, can_wait=True)
        entry = [audit.answered(ask, answer.response)] if self._rules.audited else []
        return [answer, *further, *entry]

    def _output_of(
        self, ask: Ask, response: Response, reply_to: ReplyTo | None, warnings: Sequence[Warn] = ()
    ) -> Answer:
        """Return the answer with warnings and the applied positions."""
        catching_up = [Warn(code="catching_up", detail=missing)] if (missing := self._missing_state()) else []
        if warnings := [*warnings, *catching_up]:
            response = response.warned(warnings)
        applied = [f"{source}:{offset}" for source, offset in sorted(self._partition.applied.items())]
        response = response.model_copy(update={"applied": applied})
        return Answer(ask.record.position, 0, key_of(ask), response.encode(), response, reply_to)

    def _failed(self, ask: Ask, error: InvalidRecord, reply_to: ReplyTo | None = None) -> list[Output]:
        response = Response(query_id=ask.query_id, status="error", error=ErrorBody.of(error))
        letters = [DeadLetter(ask.record, 1, error, STEP)] if error.code == "internal_error" else []
        return self._recorded(ask, self._output_of(ask, response, reply_to), *letters)


def _checked_reply(reply_to: ReplyTo | None, partition_counts: Mapping[str, int] | None) -> ReplyTo | None:
    """Return the destination of an answer, if a query may choose it. `partition_counts` are by reply topic. Raise
    InvalidRecord."""
    if reply_to is None or partition_counts is None:
        return None
    topic, partition = reply_to.topic, reply_to.partition
    if topic not in partition_counts:
        problem = f"not among the reply topics: {', '.join(sorted(partition_counts)) or 'none'}"
        raise InvalidRecord.of("invalid_event", problem, "reply_to.topic")
    if partition is not None and partition >= partition_counts[topic]:
        problem = f"{topic} has {partition_counts[topic]} partitions"
        raise InvalidRecord.of("invalid_event", problem, "reply_to.partition")
    return reply_to
