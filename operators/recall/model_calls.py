"""Model results that a query waits for before it is answered.

Partition logic makes no calls. It returns the requests (`ModelRequests`). Services make the calls, and the query is
answered with their results (`ModelResults`). A failed call has no result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from recallflow.limits import QUERY_CHARACTERS
from recallflow.llm import Prompt
from recallflow.operators.enrichment import prompt_frame as frame
from recallflow.operators.recall.deadline import Step
from recallflow.operators.recall.shared import QuestionVector
from recallflow.operators.redaction import is_readable
from recallflow.queries import Mode, Recall
from recallflow.responses import Warn
from recallflow.state.rows import MemoryRow

RERANKED_MOST = 30  # candidates
RERANKED_MODES: frozenset[Mode] = frozenset({"hybrid", "relevance", "balanced"})  # others define their own order
TEXT_CHARACTERS = 2_000  # per candidate: cross-encoders read 512 tokens


def rerank_key(memory_id: str, version: int) -> str:
    """Return a key of one version of a memory. With history an answer may hold several versions."""
    return f"{version} {memory_id}"


def rerank_texts(rows: Sequence[MemoryRow | None]) -> dict[str, str]:
    """Return the readable texts for the reranker, best first, by `rerank_key`."""
    return {
        rerank_key(row.id, row.version): (f"{row.author}: " if row.author else "") + row.content[:TEXT_CHARACTERS]
        for row in rows
        if is_readable(row)
    }


LlmStep = Literal["select_categories", "check_sufficiency", "rewrite"]
ModelKind = Literal["llm", "embed", "rerank"]
ModelStep = LlmStep | Literal["embed", "rerank"]
NOT_CALLED = ("left_alone", "busy", "over_budget")  # error codes of calls that never reached the model
LLM_STEPS: tuple[LlmStep, ...] = get_args(LlmStep)


class ModelRequests(NamedTuple):
    """The model requests that a query waits for. All of them are sent at the same time."""

    prompts: Mapping[LlmStep, Prompt] = MappingProxyType({})  # for the language model, by step
    texts: Sequence[str] = ()  # for the embedding service
    question: str = ""  # for the reranker
    candidates: Mapping[str, str] = MappingProxyType({})  # texts for the reranker, by `rerank_key`
    dropped: Sequence[Step] = ()  # steps omitted for lack of time

    def __bool__(self) -> bool:
        return bool(self.prompts or self.texts or self.candidates)


class CallResult(NamedTuple):
    """The result of one model call, or the problem that prevented one."""

    model: str
    took_ms: float
    result: Any = None  # an object of the prompt's schema, vectors, or a reranker's scores by `rerank_key`
    failure: str | None = None  # the error code, or a reranker's error message; None on success
    tokens: int = 0
    prompt: Prompt | None = None  # a language model's result is valid for this prompt only


@dataclass(frozen=True, slots=True)
class ModelResults:
    calls: Mapping[ModelStep, CallResult] = field(default_factory=dict)
    vectors: Mapping[str, QuestionVector] = field(default_factory=dict)  # from the embedding service, by text
    candidates: int = 0  # the number of texts that the reranker was called with
    dropped: Sequence[Step] = ()  # steps omitted for lack of time
    took_ms: float = 0.0  # the total time of all rounds of calls

    def answer(self, step: LlmStep, prompt: Prompt | None = None) -> Mapping[str, Any] | None:
        """Return the language model's result of a step, or None. If `prompt` is given, the result must be of this
        prompt."""
        call = self.calls.get(step)
        if call is None or (prompt is not None and call.prompt != prompt):
            return None
        answer: Mapping[str, Any] | None = call.result
        return answer

    @property
    def rerank_scores(self) -> Mapping[str, float]:
        """Return the reranker's scores by `rerank_key`; empty without any."""
        return (self.calls["rerank"].result or {}) if "rerank" in self.calls else {}

    @property
    def ran_llm(self) -> bool:
        return any(step in LLM_STEPS and call.failure not in NOT_CALLED for step, call in self.calls.items())

    @property
    def routing(self) -> dict[str, Any]:
        """Return the entries of `routing_info`: `rerank`, and `models`, with model, time and failure of other calls."""
        shown, models = dict[str, Any](), dict[str, dict[str, Any]]()
        for step, call in self.calls.items():
            took_ms = round(call.took_ms, 3)
            if step == "rerank":
                shown["rerank"] = {"model": call.model, "candidates": self.candidates, "took_ms": took_ms}
                continue
            models[step] = {"model": call.model, "took_ms": took_ms, "tokens": call.tokens}
            if call.failure is not None:
                models[step]["failure"] = call.failure
        return shown | ({"models": models} if models else {})


