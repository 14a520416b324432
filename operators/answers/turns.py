"""Subqueries of a query, made by a language model and served in a round robin with other work.

A subquery takes as long as the query itself. The answer still reflects a single state: after an event of the owner, all
are repeated with one subquery less. A frequently changing owner therefore has an answer after at most ten rounds, and
no write waits. Waiting queries are stored, and read again after a crash.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.operators.answers.answer import Answerer
from recallflow.operators.answers.asides import ParkedQuery
from recallflow.operators.events import Ask
from recallflow.operators.guard import once
from recallflow.operators.recall.moment import AT_ONCE
from recallflow.operators.recall.said import LeftOut
from recallflow.operators.recall.stages import ComposedAnswer
from recallflow.owner import Owner

STEP = "state"
WORDS_AT_ONCE = 50_000  # total words of an owner's memories: long texts take time even if they are few
KEPT = 16  # parked queries with results; further ones are answered without subqueries


class Turns:
    """The queries of one state partition with unanswered subqueries."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._questions: deque[ParkedQuery] = deque()

    def __bool__(self) -> bool:
        return bool(self._questions)

    def asked(self) -> list[Ask]:
        """Return the unanswered queries."""
        return [question.ask for question in self._questions]

    def begin(self, question: ParkedQuery) -> ParkedQuery | None:
        """Park a query until its subqueries are answered. Return a query that can be answered now: without subqueries,
        of a small owner, or over the limit."""
        smaller = self._smaller(question)
        if question.found is None or not smaller or _is_of_little(question.found):
            return question
        if len(self._questions) == KEPT:
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
        found.asked.laps.wait("turns")
        if len(question.beside) == len(smaller):
            return question
        try:
            text = smaller[len(question.beside)]
            beside = once(STEP, question.ask.record.position, self._answerer.find_beside, found, question.said, text)
        except (InvalidRecord, DecryptionFailed):
            return _without(question, len(smaller), "internal_error")
        self._questions.appendleft(question._replace(beside=(*question.beside, beside)))
        return None

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        """Drop the queries of these owners, and return them."""
        given_up = [question for question in self._questions if question.ask.owner in owners]
        self._questions = deque(question for question in self._questions if question.ask.owner not in owners)
        return given_up

    def _smaller(self, question: ParkedQuery) -> Sequence[str]:
        return () if question.found is None else self._answerer.smaller_questions(question.found, question.said)


def _is_of_little(found: ComposedAnswer) -> bool:
    """Return whether the owner is so small that all subqueries are answered at once."""
    return found.change <= AT_ONCE and found.asked.index.words.lengths().sum() <= WORDS_AT_ONCE


def _without(question: ParkedQuery, count: int, code: str) -> ParkedQuery:
    """Return a query with fewer subqueries, all unanswered."""
    before = question.said.left_out
    left_out = LeftOut(count + (before.questions if before is not None else 0), code)
    return question._replace(said=replace(question.said, left_out=left_out), beside=())
