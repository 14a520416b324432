"""The steps of a recall query, in order. The numbers refer to docs/internals/recall.md.

`stages.py` defines the result of each step. Step 1 (validate) only adds warnings, and is part of composing. Step 2
(authorise) precedes this module: every query here is authorised for its owner."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from typing import TypeVar

import numpy as np

from recallflow.limits import PARTICIPANTS_MAX, QUERY_CHARACTERS
from recallflow.llm import Prompt
from recallflow.operators.recall import model_calls, stages
from recallflow.operators.recall.compose import ResponseAndEffects, compose_answer, finish
from recallflow.operators.recall.context import read_summaries
from recallflow.operators.recall.deadline import Step, StepTimings
from recallflow.operators.recall.filters import Filtering, superseded, valid
from recallflow.operators.recall.model_calls import LLM_STEPS, NO_RESULTS, LlmStep, ModelRequests, ModelResults
from recallflow.operators.recall.moment import Moment, graph_at
from recallflow.operators.recall.question import MODE_OF, Question, Vocabulary, analyse_question, intent_of
from recallflow.operators.recall.rank_and_judge import rank_candidates, read_signal
from recallflow.operators.recall.ranking_input import Tuning, ranking_parameters
from recallflow.operators.recall.stages import ComposedAnswer, Engine, QueryRun, RecallRequest
from recallflow.operators.recall.words import spend_scan
from recallflow.operators.redaction import REDACTED
from recallflow.queries import HOPS_MIN
from recallflow.responses import WARNINGS
from recallflow.state.index import OwnerIndex, cached_per_index
from recallflow.state.rows import language_in

RARE_LANGUAGE = 50  # a language of fewer than 1 in this many memories is noise, such as quotations
T = TypeVar("T")


def recall(
    engine: Engine,
    request: RecallRequest,
    results: ModelResults = NO_RESULTS,
    composed: ComposedAnswer | None = None,
    has_event: Callable[[], bool] = lambda: False,
) -> ResponseAndEffects:
    """Return a query's response and its effects. `results` are the model results so far. `composed` is the answer that
    was composed during the model calls, if it is still valid. Once `has_event` returns True, an event of the owner
    waits for the answer, and subqueries that have not begun are left out. Raise InvalidRecord."""
    if composed is None:
        composed = _find_all(_begin(engine, request, results))
    questions = model_calls.subqueries(results, composed.run.question.text)
    answered = takewhile(lambda _: not has_event(), questions)
    subanswers = [_answer_subquery(composed, results, question) for question in answered]
    if subanswers:
        composed = merged(composed, subanswers)
        composed.run.timings.end("questions")
    return finish(composed, results, questions[: len(subanswers)], len(questions) - len(subanswers))


def _answer_subquery(main: ComposedAnswer, results: ModelResults, question: str) -> ComposedAnswer:
    """Return the answer to a subquery of the `main` query, without context and LLM steps."""
    run = main.run
    plain = {"query": question, "mode": run.tuning.mode, "strategy": "baseline", "max_tokens": None}
    query = run.query.model_copy(update=plain | dict.fromkeys(LLM_STEPS, False))
    vectors = ModelResults(vectors=results.vectors, dropped=run.dropped)
    return _find_all(_begin(run.engine, run.request._replace(query=query), vectors, run))


def ranked_only(engine: Engine, request: RecallRequest, results: ModelResults = NO_RESULTS) -> stages.Ranked:
    """Return a query's ranking, for callers that do not need memories."""
    run = _begin(engine, request, results)
    permitted = _permit(run).positions
    return rank_candidates(run, permitted, read_signal(run, permitted))


def plan_model_calls(
    engine: Engine, request: RecallRequest, results: ModelResults, composed: ComposedAnswer | None
) -> tuple[ModelRequests, stages.AnswerComposer | None]:
    """Return the model requests that a query waits for, and a function that composes the answer meanwhile, or None if
    the answer depends on their results. Without requests the function composes the whole answer."""
    if composed is not None:
        return ModelRequests(texts=_texts_to_embed(composed.run, results)), lambda: composed
    run = _begin(engine, request, results)
    permitted = _permit(run)
    summaries, texts = _summaries(run, permitted), _texts_to_embed(run, results)
    requests = ModelRequests(_prompts(run, summaries), texts, dropped=run.dropped)
    if run.question.first_person_text in texts:
        return requests, None
    if _may_rerank(engine, results, run.tuning) and "rerank" not in run.dropped:
        signal = read_signal(run, permitted.positions)
        ranked = rank_candidates(run, permitted.positions, signal, model_calls.RERANKED_MOST)
        best = run.rows(run.index.conversation.slots[ranked.ranking.positions].tolist())
        candidates = model_calls.rerank_texts(best)
        if len(candidates) > 1:
            return requests._replace(question=request.query.query.strip(), candidates=candidates), None
    # Expansion adds memories that the quality gate must see only once.
    if requests and request.query.strategy == "hybrid_graph":
        return requests, None
    return requests, lambda: _find(run, permitted, summaries)