NO_RESULTS = ModelResults()
SUMMARIES_CHARACTERS = 24_000  # of all summaries; later ones are left out
SUB_QUESTIONS_MAX, SUB_QUESTION_CHARACTERS = 3, 300
_SELECT = (
    "A memory is kept in categories, each with a summary. You are given a question to that memory, and the categories "
    "with what belongs into them. List the categories whose summaries would help to answer the question, the most "
    "helpful first. Leave out all that would not help; if none would, the list is empty."
)
_SUFFICIENT = (
    "You are given a question to a memory, and summaries of what it holds. Say whether the summaries alone answer the "
    "question fully: everything it asks for must be told in them. If anything is missing, vague or must be guessed, "
    "they are not sufficient."
)
_REWRITE = (
    "You are given a question to a memory that finds texts by their likeness to a question. If the answer lies in "
    f"several texts, write the smaller questions, at most {SUB_QUESTIONS_MAX}, whose answers together answer it: each "
    "complete by itself, with names instead of pronouns, in the language of the question, and in at most "
    f"{SUB_QUESTION_CHARACTERS} characters. Add no name and no fact that the question does not have. If one text can "
    "answer it, the list is empty."
)


def select_prompt(question: str, categories: Mapping[str, str]) -> Prompt:
    """Return the prompt that selects categories for a question. `categories`: names and descriptions, not empty."""
    shown = frame.first_categories(categories)
    data = {"question": question[:QUERY_CHARACTERS], "categories": frame.category_data(shown)}
    answer = frame.fields(categories=frame.listed(frame.one_of([*shown])))
    return frame.prompt("select_categories", "select-categories-1", _SELECT, data, answer)


def sufficiency_prompt(question: str, summaries: Mapping[str, str]) -> Prompt:
    """Return the prompt that asks whether summaries answer a question. `summaries` maps categories to texts."""
    data = {"question": question[:QUERY_CHARACTERS], "summaries": fitting(summaries)}
    answer = frame.fields(sufficient=frame.TRUTH)
    return frame.prompt("check_sufficiency", "check-sufficiency-1", _SUFFICIENT, data, answer)


def rewrite_prompt(question: str) -> Prompt:
    data = {"question": question[:QUERY_CHARACTERS]}
    return frame.prompt("rewrite", "rewrite-1", _REWRITE, data, frame.fields(questions=frame.listed(frame.TEXT)))


def subqueries(results: ModelResults, question: str) -> list[str]:
    """Return distinct subqueries other than the question, up to a limit. Empty and overlong ones are left out."""
    answer, found = results.answer("rewrite"), {_plain(question): ""}
    for one in () if answer is None else answer["questions"]:
        text = " ".join(one.split())
        if text and len(text) <= SUB_QUESTION_CHARACTERS and text.isprintable():
            found.setdefault(_plain(text), text)
    return [text for text in found.values() if text][:SUB_QUESTIONS_MAX]


def fitting(summaries: Mapping[str, str]) -> dict[str, str]:
    """Return the first summaries, with texts of at most `SUMMARIES_CHARACTERS` in all."""
    totals = accumulate(map(len, summaries.values()))
    return dict(compress(summaries.items(), (total <= SUMMARIES_CHARACTERS for total in totals)))


