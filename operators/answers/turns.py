"""Questions that a language model made smaller ones of: each of those has a turn, between which others have theirs.

Each is looked up as the query's own question is, which for a large owner takes as long. The answer is of one state
nevertheless: where the owner has had an event in between, all is looked up again, with one smaller question less. So
an owner who is written to all the time has an answer after at most ten turns, and no write waits for one. What waits is
in the snapshot, and is asked anew after a kill.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.operators.answers.answer import Answerer
from recallflow.operators.answers.asides import Question
from recallflow.operators.events import Ask
from recallflow.operators.guard import once
from recallflow.operators.recall.moment import AT_ONCE
from recallflow.operators.recall.said import LeftOut
from recallflow.operators.recall.stages import Found
from recallflow.owner import Owner

STEP = "state"
WORDS_AT_ONCE = 50_000  # of all the memories of an owner: long texts take their time, however few they are
KEPT = 16  # questions that wait for their turns, with what was found for them; a further one is asked as it is


class Turns:
    """The questions of one state partition whose smaller ones are being answered, one after the other."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._questions: deque[Question] = deque()

    def __bool__(self) -> bool:
        return bool(self._questions)

    def asked(self) -> list[Ask]:
        """Return the unanswered queries."""
        return [question.ask for question in self._questions]

    def begin(self, question: Question) -> Question | None:
        """Sets a question aside until its smaller ones are answered. Returns one that can be answered now: it has none,
        its owner has little to look through, or too many others wait."""
        smaller = self._smaller(question)
        if question.found is None or not smaller or _is_of_little(question.found):
            return question
        if len(self._questions) == KEPT:
            return _without(question, len(smaller), "busy")
        self._questions.append(question)
        return None

    def advance(self, is_at_work: Callable[[Owner], bool]) -> Question | None:
        """Answers one smaller question. Returns a question that can be answered now, or one that is to be looked up
        again: without what was found. `is_at_work`: whether steps of an owner's event are still to be done."""
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

    def give_up(self, owners: Collection[Owner]) -> list[Question]:
        """Ends the turns of questions of these owners; returns the questions."""
        given_up = [question for question in self._questions if question.ask.owner in owners]
        self._questions = deque(question for question in self._questions if question.ask.owner not in owners)
        return given_up

    def _smaller(self, question: Question) -> Sequence[str]:
        return () if question.found is None else self._answerer.smaller_questions(question.found, question.said)


def _is_of_little(found: Found) -> bool:
    """Whether there is so little to look through that all questions are answered at once."""
    return found.change <= AT_ONCE and found.asked.index.words.lengths().sum() <= WORDS_AT_ONCE


def _without(question: Question, count: int, code: str) -> Question:
    """A question with fewer smaller ones, none of which is answered yet."""
    before = question.said.left_out
    left_out = LeftOut(count + (before.questions if before is not None else 0), code)
    return question._replace(said=replace(question.said, left_out=left_out), beside=())
