"""Computes the semantic signal of a question with its fallbacks (step 4), ranks the permitted memories with the graph's
contribution, and computes their relevance (steps 6, 7, 9)."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from recallflow.embedder import NO_FLOATS, Embedder, TextVectors
from recallflow.fields import format_time
from recallflow.language.statements import StatementReading, read_statements
from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.recall import model_calls, people, updates
from recallflow.operators.recall.columns import Columns, compute, fact_columns
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.ranking import CANDIDATES, rank
from recallflow.operators.recall.ranking_input import NO_SEQS, Ranking, RankingInput
from recallflow.operators.recall.relevance import NEAREST, Judge, Judgement
from recallflow.operators.recall.relevance_weights import Basis
from recallflow.operators.recall.shared import QuestionVector, Shared
from recallflow.operators.recall.stages import NO_FURTHER, FurtherMemories, QueryRun, Ranked, Signal
from recallflow.operators.recall.updates import Replacement
from recallflow.operators.recall.weights import LEXICAL_WEIGHTS, WEIGHTS, has_one_person, sets_for, weights_of
from recallflow.operators.recall.words import compares_tokens, spend_scan
from recallflow.operators.redaction import RowsReader, is_readable
from recallflow.queries import HOPS_MIN
from recallflow.state.arrays import Column, Positions
from recallflow.state.index import OwnerIndex

FALLBACK_CANDIDATES = 200
FURTHER_MAX = 200  # ranked memories beyond the answer that a context may hold
CACHED_STATEMENTS = 4_096  # per owner
STATEMENT_CHARACTERS = 500  # per memory: a memory that replaces a fact says so at its beginning


def read_signal(run: QueryRun, permitted: Positions) -> Signal:
    """Return the signal of a query over the permitted positions."""
    index, shared, question = run.index, run.engine.shared, run.question
    if run.tuning.mode == "recency" or not index.conversation.size:
        signal = Signal()
    elif "dense" in run.dropped:
        signal = Signal(_by_words(shared, index, question, permitted))
    else:
        received = run.results.vectors.get(question.first_person_text)
        signal = signal_by_vector(shared, index, question, permitted, run.rows, received)
        if received is not None:  # its time is counted in "models"
            signal = signal._replace(took_ms=0.0)
    run.timings.end("candidates")
    spend_scan(index)
    return signal


def signal_by_vector(
    shared: Shared,
    index: OwnerIndex,
    question: Question,
    permitted: Positions,
    rows: RowsReader,
    received: QuestionVector | None = None,
) -> Signal:
    """Return the signal from the question's vector and words. If the model fails, the signal uses words, and the
    fallback's vectors of the question and the best candidates. `received` is the question's vector from an embedding
    service."""
    questions, conversation = shared.questions, index.conversation
    embedding = questions.embed(question.first_person_text) if received is None else received
    cache_hits = ("question_vector",) if embedding.cached else ()
    if not embedding.cached:
        shared.costs.add("dense", embedding.took_ms)
    if embedding.vector is None:
        columns, fallback = _by_words(shared, index, question, permitted), questions.fallback
        if fallback is not None:
            values = {**columns.values, "dense": _dense_by(fallback, columns, index, question, permitted, rows)}
            weights = weights_of(index, WEIGHTS["spelling"])
            columns = replace(columns, values=values, weights=weights, partial_sum=None)
        problems = () if embedding.problem is None else (embedding.problem,)
        return Signal(columns, uses_vectors=fallback is not None, took_ms=embedding.took_ms, warnings=problems)
    found = Signal(vector=embedding.vector, uses_vectors=True, cache_hits=cache_hits, took_ms=embedding.took_ms)
    if (cached := shared.candidates.get(conversation, question.text)) is not None:
        return found._replace(columns=cached, cache_hits=(*cache_hits, "candidates"))
    query = TextVectors(embedding.vector, embedding.tokens)
    sets = sets_for(questions.embedder.kind, by_token=compares_tokens(index, query))
    weights = weights_of(index, sets, is_spaced=question.table.has_spaces)
    columns = compute(index, question, query, weights, permitted)
    if columns.complete:
        shared.candidates.put(conversation, question.text, columns)
    return found._replace(columns=columns)


def _by_words(shared: Shared, index: OwnerIndex, question: Question, permitted: Positions) -> Columns:
    """Return the columns without the question's vector."""
    # All cosines with a zero vector are equal, so that every column of vectors is 0.
    zero_vectors = TextVectors(np.zeros(shared.questions.embedder.dimension, np.float32), NO_FLOATS)
    return compute(index, question, zero_vectors, weights_of(index, LEXICAL_WEIGHTS), permitted)