def plan_embedding(engine: Engine, request: RecallRequest, results: ModelResults) -> ModelRequests:
    """Return the embedding request of `ranked_only`, if the question needs one."""
    return ModelRequests(texts=_texts_to_embed(_begin(engine, request, results), results))


def _prompts(run: QueryRun, summaries: stages.CategorySummaries) -> dict[LlmStep, Prompt]:
    if "llm" in run.dropped or "llm" not in run.engine.models:
        return {}
    mode, question = run.tuning.mode, run.question.text
    prompts = model_calls.step_prompts(run.query, mode, question, run.request.categories, summaries.available)
    return {step: prompt for step, prompt in prompts.items() if step not in run.results.calls}


def _texts_to_embed(run: QueryRun, results: ModelResults) -> list[str]:
    """Return the texts for the embedding service: the question and its subqueries, unless they have cached or received
    vectors."""
    if "embed" not in run.engine.models or run.tuning.mode == "recency" or "dense" in run.dropped:
        return []
    subqueries = model_calls.subqueries(results, run.question.text)
    questions = [run.question, *(_analyse(run.index, text) for text in subqueries)]
    texts = dict.fromkeys(question.first_person_text for question in questions)
    cached = run.engine.shared.questions.cached
    return [text for text in texts if text not in results.vectors and cached(text) is None]


def _may_rerank(engine: Engine, results: ModelResults, tuning: Tuning) -> bool:
    """Return whether a reranker may order the answer in this mode, and has not been called yet."""
    return tuning.mode in model_calls.RERANKED_MODES and "rerank" in engine.models and "rerank" not in results.calls


def _analyse(index: OwnerIndex, text: str) -> Question:
    return analyse_question(text, participants(index), vocabulary(index))


def _begin(engine: Engine, request: RecallRequest, results: ModelResults, main: QueryRun | None = None) -> QueryRun:
    """Analyse a query. A subquery shares the moment, the index, the graph and the rows of its `main` query."""
    timings = StepTimings(engine.timer)
    if main is not None:
        moment, index, graph, rows = main.moment, main.index, main.graph, main.row_cache
        timings.add("question", main.timings.elapsed_ms())
    else:
        moment, rows = Moment.of(request.query, request.ask.asked_ms, request.ask.projects), {}
        index, graph = engine.at(request.hot, moment)
        timings.end("index")
        if results.calls:
            timings.add("models", results.took_ms)
    query, ask, shared = request.query, request.ask, engine.shared
    question = _analyse(index, query.query.strip()[:QUERY_CHARACTERS])
    intent = intent_of(question)
    tuning = ranking_parameters(query, MODE_OF[intent] if query.mode == "auto" else query.mode, request.tenant)
    dropped = [*results.dropped]
    if query.sla_target_ms is not None:
        optional: list[Step] = []
        if query.strategy == "hybrid_graph" and engine.expansions.is_on(ask.owner.tenant_id, ask.record.append_ms):
            optional.append("graph")
        if query.traversal_depth > HOPS_MIN and tuning.wants_neighbours:
            optional.append("boosts")
        if tuning.wants_proximity:
            optional.append("proximity")
        # A cached vector costs no time.
        if tuning.mode != "recency" and shared.questions.cached(question.first_person_text) is None:
            optional.append("dense")
        if _may_rerank(engine, results, tuning):
            optional.append("rerank")
        if "llm" in engine.models and any(step not in results.calls for step in model_calls.requested_steps(query)):
            optional.append("llm")
        left_ms = query.sla_target_ms - timings.elapsed_ms()
        dropped += shared.costs.drop_steps([step for step in optional if step not in dropped], left_ms)
    timings.end("understand")
    spend_scan(index)
    analysis_ms = timings.elapsed_ms()
    return QueryRun(
        engine, request, moment, index, graph, timings, results, rows, question, intent, tuning, dropped, analysis_ms
    )


def _find(run: QueryRun, permitted: stages.Permitted, summaries: stages.CategorySummaries) -> ComposedAnswer:
    signal = read_signal(run, permitted.positions)
    ranked = rank_candidates(run, permitted.positions, signal)
    spend_scan(run.index)
    return compose_answer(run, permitted, signal, ranked, _expand(run, ranked), summaries)


def _find_all(run: QueryRun) -> ComposedAnswer:
    permitted = _permit(run)
    return _find(run, permitted, _summaries(run, permitted))


def _permit(run: QueryRun) -> stages.Permitted:
    index, filters, project = run.index, run.query.filters, run.query.project_id
    is_current = valid(index, run.moment)
    if (is_superseded := superseded(run.graph, index, run.moment)) is not None:
        is_current &= ~is_superseded
    spend_scan(index)
    if project is None and not filters.model_fields_set:
        return stages.Permitted(is_current.nonzero()[0], [], 0)
    graph = graph_at(run.request.hot, index, run.moment, of_versions=run.moment.history)
    filtering = Filtering(index, graph, run.moment)
    positions = (is_current & filtering.within(filters, project)).nonzero()[0]
    return stages.Permitted(positions, filtering.warnings(), int(is_current.sum()) - len(positions))


