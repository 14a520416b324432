"""Model results that a query waits for before it is answered.

Partition logic makes no calls. It returns the requests (`Wanted`); services make the calls, and the query is answered
with the results (`Said`) as an input. A failed call has no result.
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
    """The requests before a query can be answered. All of them are sent at the same time.

    Attributes:
        prompts: for the language model, by step.
        texts: for the embedding service.
        question: for the reranker.
        candidates: for the reranker.
        dropped: steps omitted for lack of time.
    """

    prompts: Mapping[LlmStep, Prompt] = MappingProxyType({})
    texts: Sequence[str] = ()
    question: str = ""
    candidates: Sequence[Text] = ()
    dropped: Sequence[Step] = ()

    def __bool__(self) -> bool:
        return bool(self.prompts or self.texts or self.candidates)


class Ended(NamedTuple):
    """One completed call.

    Attributes:
        said: the result.
        failure: the error code; None on success.
        about: the prompt, because a result is valid for that prompt only.
    """

    model: str
    took_ms: float
    said: Any = None
    failure: str | None = None
    tokens: int = 0
    about: Prompt | None = None


class LeftOut(NamedTuple):
    """The number of subqueries that are not asked, and the code of the reason."""

    questions: int
    code: str


class Received(NamedTuple):
    """The results of one round of calls.

    Attributes:
        ended: calls by step.
        vectors: by text.
        scored: the reranker's result.
    """

    ended: Mapping[ModelStep, Ended]
    vectors: Mapping[str, QuestionVector]
    scored: Scored | None


@dataclass(frozen=True, slots=True)
class Said:
    """All model results of one query so far.

    Attributes:
        ended: calls by step.
        vectors: vectors from the embedding service, by text.
        dropped: steps omitted for lack of time.
        took_ms: the total time of all rounds of calls.
        left_out: subqueries that are not asked.
    """

    ended: Mapping[ModelStep, Ended] = field(default_factory=lambda: MappingProxyType({}))
    vectors: Mapping[str, QuestionVector] = field(default_factory=lambda: MappingProxyType({}))
    scored: Scored | None = None
    dropped: Sequence[Step] = ()
    took_ms: float = 0.0
    left_out: LeftOut | None = None

    def after(self, wanted: Wanted, received: Received, took_ms: float) -> "Said":
        """Return these results, extended by one more round of calls."""
        return Said(
            ended={**self.ended, **received.ended},
            vectors={**self.vectors, **received.vectors},
            scored=received.scored or self.scored,
            dropped=wanted.dropped,
            took_ms=self.took_ms + took_ms,
            left_out=self.left_out,
        )

    def answer(self, step: LlmStep, about: Prompt | None = None) -> Mapping[str, Any] | None:
        """Return the language model's result of a step, or None.

        Args:
            about: if given, the result must be of this prompt.
        """
        ended = self.ended.get(step)
        if ended is None or (about is not None and ended.about != about):
            return None
        answer: Mapping[str, Any] | None = ended.said
        return answer

    def failures(self) -> Iterable[tuple[LlmStep, str]]:
        """Yield each failed LLM step and its error code."""
        for step in LLM_STEPS:
            if (ended := self.ended.get(step)) is not None and ended.failure is not None:
                yield step, ended.failure

    @property
    def ran_llm(self) -> bool:
        """Return whether a language model was called."""
        return any(step in LLM_STEPS and ended.failure not in NOT_ASKED for step, ended in self.ended.items())

    @property
    def routing(self) -> dict[str, Any]:
        """Return model, time and failure of each call for `routing_info`. The reranker has its own entry."""
        shown: dict[str, Any] = {}
        for step, ended in self.ended.items():
            shown[step] = {"model": ended.model, "took_ms": round(ended.took_ms, 3), "tokens": ended.tokens}
            if ended.failure is not None:
                shown[step]["failure"] = ended.failure
        return shown


NOTHING = Said()