def _dense_by(
    fallback: Embedder, columns: Columns, index: OwnerIndex, question: Question, permitted: Positions, rows: RowsReader
) -> Column:
    """Return (n,) z-scores of the fallback's cosines over the best permitted memories by words, 0 elsewhere."""
    score = columns.score()
    best = permitted[np.argsort(-score[permitted], kind="stable")[:FALLBACK_CANDIDATES]]
    found = zip(best, rows(index.conversation.slots[best].tolist()), strict=True)
    readable = [(position, row) for position, row in found if is_readable(row)]
    dense = np.zeros(len(score))
    if readable:
        texts = [f"{row.author}: {row.content}" if row.author else row.content for _, row in readable]
        matrix = fallback.embed([question.first_person_text, *texts]).astype(np.float64)
        cosines = matrix[1:] @ matrix[0]
        dense[[position for position, _ in readable]] = (cosines - cosines.mean()) / (cosines.std() + 1e-6)
    return dense


def rank_candidates(run: QueryRun, permitted: Positions, signal: Signal, min_count: int = 0) -> Ranked:
    """Rank the permitted memories, and return the best: as many as the answer may have, or `min_count` if that is
    more."""
    query, tuning, min_relevance = run.query, run.tuning, run.query.min_relevance
    scores = run.results.rerank_scores
    is_whole = tuning.mode == "episode"  # an episode must keep all its members
    applies_updates = tuning.mode in updates.MODES and not min_count  # else they are candidates of a reranker
    has_context = model_calls.context_tokens(query) is not None and not is_whole and not min_count
    ranked_count = max(min_count, model_calls.RERANKED_MOST if scores else 0)
    if applies_updates or has_context or (min_relevance is not None and not is_whole):
        ranked_count = CANDIDATES
    inputs, graph, judge = _input(run, permitted, signal, ranked_count)
    ranking = rank(inputs) if len(inputs.allowed) else Ranking(inputs.allowed, np.zeros(0))
    if scores:
        ranking = _reranked(inputs, ranking, scores)
    replacements: Mapping[int, Replacement] = {}
    if applies_updates and len(ranking.positions) > 1:
        ranking, replacements = _apply_updates(run, inputs, ranking)
    run.timings.end("rank")
    cut = slice(max(min_count, tuning.memories_max))
    full_ranking = ranking
    if min_relevance is None:  # only the answered memories need a relevance
        ranking = ranking.only(cut)
    judged = _judged(judge, inputs, ranking)
    beyond: Positions | slice = slice(cut.stop, cut.stop + FURTHER_MAX)
    if min_relevance is not None:
        enough = (judged.relevance >= min_relevance).nonzero()[0]
        enough, beyond = enough[cut], enough[beyond]
        ranking, judged = ranking.only(enough), judged.only(enough)
    run.timings.end("judge")
    further = NO_FURTHER
    if has_context:
        positions, created_ms = full_ranking.positions[beyond], run.index.conversation.facts["created_ms"]
        replaced = replacements.keys() & {*positions.tolist()}
        replaced_at = {position: format_time(int(created_ms[replacements[position].by])) for position in replaced}
        further = FurtherMemories(positions, full_ranking.scores[beyond], replaced_at)
    return Ranked(inputs, ranking, graph, judged, replacements, further)


def _input(run: QueryRun, permitted: Positions, signal: Signal, count: int) -> tuple[RankingInput, QueryGraph, Judge]:
    """Return the input of a ranking of `count` memories or more, the graph, and the judge of relevance."""
    query, moment, index, columns = run.query, run.moment, run.index, signal.columns
    semantic = columns.score() if columns.values else np.zeros(index.conversation.size)
    graph = QueryGraph(
        graph=run.graph,
        index=index,
        signal=semantic,
        permitted=permitted,
        now_ms=moment.now_ms,
        expansions=run.engine.expansions,
        ask=run.request.ask,
    )
    if query.entity_urns:
        graph.warn_of_unknown(query.entity_urns)
    run.timings.end("score")
    spend_scan(index)
    # Without the question's vector, relevance is judged by words alone, whatever the embedder. The mode `recency`
    # computes no columns, so only those of stored facts are available.
    basis: Basis = "words" if signal.vector is None else run.engine.embedder.kind
    columns = columns if columns.values else Columns(fact_columns(index, run.question), {})
    judge = Judge(index, run.question, columns, basis, len(permitted))
    session_id = query.session_id if moment.is_now else None
    inputs = RankingInput(
        index=index,
        question=run.question,
        query=query,
        now_ms=moment.now_ms,
        semantic=semantic,
        allowed=permitted,
        tuning=replace(run.tuning, k=count) if count > run.tuning.k else run.tuning,
        relevance=judge.relevance_at,
        vector=signal.vector,
        proximity=_proximity(run, graph),
        relationship=_relationship(run, graph),
        usage=run.request.hot.usage() if moment.is_now else None,
        returned=NO_SEQS if session_id is None else run.request.hot.returned_seqs(session_id),
    )
    spend_scan(index)
    return inputs, graph, judge


def _reranked(inputs: RankingInput, ranking: Ranking, scores: Mapping[str, float]) -> Ranking:
    """Return the best k of a ranking by a reranker's scores. Memories without a score follow in the earlier order."""
    slots = inputs.index.conversation.slots[ranking.positions].tolist()
    versions = inputs.fact("version", ranking.positions).tolist()
    ids = [model_calls.rerank_key(inputs.index.ids[slot], one) for slot, one in zip(slots, versions, strict=True)]
    by_score = sorted(range(len(ids)), key=lambda at: (ids[at] not in scores, -scores.get(ids[at], 0.0), at))
    best = np.array(by_score[: inputs.tuning.k], np.int64)
    return replace(ranking.only(best), first_ranks=best + 1)


