"""The steps of a recall query, in order. The numbers refer to docs/internals/recall.md.

`stages.py` defines the result of each step. Step 1 (validate) only adds warnings, and is part of composing. Step 2
(authorise) precedes this module: every query here is authorised for its owner.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np

from recallflow.limits import PARTICIPANTS_MAX, QUERY_CHARACTERS
from recallflow.llm import Prompt
from recallflow.operators.recall import llm_steps, rerank, signal
from recallflow.operators.recall.context import read_summaries
from recallflow.operators.recall.deadline import Laps, Step
from recallflow.operators.recall.filters import Filtering, Linked, superseded, valid
from recallflow.operators.recall.moment import Moment, filtered_graph
from recallflow.operators.recall.question import Question, Vocabulary, intent_of, mode_for, understand
from recallflow.operators.recall.ranking import rank_candidates
from recallflow.operators.recall.ranking_input import tuned
from recallflow.operators.recall.respond import compose_answer, finish
from recallflow.operators.recall.said import LLM_STEPS, NOTHING, LlmStep, Said, Wanted
from recallflow.operators.recall.signal import Signal
from recallflow.operators.recall.stages import (
    NO_SUMMARIES,
    Asked,
    Candidates,
    CategorySummaries,
    ComposedAnswer,
    Engine,
    Expanded,
    Find,
    Permitted,
    Posed,
    Ranked,
    Recalled,
    Understood,
    find_nothing,
)
from recallflow.operators.recall.words import spend_scan
from recallflow.operators.redaction import REDACTED
from recallflow.queries import HOPS_MIN, Filters
from recallflow.responses import WARNINGS, RecalledMemory
from recallflow.state.index import OwnerIndex, of_memories
from recallflow.state.rows import language_in

NOTHING_RELEVANT = "nothing_relevant"
RARE_LANGUAGE = 50  # a language with a smaller share of the memories, 1 in this many, is noise such as a quotation

T = TypeVar("T")


def recall(
    engine: Engine,
    posed: Posed,
    said: Said = NOTHING,
    found: ComposedAnswer | None = None,
    beside: Sequence[ComposedAnswer] = (),
) -> Recalled:
    """Return a query's answer.

    Args:
        said: the model results so far.
        found: the answer composed while models were called, if it is still valid.
        beside: the answers of subqueries, composed likewise.

    Raises:
        InvalidRecord: the query cannot be answered.
    """
    if found is None:
        asked = _ask(engine, posed, said)
        found = _find_all(asked, _understand(asked))
    if rewritten := smaller_questions(found, said):
        found = merged(found, beside or [find_beside(found, said, question) for question in rewritten])
        found.asked.laps.lap("questions")
    return finish(found, said, rewritten)


def smaller_questions(found: ComposedAnswer, said: Said) -> list[str]:
    """Return the subqueries of a query's own question."""
    return llm_steps.sub_questions(said, found.understood.question.text)


def find_beside(found: ComposedAnswer, said: Said, question: str) -> ComposedAnswer:
    """Return the answer to a subquery, without context and LLM steps."""
    asked, understood = found.asked, found.understood
    plain = {"query": question, "mode": understood.tuning.mode, "strategy": "baseline", "max_tokens": None}
    query = asked.query.model_copy(update=plain | dict.fromkeys(LLM_STEPS, False))
    laps = Laps(asked.engine.timer)
    laps.add("question", asked.laps.elapsed_ms())
    vectors = Said(vectors=said.vectors, dropped=understood.dropped)
    beside = replace(asked, posed=asked.posed._replace(query=query), laps=laps, said=vectors)
    return _find_all(beside, _understand(beside))


def ranked_only(engine: Engine, posed: Posed, said: Said = NOTHING) -> Ranked:
    """Return a query's ranking, for callers that do not need memories."""
    asked = _ask(engine, posed, said)
    understood = _understand(asked)
    return rank_candidates(asked, understood, _read_signal(asked, understood, _permit(asked)))


