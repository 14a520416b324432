"""LLM steps of a recall query: category selection, sufficiency of summaries, and subqueries.

A failed step loses nothing: all categories are loaded, the memories stay in the answer, and the original question is
asked alone.
"""

from collections.abc import Mapping

from recallflow.llm import Prompt
from recallflow.operators.enrichment import prompts as llm_prompts
from recallflow.operators.recall.said import LLM_STEPS, LlmStep, Said
from recallflow.queries import Mode, Recall
from recallflow.responses import Warn

CONTEXT_TOKENS = 2_000  # default budget of a context
# Modes that order by something other than fit. Answers to several subqueries cannot be merged into such an order.
NEVER_REWRITTEN: frozenset[Mode] = frozenset({"recency", "episode"})
_INSTEAD: Mapping[LlmStep, str] = {
    "select_categories": "all categories were loaded",
    "check_sufficiency": "the memories stay",
    "rewrite": "only the question itself was asked",
}


def context_tokens(query: Recall) -> int | None:
    """Return the token budget of the query's context, or None without a context. Steps that select or judge summaries
    require one."""
    deals = query.select_categories or query.check_sufficiency
    return CONTEXT_TOKENS if query.max_tokens is None and deals else query.max_tokens


def steps(query: Recall) -> list[LlmStep]:
    """Return the LLM steps that a query requests."""
    return [step for step in LLM_STEPS if getattr(query, step)]


def prompts(
    query: Recall, mode: Mode, question: str, categories: Mapping[str, str], summaries: Mapping[str, str]
) -> dict[LlmStep, Prompt]:
    """Return the prompts of a query's LLM steps. A step without content to judge has no prompt.

    Args:
        categories: the tenant's categories.
        summaries: the available summaries by category.
    """
    found: dict[LlmStep, Prompt] = {}
    if query.select_categories and (offered := _offered(categories, summaries)):
        found["select_categories"] = llm_prompts.select_categories(question, offered)
    if query.check_sufficiency and (judged := llm_prompts.fitting(summaries)):
        found["check_sufficiency"] = llm_prompts.check_sufficiency(question, judged)
    if query.rewrite and mode not in NEVER_REWRITTEN:
        found["rewrite"] = llm_prompts.rewrite(question)
    return found


def selected(said: Said, categories: Mapping[str, str], summaries: Mapping[str, str]) -> list[str] | None:
    """Return the categories that the model selected, in its order, or None if it selected none."""
    answer = said.answer("select_categories")
    return None if answer is None else llm_prompts.read_selected(answer, _offered(categories, summaries))


def judged_sufficient(said: Said, question: str, summaries: Mapping[str, str]) -> dict[str, str]:
    """Return the summaries that the model judged sufficient. Return none if it did not, or if the summaries have
    changed since."""
    judged = llm_prompts.fitting(summaries)
    answer = said.answer("check_sufficiency", llm_prompts.check_sufficiency(question, judged))
    return judged if answer is not None and llm_prompts.read_sufficient(answer) else {}


def sub_questions(said: Said, question: str) -> list[str]:
    """Return the subqueries of a question, without the last ones that were left out."""
    answer = said.answer("rewrite")
    made = [] if answer is None else llm_prompts.read_rewritten(answer, question)
    return made if said.left_out is None else made[: max(len(made) - said.left_out.questions, 0)]


def warnings(query: Recall, said: Said, *, has_model: bool, has_time: bool) -> list[Warn]:
    """Return warnings about requested LLM steps without a result. A query without time for them has its own warning."""
    wanted = steps(query)
    if not wanted or not has_time:
        return []
    if not has_model:
        missed = "; ".join(f"{step}: {_INSTEAD[step]}" for step in wanted)
        return [Warn(code="llm_off", detail=f"no language model is configured; {missed}")]
    idle = [step for step in wanted if step not in said.ended]
    found = [Warn(code="llm_skipped", detail=f"nothing to ask for {' and '.join(idle)}")] if idle else []
    if said.left_out is not None:
        count, code = said.left_out
        detail = f"rewrite: {code}; {count} smaller question{'s were' if count > 1 else ' was'} not asked"
        found.append(Warn(code="llm_failed", detail=detail))
    return found + [
        Warn(code="llm_failed", detail=f"{step}: {failure}; {_INSTEAD[step]}") for step, failure in said.failures()
    ]


def _offered(categories: Mapping[str, str], summaries: Mapping[str, str]) -> dict[str, str]:
    """Return the categories to choose from: the tenant's categories that have a summary, else all summaries."""
    known = {name: about for name, about in categories.items() if name in summaries}
    return llm_prompts.offer(known or summaries)