def _apply_updates(run: QueryRun, inputs: RankingInput, ranking: Ranking) -> tuple[Ranking, Mapping[int, Replacement]]:
    """Move current statements before the statements that they replace, among the best memories. Return the new ranking,
    and the replacements, by position of the replaced memory."""
    ranks = _ranks_to_compare(inputs, ranking.positions)
    positions = ranking.positions[ranks]
    question, statements = _statements(run, inputs.question.text, run.index.conversation.slots[positions].tolist())
    compared = updates.UpdateCandidates(
        statements=statements,
        author=inputs.fact("author", positions),
        position=positions,
        order=np.lexsort((inputs.fact("seq", positions), inputs.fact("created_ms", positions))).argsort(),
        signal=inputs.semantic[positions],
    )
    probability = updates.probabilities(question, compared)
    probability[probability < updates.min_probability(len(run.index), one_person=has_one_person(run.index))] = 0
    found = updates.find_replacements(ranks, probability)
    if not found:
        return ranking, {}
    ranked = ranking.positions.tolist()
    replacements = {ranked[rank]: update._replace(by=ranked[update.by]) for rank, update in found.items()}
    order = updates.reordered(ranks, probability, len(ranked), about_past=question.has("past"))
    if ranking.first_ranks is None:  # without a reranker, whose order does not follow the scores
        gains = updates.score_gains(ranking.scores, order)
        ranking = replace(ranking, scores=ranking.scores + gains, boosts=ranking.boosts | {"update": gains})
        ranking.tiebreak_applied = False  # the scores now define the order
    return ranking.only(np.array(order)), replacements


def _ranks_to_compare(inputs: RankingInput, positions: Positions) -> list[int]:
    """Return the ranks of the memories to compare for updates: the best ones, and the next messages after the very
    best."""
    best, has_predecessor = min(updates.BEST, len(positions)), inputs.index.conversation.has_predecessor
    next_positions = positions[: updates.FOLLOWED] + 1
    next_positions = next_positions[next_positions < len(has_predecessor)]
    is_next = (positions[best:] == next_positions[has_predecessor[next_positions], np.newaxis]).any(axis=0)
    return [*range(best), *(is_next.nonzero()[0] + best).tolist()]


def _statements(run: QueryRun, question: str, slots: list[int]) -> tuple[StatementReading, list[StatementReading]]:
    """Return the analysed question, and the analysed statements of memories. The owner's index caches statements."""
    cached = run.index.statements
    if len(cached) > CACHED_STATEMENTS:
        cached.clear()
    missing = [slot for slot in slots if slot not in cached]
    rows = run.rows(missing) if missing else []
    texts = [row.content[:STATEMENT_CHARACTERS] if is_readable(row) else "" for row in rows]
    asked, *statements = read_statements([question, *texts])
    cached.update(zip(missing, statements, strict=True))
    return asked, [cached[slot] for slot in slots]


def _judged(judge: Judge, inputs: RankingInput, ranking: Ranking) -> Judgement:
    """Return the relevance of the ranked memories, and the probability that the permitted ones hold an answer."""
    if inputs.tuning.mode == "recency":
        return Judgement(judge, None, judge.relevance_at(ranking.positions))
    if not len(inputs.allowed):
        return Judgement(judge, 0.0, np.zeros(0))
    positions = inputs.best(NEAREST)
    features = judge.features(np.concatenate([positions, ranking.positions]))
    nearest = features.only(slice(len(positions)))
    relevance = judge.relevance(features)
    answerable = judge.answerable(nearest, highest=float(relevance[: len(positions)].max()))
    return Judgement(judge, answerable, relevance[len(positions) :], judge.is_unanswerable(nearest, answerable))


def _proximity(run: QueryRun, graph: QueryGraph) -> Column | None:
    """Return the proximity of memories to the requested or named entities, or None without a graph or if the ranking
    does not use it. Return zeros if the step is dropped for lack of time."""
    if not run.tuning.wants_proximity:
        return None
    near: Column | None = np.zeros(run.index.conversation.size)
    if "proximity" not in run.dropped:
        near = graph.proximity(run.query.entity_urns, run.question.text)
        run.engine.shared.costs.add("proximity", run.timings.end("proximity"))
    return None if near is None else people.proximity_of_named(graph.index, run.question.named, near)


def _relationship(run: QueryRun, graph: QueryGraph) -> Mapping[int, float]:
    """Return the strength of edges between candidates, by position, if the ranking uses it and there is time."""
    hops = run.query.traversal_depth
    if hops <= HOPS_MIN or "boosts" in run.dropped or not run.tuning.wants_neighbours:
        return {}
    found = graph.boosts(hops)
    run.engine.shared.costs.add("boosts", run.timings.end("boosts"))
    return found