def to_ask(engine: Engine, posed: Posed, said: Said, found: ComposedAnswer | None) -> tuple[Wanted, Find]:
    """Return the model requests before a query can be answered, and a function that composes the answer meanwhile.
    Without requests the function composes the whole answer."""
    if found is not None:
        return Wanted(texts=_texts(found.asked, found.understood, said)), lambda: found
    asked = _ask(engine, posed, said)
    understood, permitted = _understand(asked), _permit(asked)
    summaries = _summaries(asked, permitted)
    texts = _texts(asked, understood, said)
    wanted = Wanted(_prompts(asked, understood, summaries), texts, dropped=understood.dropped)
    if understood.question.own_words in texts:
        return wanted, find_nothing
    if _is_reranked(asked, understood):
        candidates = _read_signal(asked, understood, permitted)
        ranked = rank_candidates(asked, understood, candidates, rerank.BEST)
        best = rerank.texts(asked.rows(asked.index.conversation.slots[ranked.ranking.places].tolist()))
        if len(best) > 1:
            return wanted._replace(question=posed.query.query.strip(), candidates=best), find_nothing
    # Expansion adds memories that the quality gate must see only once.
    if wanted and posed.query.strategy == "hybrid_graph":
        return wanted, find_nothing
    return wanted, lambda: _find(asked, understood, permitted, summaries)


def to_embed(engine: Engine, posed: Posed, said: Said) -> Wanted:
    """Return the embedding request of `ranked_only`, if the question needs one."""
    asked = _ask(engine, posed, said)
    return Wanted(texts=_texts(asked, _understand(asked), said))


# ---------------------------------------------------------------------- model requests


def _prompts(asked: Asked, understood: Understood, summaries: CategorySummaries) -> dict[LlmStep, Prompt]:
    if "llm" in understood.dropped or "llm" not in asked.engine.models:
        return {}
    mode, question = understood.tuning.mode, understood.question.text
    prompts = llm_steps.prompts(asked.query, mode, question, asked.posed.categories, summaries.at_hand)
    return {step: prompt for step, prompt in prompts.items() if step not in asked.said.ended}


def _texts(asked: Asked, understood: Understood, said: Said) -> list[str]:
    """Return the texts for the embedding service: the question and its subqueries, unless they have cached or received
    vectors."""
    if "embed" not in asked.engine.models or understood.tuning.mode == "recency" or "dense" in understood.dropped:
        return []
    rewritten = llm_steps.sub_questions(said, understood.question.text)
    wanted = [understood.question, *(_read(asked, text) for text in rewritten)]
    texts = dict.fromkeys(question.own_words for question in wanted)
    cached = asked.engine.shared.questions.cached
    return [text for text in texts if text not in said.vectors and cached(text) is None]


def _is_reranked(asked: Asked, understood: Understood) -> bool:
    """Return whether the query still needs reranker scores."""
    wanted = understood.tuning.mode in rerank.MODES and "rerank" not in understood.dropped
    return wanted and "rerank" in asked.engine.models and asked.said.scored is None


# ---------------------------------------------------------------------- steps


def _ask(engine: Engine, posed: Posed, said: Said) -> Asked:
    laps, moment = Laps(engine.timer), Moment.of(posed.query, posed.asked_ms, posed.request.projects)
    index, graph = engine.at(posed.hot, moment)
    laps.lap("index")
    if said.ended or said.scored is not None:
        laps.add("models", said.took_ms)
    return Asked(engine, posed, moment, index, graph, laps, said)


def _read(asked: Asked, text: str) -> Question:
    """Analyse a question with the owner's participants and vocabulary."""
    return understand(text, participants(asked.index), vocabulary(asked.index))


