"""What models said of a question before it is answered.

Partition logic calls nobody. It says what it wants to know (`Wanted`); the calls are made elsewhere, and the question
is answered with what came of them (`Said`), which is an input as any other. A call that failed has said nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from recallflow.llm import Prompt
from recallflow.operators.recall.deadline import Step
from recallflow.operators.recall.rerank import Scored, Text
from recallflow.operators.recall.shared import QuestionVector

LlmStep = Literal["select_categories", "check_sufficiency", "rewrite"]
Kind = Literal["llm", "embed", "rerank"]  # of models
ModelStep = LlmStep | Literal["embed", "rerank"]
NOT_ASKED = ("left_alone", "busy", "over_budget")
LLM_STEPS: tuple[LlmStep, ...] = get_args(LlmStep)


class Wanted(NamedTuple):
    """What is to be asked before a question can be answered: a language model, for the vectors of texts, and how well
    a reranker finds candidates to fit the question. All of it is asked at the same time. `dropped`: the steps that
    there is no time for."""

    prompts: Mapping[LlmStep, Prompt] = MappingProxyType({})
    texts: Sequence[str] = ()
    question: str = ""
    candidates: Sequence[Text] = ()
    dropped: Sequence[Step] = ()

    def __bool__(self) -> bool:
        return bool(self.prompts or self.texts or self.candidates)


class Ended(NamedTuple):
    """One call that has ended: the model, how long it took, and what it said, or the code of what went wrong.
    `about`: the prompt, as an answer holds for that alone."""

    model: str
    took_ms: float
    said: Any = None
    failure: str | None = None
    tokens: int = 0
    about: Prompt | None = None


class LeftOut(NamedTuple):
    """How many of the smaller questions are not asked, and a code that says why."""

    questions: int
    code: str


class Received(NamedTuple):
    """What one round of calls came to: those that ended, vectors by text, and what a reranker gave."""

    ended: Mapping[ModelStep, Ended]
    vectors: Mapping[str, QuestionVector]
    scored: Scored | None


@dataclass(frozen=True, slots=True)
class Said:
    """All that models said of one question so far. `ended`: the calls, by step; `vectors`: of the texts that a service
    was asked about; `dropped`: the steps that there was no time for; `took_ms`: from asking to having, one round of
    calls after the other; `left_out`: of the smaller questions that a model made."""

    ended: Mapping[ModelStep, Ended] = field(default_factory=lambda: MappingProxyType({}))
    vectors: Mapping[str, QuestionVector] = field(default_factory=lambda: MappingProxyType({}))
    scored: Scored | None = None
    dropped: Sequence[Step] = ()
    took_ms: float = 0.0
    left_out: LeftOut | None = None

    def after(self, wanted: Wanted, received: Received, took_ms: float) -> "Said":
        """This and what one more round of calls came to."""
        return Said(
            ended={**self.ended, **received.ended},
            vectors={**self.vectors, **received.vectors},
            scored=received.scored or self.scored,
            dropped=wanted.dropped,
            took_ms=self.took_ms + took_ms,
            left_out=self.left_out,
        )

    def answer(self, step: LlmStep, about: Prompt | None = None) -> Mapping[str, Any] | None:
        """What a language model answered to a step, if it did; where a prompt is given, to that very prompt."""
        ended = self.ended.get(step)
        if ended is None or (about is not None and ended.about != about):
            return None
        answer: Mapping[str, Any] | None = ended.said
        return answer

    def failures(self) -> Iterable[tuple[LlmStep, str]]:
        """The steps of a language model that failed, and why."""
        for step in LLM_STEPS:
            if (ended := self.ended.get(step)) is not None and ended.failure is not None:
                yield step, ended.failure

    @property
    def ran_llm(self) -> bool:
        """Whether a language model was asked, whatever it said: not where it is left alone."""
        return any(step in LLM_STEPS and ended.failure not in NOT_ASKED for step, ended in self.ended.items())

    @property
    def routing(self) -> dict[str, Any]:
        """What was asked of which model, how long it took, and what failed, as the response shows it; a reranker's part
        is told by itself."""
        shown: dict[str, Any] = {}
        for step, ended in self.ended.items():
            shown[step] = {"model": ended.model, "took_ms": round(ended.took_ms, 3), "tokens": ended.tokens}
            if ended.failure is not None:
                shown[step]["failure"] = ended.failure
        return shown


NOTHING = Said()