def _plain(question: str) -> str:
    """Return a form of a question that is equal for different spellings."""
    return "".join(character for character in question.casefold() if character.isalnum())


CONTEXT_TOKENS = 2_000  # default budget of a context
# Modes that order by something other than fit. Answers to several subqueries cannot be merged into such an order.
NEVER_REWRITTEN: frozenset[Mode] = frozenset({"recency", "episode"})
_INSTEAD: Mapping[LlmStep, str] = {
    "select_categories": "all categories were loaded",
    "check_sufficiency": "the answer keeps its memories",
    "rewrite": "only the question itself was asked",
}


def context_tokens(query: Recall) -> int | None:
    """Return the token budget of the query's context, or None without a context. Steps that select or judge summaries
    require one."""
    deals = query.select_categories or query.check_sufficiency
    return CONTEXT_TOKENS if query.max_tokens is None and deals else query.max_tokens


def requested_steps(query: Recall) -> list[LlmStep]:
    return [step for step in LLM_STEPS if getattr(query, step)]


def step_prompts(
    query: Recall, mode: Mode, question: str, categories: Mapping[str, str], summaries: Mapping[str, str]
) -> dict[LlmStep, Prompt]:
    """Return the prompts of a query's LLM steps. A step without content to judge has no prompt. `categories` are the
    tenant's."""
    found: dict[LlmStep, Prompt] = {}
    if query.select_categories and (offered := _offered(categories, summaries)):
        found["select_categories"] = select_prompt(question, offered)
    if query.check_sufficiency and (judged := fitting(summaries)):
        found["check_sufficiency"] = sufficiency_prompt(question, judged)
    if query.rewrite and mode not in NEVER_REWRITTEN:
        found["rewrite"] = rewrite_prompt(question)
    return found


def selected_categories(
    results: ModelResults, categories: Mapping[str, str], summaries: Mapping[str, str]
) -> list[str] | None:
    """Return the known categories that the model selected, in its order; None without an answer."""
    answer, offered = results.answer("select_categories"), _offered(categories, summaries)
    return None if answer is None else [name for name in dict.fromkeys(answer["categories"]) if name in offered]


def sufficient_summaries(results: ModelResults, question: str, summaries: Mapping[str, str]) -> dict[str, str]:
    """Return the summaries that the model judged sufficient. Return none if it did not, or if the summaries have
    changed since."""
    judged = fitting(summaries)
    answer = results.answer("check_sufficiency", sufficiency_prompt(question, judged))
    return judged if answer is not None and answer["sufficient"] is True else {}


def llm_warnings(query: Recall, results: ModelResults, left_out: int, *, has_model: bool, has_time: bool) -> list[Warn]:
    """Return warnings about requested LLM steps without a result, and about subqueries that were left out. A query
    without time for LLM steps has its own warning."""
    requested = requested_steps(query)
    if not requested or not has_time:
        return []
    if not has_model:
        missed = "; ".join(f"{step}: {_INSTEAD[step]}" for step in requested)
        return [Warn(code="llm_off", detail=f"no language model is configured; {missed}")]
    idle = [step for step in requested if step not in results.calls]
    found = [Warn(code="llm_skipped", detail=f"{', '.join(idle)}: nothing to ask the model")] if idle else []
    if left_out:
        count = f"{left_out} subquer{'ies were' if left_out > 1 else 'y was'}"
        detail = f"rewrite: {count} not answered, because an event of the owner arrived"
        found.append(Warn(code="llm_failed", detail=detail))
    failures = {step: call.failure for step, call in results.calls.items() if call.failure is not None}
    return found + [
        Warn(code="llm_failed", detail=f"{step}: {failures[step]}; {_INSTEAD[step]}")
        for step in LLM_STEPS
        if step in failures
    ]


def _offered(categories: Mapping[str, str], summaries: Mapping[str, str]) -> dict[str, str]:
    """Return the categories to choose from: the tenant's categories that have a summary, else all summaries."""
    known = {name: about for name, about in categories.items() if name in summaries}
    return frame.first_categories(known or summaries)
