"""Parked queries: they wait for the results of models, and are asked again after a crash."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from recallflow.operators.answers.models import Answers, ModelJob, Models
from recallflow.operators.async_call import AsyncCall, CallCompletion, Completed, numbers
from recallflow.operators.events import Ask
from recallflow.operators.recall.said import Received, Said, Wanted
from recallflow.operators.recall.stages import ComposedAnswer, Find
from recallflow.owner import Owner
from recallflow.responses import Warn

KEPT = 16  # queries per partition whose answers are composed during model calls; further ones are composed afterwards


class ParkedQuery(NamedTuple):
    """A query between rounds of model calls.

    Attributes:
        warnings: warnings for its answer.
        said: the model results so far.
        found: the answer composed during the calls.
        beside: the answers of subqueries so far.
    """

    ask: Ask
    warnings: list[Warn]
    said: Said
    found: ComposedAnswer | None
    beside: tuple[ComposedAnswer, ...] = ()


class _Aside(NamedTuple):
    """A parked query with its running call.

    Attributes:
        began_s: the start of the call, in seconds from any origin.
    """

    question: ParkedQuery
    wanted: Wanted
    call: AsyncCall[ModelJob, Answers]
    began_s: float


class Asides:
    """The queries of one state partition that wait for models."""

    def __init__(
        self, models: Models, key: str, timer: Callable[[], float], receive: Callable[[Wanted, Answers], Received]
    ) -> None:
        """Args:
        key: The key of the partition in the dataflow.
        timer: Returns seconds of any origin.
        receive: Converts the results of models for an answer.
        """
        self._models = models
        self._key = key
        self._timer = timer
        self._receive = receive
        self._asides: dict[int, _Aside] = {}

    def asked(self) -> list[Ask]:
        """Return the unanswered queries."""
        return [aside.question.ask for aside in self._asides.values()]

    def begin(self, question: ParkedQuery, wanted: Wanted, find: Find) -> int:
        """Start all model calls of a query, and search meanwhile. Return the number of the completion."""
        number = next(numbers)
        job = ModelJob(question.ask.owner.tenant_id, wanted, question.ask.record.position)
        call = AsyncCall(job, self._models.ask, CallCompletion(self._key, number))
        began_s = self._timer()
        self._models.runtime.submit([call])
        is_room = sum(aside.question.found is not None for aside in self._asides.values()) < KEPT
        question = question._replace(found=find() if is_room else None)
        self._asides[number] = _Aside(question, wanted, call, began_s)
        return number

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        """Drop the queries of these owners, and return them."""
        numbers_ = [number for number, aside in self._asides.items() if aside.question.ask.owner in owners]
        return [self._asides.pop(number).question for number in numbers_]

    def wait(self, number: int) -> None:
        """Block until all results are there, for a log that ends."""
        self._models.runtime.wait([self._asides[number].call])
        self._models.runtime.completions.pop_all()

    def end(self, finished: Iterable[int]) -> list[ParkedQuery]:
        """Return the queries of finished calls. Completions of an earlier run are ignored."""
        return [self._ended(self._asides.pop(number)) for number in finished if number in self._asides]

    def _ended(self, aside: _Aside) -> ParkedQuery:
        question, result = aside.question, aside.call.result
        answers = result.value if isinstance(result, Completed) else self._models.unanswered(aside.wanted)
        took_ms = (self._timer() - aside.began_s) * 1000
        if question.found is not None:
            question.found.asked.laps.wait("models")
        received = self._receive(aside.wanted, answers)
        return question._replace(said=question.said.after(aside.wanted, received, took_ms))