def _summaries(run: QueryRun, permitted: stages.Permitted) -> stages.CategorySummaries:
    if model_calls.context_tokens(run.query) is None:
        return stages.NO_SUMMARIES
    found = read_summaries(run, permitted.positions)
    run.timings.end("summaries")
    return found


def _expand(run: QueryRun, ranked: stages.Ranked) -> stages.Expanded:
    query, positions, applied = run.query, ranked.ranking.positions, None
    relevance, target_ms = ranked.judged.relevance, run.query.sla_target_ms

    def is_late() -> bool:
        return target_ms is not None and run.timings.elapsed_ms() > target_ms

    if query.strategy == "hybrid_graph":
        no_time = "graph" in run.dropped
        applied, added = ranked.graph.expand(positions, query.traversal_depth, no_time=no_time, is_late=is_late)
        found = ranked.judged.judge.relevance_at(added)
        if query.min_relevance is not None:
            enough = found >= query.min_relevance
            applied, added, found = applied.only(enough.tolist()), added[enough], found[enough]
        relevance = np.concatenate([relevance, found])
        positions = np.concatenate([positions, added])
        took_ms = run.timings.end("expand")
        if applied.ran and not no_time:
            run.engine.shared.costs.add("graph", took_ms)
    rows = run.rows(run.index.conversation.slots[positions].tolist())
    run.timings.end("fetch")
    return stages.Expanded(positions, relevance, rows, applied)


def vocabulary(index: OwnerIndex) -> Vocabulary:
    """Return the languages of at least one in fifty current memories, and a test for stems that memories hold."""
    return Vocabulary(_languages(index), lambda stem: index.stem_occurrences[stem].memory_count > 0)


@cached_per_index
def _languages(index: OwnerIndex) -> list[int]:
    counts = np.bincount(language_in(index.conversation.facts["flags"]), minlength=1)
    is_common = counts * RARE_LANGUAGE >= max(counts.sum(), 1)
    return [number for number in np.argsort(-counts, kind="stable").tolist() if is_common[number]] or [0]


@cached_per_index
def participants(index: OwnerIndex) -> list[str]:
    """Return the authors of current memories; of more than `PARTICIPANTS_MAX`, those with the most memories."""
    conversation = index.conversation
    authors = conversation.authors[conversation.authors >= 0]
    if len(authors) > PARTICIPANTS_MAX:
        memory_counts = np.bincount(conversation.facts["author"] + 1)[authors + 1]
        authors = np.sort(authors[np.argsort(-memory_counts, kind="stable")[:PARTICIPANTS_MAX]])
    return [index.names.strings[author] for author in authors]


def merged(own: ComposedAnswer, others: Sequence[ComposedAnswer]) -> ComposedAnswer:
    """Return the query's answer, merged with the answers to its subqueries. A memory's rank is its best rank in any
    answer. Ranks are comparable between answers; scores are not, because each answer scales its own. A memory's fields
    come from the answer with its best rank, and its field `question` names the subquery of that answer."""
    answers = [[memory for memory in own.memories if memory.id not in own.added]]
    for answer in others:
        question = {"question": answer.run.question.text}
        answers.append([memory.model_copy(update=question) for memory in answer.memories])
    best = best_first(answers, lambda memory: (memory.id, memory.version))[: own.run.tuning.k]
    # Memories whose text cannot be decrypted sort last.
    best.sort(key=lambda memory: memory.content == REDACTED)
    best_ids = {memory.id for memory in best}
    memories = [*best, *(memory for memory in own.memories if memory.id in own.added and memory.id not in best_ids)]
    probabilities = [answer.answerable for answer in (own, *others) if answer.answerable is not None]
    codes = {warning.code for warning in own.warnings}
    if any("nothing_relevant" not in (warning.code for warning in found.warnings) for found in others):
        codes.discard("nothing_relevant")
    warnings = [warning for warning in own.warnings if warning.code in codes]
    for warning in chain.from_iterable(found.warnings for found in others):
        if WARNINGS[warning.code].degrades and warning.code not in codes:
            codes.add(warning.code)
            warnings.append(warning)
    return replace(
        own,
        memories=[memory.model_copy(update={"rank": rank}) for rank, memory in enumerate(memories, 1)],
        seqs={memory_id: seq for found in (*others, own) for memory_id, seq in found.seqs.items()},
        answerable=max(probabilities, default=None),
        tiebreak_applied=any(found.tiebreak_applied for found in (own, *others)),
        warnings=warnings,
    )


def best_first(answers: Sequence[Sequence[T]], key: Callable[[T], Hashable]) -> list[T]:
    """Return the distinct items of all answers by their best rank. At equal ranks the earlier answer comes first."""
    best: dict[Hashable, T] = {}
    for rank in range(max(map(len, answers))):
        for answer in answers:
            if rank < len(answer):
                best.setdefault(key(answer[rank]), answer[rank])
    return [*best.values()]
