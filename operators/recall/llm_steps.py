"""The steps of an answer that a language model is asked for: which categories to load, whether summaries are enough,
and which smaller questions a question is made of.

None of them may lose anything where the model fails: then all categories are loaded, the memories stay, and the
question is answered as it was asked.
"""

from collections.abc import Mapping

from recallflow.llm import Prompt
from recallflow.operators.enrichment import questions
from recallflow.operators.recall.said import LLM_STEPS, LlmStep, Said
from recallflow.queries import Mode, Recall
from recallflow.responses import Warn

CONTEXT_TOKENS = 2_000  # of a context that nobody gave a budget
# Whose answer has another order than one by fit, which answers to several questions cannot be merged into.
NEVER_REWRITTEN: frozenset[Mode] = frozenset({"recency", "episode"})
_INSTEAD: Mapping[LlmStep, str] = {
    "select_categories": "all categories were loaded",
    "check_sufficiency": "the memories stay",
    "rewrite": "only the question itself was asked",
}


def context_tokens(query: Recall) -> int | None:
    """The budget of the query's context, if there is to be one: what deals with summaries needs a place for them."""
    deals = query.select_categories or query.check_sufficiency
    return CONTEXT_TOKENS if query.max_tokens is None and deals else query.max_tokens


def steps(query: Recall) -> list[LlmStep]:
    """The steps that a query wants."""
    return [step for step in LLM_STEPS if getattr(query, step)]


def prompts(
    query: Recall, mode: Mode, question: str, categories: Mapping[str, str], summaries: Mapping[str, str]
) -> dict[LlmStep, Prompt]:
    """What a language model is asked for a query; nothing where it would have nothing to say. `categories`: the
    tenant's; `summaries`: those at hand."""
    found: dict[LlmStep, Prompt] = {}
    if query.select_categories and (offered := _offered(categories, summaries)):
        found["select_categories"] = questions.select_categories(question, offered)
    if query.check_sufficiency and (judged := questions.fitting(summaries)):
        found["check_sufficiency"] = questions.check_sufficiency(question, judged)
    if query.rewrite and mode not in NEVER_REWRITTEN:
        found["rewrite"] = questions.rewrite(question)
    return found


def selected(said: Said, categories: Mapping[str, str], summaries: Mapping[str, str]) -> list[str] | None:
    """The categories that the model selected, in its order; None where it did not."""
    answer = said.answer("select_categories")
    return None if answer is None else questions.read_selected(answer, _offered(categories, summaries))


def judged_sufficient(said: Said, question: str, summaries: Mapping[str, str]) -> dict[str, str]:
    """The summaries that the model found to be enough; none where it did not, or where they are others by now."""
    judged = questions.fitting(summaries)
    answer = said.answer("check_sufficiency", questions.check_sufficiency(question, judged))
    return judged if answer is not None and questions.read_sufficient(answer) else {}


def sub_questions(said: Said, question: str) -> list[str]:
    """The smaller questions that the model made of a question, but for those left out, the last ones."""
    answer = said.answer("rewrite")
    made = [] if answer is None else questions.read_rewritten(answer, question)
    return made if said.left_out is None else made[: max(len(made) - said.left_out.questions, 0)]


def warnings(query: Recall, said: Said, *, has_model: bool, has_time: bool) -> list[Warn]:
    """What a query wanted of a language model and did not get; where there was no time, another warning says so."""
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
    """The categories to choose from: those of the tenant that there is a summary of; where none of them has one, all
    that have one, which then say themselves what they are about."""
    known = {name: about for name, about in categories.items() if name in summaries}
    return questions.offer(known or summaries)
