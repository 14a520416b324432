"""Questions whose candidates a reranker reads: set aside until its numbers are there, and asked anew after a kill."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from recallflow.operators.answers.scoring import Job, Scorer
from recallflow.operators.async_call import Call, Completed, Completion, Failed
from recallflow.operators.async_call.logic import numbers
from recallflow.operators.events import Ask
from recallflow.operators.recall.rerank import Scored, Text
from recallflow.queries import Recall
from recallflow.records import Record
from recallflow.responses import Warn


class Scoring(NamedTuple):
    """A question that is set aside, what its answer is to warn of, and the call for it, begun at so many seconds."""

    ask: Ask
    warnings: list[Warn]
    ids: list[str]
    call: Call[Job, Sequence[float]]
    began_s: float


class Reranking:
    """The questions of one state partition that are with the reranker."""

    def __init__(self, scorer: Scorer, key: str, timer: Callable[[], float]) -> None:
        """`key`: under which the partition's inputs come. `timer`: seconds, from any start."""
        self._scorer = scorer
        self._key = key
        self._timer = timer
        self._scoring: dict[int, Scoring] = {}

    def records(self) -> list[Record]:
        """What is asked, for the snapshot."""
        return [scoring.ask.record for scoring in self._scoring.values()]

    def begin(self, ask: Ask, warnings: list[Warn], texts: list[Text]) -> int:
        """Has the texts scored; returns the number that the completion will name."""
        assert isinstance(ask.query, Recall)  # noqa: S101 nothing else has candidates
        number = next(numbers)
        job = Job(ask.query.query.strip(), tuple(text.shown for text in texts))
        call = Call(job, self._scorer.score, Completion(self._scorer.step, self._key, number))
        self._scoring[number] = Scoring(ask, warnings, [text.id for text in texts], call, self._timer())
        self._scorer.runtime.submit([call])
        return number

    def wait(self, number: int) -> None:
        """Blocks until the numbers are there, or there will be none: for a log that ends, which no source wakes."""
        self._scorer.runtime.wait([self._scoring[number].call])
        self._scorer.runtime.completions.pop_all()

    def end(self, finished: Iterable[int]) -> list[tuple[Ask, list[Warn], Scored]]:
        """The questions that can be answered now. A completion that nobody waits for is of an earlier run."""
        return [self._ended(self._scoring.pop(number)) for number in finished if number in self._scoring]

    def _ended(self, scoring: Scoring) -> tuple[Ask, list[Warn], Scored]:
        result, took_ms = scoring.call.result, (self._timer() - scoring.began_s) * 1000
        scored = Scored(self._scorer.model, len(scoring.ids), took_ms)
        if isinstance(result, Completed):
            scored = replace(scored, scores=dict(zip(scoring.ids, result.value, strict=True)))
        elif isinstance(result, Failed):
            scored = replace(scored, problem=result.error.message or result.error.kind)
        return scoring.ask, scoring.warnings, scored