def _understand(asked: Asked) -> Understood:
    query, shared = asked.query, asked.engine.shared
    question = _read(asked, query.query.strip()[:QUERY_CHARACTERS])
    intent = intent_of(question)
    tuning = tuned(query, mode_for(query.mode, intent), asked.posed.tenant)
    dropped = [*asked.said.dropped]
    if query.sla_target_ms is not None:
        ahead: list[Step] = []
        request, expansions = asked.request, asked.engine.expansions
        if query.strategy == "hybrid_graph" and expansions.is_on(request.owner.tenant_id, request.at_ms):
            ahead.append("graph")
        if query.traversal_depth > HOPS_MIN and tuning.wants_neighbours:
            ahead.append("boosts")
        if tuning.wants_proximity:
            ahead.append("proximity")
        # A cached vector costs no time.
        if tuning.mode != "recency" and shared.questions.cached(question.own_words) is None:
            ahead.append("dense")
        if "rerank" in asked.engine.models and asked.said.scored is None and tuning.mode in rerank.MODES:
            ahead.append("rerank")
        if "llm" in asked.engine.models and any(step not in asked.said.ended for step in llm_steps.steps(query)):
            ahead.append("llm")
        left_ms = query.sla_target_ms - asked.laps.elapsed_ms()
        dropped += shared.costs.drop([step for step in ahead if step not in dropped], left_ms)
    asked.laps.lap("understand")
    spend_scan(asked.index)
    return Understood(question, intent, tuning, dropped, asked.laps.elapsed_ms())


def _find(asked: Asked, understood: Understood, permitted: Permitted, summaries: CategorySummaries) -> ComposedAnswer:
    return _compose(asked, understood, permitted, _read_signal(asked, understood, permitted), summaries)


def _find_all(asked: Asked, understood: Understood) -> ComposedAnswer:
    permitted = _permit(asked)
    return _find(asked, understood, permitted, _summaries(asked, permitted))


def _permit(asked: Asked) -> Permitted:
    index, filters, project = asked.index, asked.query.filters, asked.query.project_id
    standing = valid(index, asked.moment)
    if (out := superseded(asked.graph, index, asked.moment)) is not None:
        standing &= ~out
    spend_scan(index)
    if project is None and not filters.model_fields_set:
        return Permitted(standing.nonzero()[0], [], 0)
    linked = Linked(filtered_graph(asked.hot, index, asked.moment), index, asked.moment)
    filtering = Filtering(index, linked)
    mask = standing & filtering.within(filters)
    if project is not None:
        mask &= filtering.within(Filters(project_id=project))
    places = mask.nonzero()[0]
    return Permitted(places, linked.warnings(), int(standing.sum()) - len(places))


def _summaries(asked: Asked, permitted: Permitted) -> CategorySummaries:
    if llm_steps.context_tokens(asked.query) is None:
        return NO_SUMMARIES
    filters, configured = asked.query.filters, asked.posed.categories
    found = read_summaries(asked.hot, asked.moment, asked.index, permitted.places, filters, asked.rows, configured)
    asked.laps.lap("summaries")
    return found


def _read_signal(asked: Asked, understood: Understood, permitted: Permitted) -> Candidates:
    index, shared, question = asked.index, asked.engine.shared, understood.question
    if understood.tuning.mode == "recency" or not index.conversation.size:
        found = Signal()
    elif "dense" in understood.dropped:
        found = Signal(signal.by_words(shared, index, question, permitted.places))
    else:
        received = asked.said.vectors.get(question.own_words)
        found = signal.read(shared, index, question, permitted.places, asked.rows, received)
        if received is not None:  # its time is counted in "models"
            found = found._replace(took_ms=0.0)
    asked.laps.lap("candidates")
    spend_scan(index)
    return Candidates(permitted.places, found)


def _compose(
    asked: Asked, understood: Understood, permitted: Permitted, candidates: Candidates, summaries: CategorySummaries
) -> ComposedAnswer:
    ranked = rank_candidates(asked, understood, candidates)
    spend_scan(asked.index)
    expanded = _expand(asked, understood, ranked)
    return compose_answer(asked, understood, permitted, candidates, ranked, expanded, summaries)


def _expand(asked: Asked, understood: Understood, ranked: Ranked) -> Expanded:
    query, places, applied = asked.query, ranked.ranking.places, None
    relevance = ranked.judged.relevance
    if query.strategy == "hybrid_graph":
        no_time, is_late = "graph" in understood.dropped, partial(_is_late, asked)
        applied, added = ranked.graph.expand(places, query.traversal_depth, no_time=no_time, is_late=is_late)
        found = ranked.judged.judge.at(added)
        if query.min_relevance is not None:
            enough = found >= query.min_relevance
            applied, added, found = applied.only(enough.tolist()), added[enough], found[enough]
        relevance = np.concatenate([relevance, found])
        places = np.concatenate([places, added])
        took_ms = asked.laps.lap("expand")
        if applied.ran and not no_time:
            asked.engine.shared.costs.add("graph", took_ms)
    rows = asked.rows(asked.index.conversation.slots[places].tolist())
    asked.laps.lap("fetch")
    return Expanded(places, relevance, rows, applied)


def _is_late(asked: Asked) -> bool:
    """Return whether the query's target time has passed."""
    target_ms = asked.query.sla_target_ms
    return target_ms is not None and asked.laps.elapsed_ms() > target_ms


def vocabulary(index: OwnerIndex) -> Vocabulary:
    """Return the languages of at least one in fifty current memories, and a test for stems that memories hold."""
    return Vocabulary(_languages(index), lambda stem: index.standing[stem].holders > 0)


@of_memories
def _languages(index: OwnerIndex) -> list[int]:
    counted = np.bincount(language_in(index.conversation.facts["flags"]), minlength=1)
    common = counted * RARE_LANGUAGE >= max(counted.sum(), 1)
    return [number for number in np.argsort(-counted, kind="stable").tolist() if common[number]] or [0]


@of_memories
def participants(index: OwnerIndex) -> list[str]:
    """Return the authors of current memories, at most those with the most memories."""
    now = index.conversation
    authors = now.authors[now.authors >= 0]
    if len(authors) > PARTICIPANTS_MAX:
        wrote = np.bincount(now.facts["author"] + 1)[authors + 1]
        authors = np.sort(authors[np.argsort(-wrote, kind="stable")[:PARTICIPANTS_MAX]])
    return [index.names.strings[author] for author in authors]


# ---------------------------------------------------------------------- merging of subqueries


def merged(own: ComposedAnswer, others: Sequence[ComposedAnswer]) -> ComposedAnswer:
    """Return the query's answer, merged with the answers to its subqueries.

    A memory's rank is its best rank in any answer. Ranks are comparable between answers; scores are not, because each
    answer scales its own. A memory's fields come from the answer with its best rank, and `question` names its subquery.
    """
    ranked = [memory for memory in own.memories if memory.id not in own.added]
    answers = [ranked, *(_with_question(found) for found in others)]
    best = best_first(answers, lambda memory: (memory.id, memory.version))[: own.understood.tuning.k]
    # Memories whose text cannot be decrypted sort last.
    best.sort(key=lambda memory: memory.content == REDACTED)
    there = {memory.id for memory in best}
    every = [*best, *(memory for memory in own.memories if memory.id in own.added and memory.id not in there)]
    known = [found.answerable for found in (own, *others) if found.answerable is not None]
    codes = {warning.code for warning in own.warnings}
    if any(NOTHING_RELEVANT not in (warning.code for warning in found.warnings) for found in others):
        codes.discard(NOTHING_RELEVANT)
    warnings = [warning for warning in own.warnings if warning.code in codes]
    for warning in chain.from_iterable(found.warnings for found in others):
        if WARNINGS[warning.code].degrades and warning.code not in codes:
            codes.add(warning.code)
            warnings.append(warning)
    return replace(
        own,
        memories=[memory.model_copy(update={"rank": rank}) for rank, memory in enumerate(every, 1)],
        seqs={memory_id: seq for found in (*others, own) for memory_id, seq in found.seqs.items()},
        answerable=max(known, default=None),
        tiebreak_applied=any(found.tiebreak_applied for found in (own, *others)),
        warnings=warnings,
    )


def _with_question(found: ComposedAnswer) -> list[RecalledMemory]:
    question = found.understood.question.text
    return [memory.model_copy(update={"question": question}) for memory in found.memories]


def best_first(answers: Sequence[Sequence[T]], key: Callable[[T], Hashable]) -> list[T]:
    """Return the distinct items of all answers by their best rank. At equal ranks the earlier answer comes first."""
    found: dict[Hashable, T] = {}
    for at in range(max(map(len, answers))):
        for answer in answers:
            if at < len(answer):
                found.setdefault(key(answer[at]), answer[at])
    return [*found.values()]
