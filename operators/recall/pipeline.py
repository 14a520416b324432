"""A recall query's way to its response, from top to bottom. The numbers are the twelve steps of docs/recall.md.

What each step gives is in `stages.py`: `Asked → Understood → Candidates → Ranked → Expanded → Composed`. Step 1
(validate) only warns, and is part of composing. Step 2 (authorise) belongs before the state: everything here is about
an owner whom the query may ask.
"""

from functools import partial

import numpy as np

from recallflow.control import RecallSettings
from recallflow.limits import PARTICIPANTS_MAX, QUERY_CHARACTERS
from recallflow.operators.events import Request
from recallflow.operators.recall import rerank, signal
from recallflow.operators.recall.deadline import Laps, Step
from recallflow.operators.recall.filters import Filtering, Linked, superseded, valid
from recallflow.operators.recall.intent import intent_of, mode_for
from recallflow.operators.recall.moment import Moment, filtered_graph
from recallflow.operators.recall.question import Vocabulary, understand
from recallflow.operators.recall.ranking import rank_candidates
from recallflow.operators.recall.rerank import Scored, Text
from recallflow.operators.recall.respond import compose_answer, respond
from recallflow.operators.recall.signal import Signal
from recallflow.operators.recall.stages import (
    Asked,
    Candidates,
    Effects,
    Engine,
    Expanded,
    Ranked,
    Recalled,
    Understood,
)
from recallflow.operators.recall.tuning import tuned
from recallflow.queries import HOPS_MIN, Filters, Recall
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import LANGUAGE_SHIFT

RARE_LANGUAGE = 50  # of so many memories, one in a language is a slip, or a quotation


def recall(
    engine: Engine,
    hot: HotOwner,
    query: Recall,
    request: Request,
    asked_ms: int,
    tenant: RecallSettings,
    scored: Scored | None = None,
) -> Recalled:
    """One query's answer, ranked as the tenant and the query have it; asked at `asked_ms`. Raises InvalidRecord for
    what cannot be answered."""
    asked = _asked(engine, hot, query, request, asked_ms, scored)
    moment = asked.moment
    understood = _understand(asked, tenant)
    candidates = _find_candidates(asked, understood)
    ranked = rank_candidates(asked, understood, candidates)
    expanded = _expand(asked, understood, ranked)
    composed = compose_answer(asked, understood, candidates, ranked, expanded)
    response = respond(asked, understood, candidates, ranked, expanded, composed)
    effects = None
    if moment.is_now:
        seqs = zip(ranked.scene.fact("seq", expanded.places).tolist(), expanded.rows, strict=True)
        effects = Effects(tuple(seq for seq, row in seqs if row is not None), query.session_id, asked_ms)
    added = frozenset(item.id for item in expanded.applied.items) if expanded.applied is not None else frozenset()
    return Recalled(response, effects, added)


def ranked_only(
    engine: Engine, hot: HotOwner, query: Recall, request: Request, asked_ms: int, tenant: RecallSettings
) -> Ranked:
    """What a query ranks, and in which order, for who shows something else of that than memories."""
    asked = _asked(engine, hot, query, request, asked_ms, None)
    return _rank(asked, _understand(asked, tenant))


def to_rerank(
    engine: Engine, hot: HotOwner, query: Recall, request: Request, asked_ms: int, tenant: RecallSettings
) -> list[Text]:
    """The texts that a reranker is to read before the query is answered, best first: none where it has no part in the
    answer, or would not be done in time."""
    asked = _asked(engine, hot, query, request, asked_ms, None)
    understood = _understand(asked, tenant)
    if understood.tuning.mode not in rerank.MODES or "rerank" in understood.dropped:
        return []
    ranked = _rank(asked, understood, rerank.BEST)
    found = rerank.texts(asked.rows(asked.index.conversation.slots[ranked.ranking.places].tolist()))
    return found if len(found) > 1 else []


def _rank(asked: Asked, understood: Understood, at_least: int = 0) -> Ranked:
    return rank_candidates(asked, understood, _find_candidates(asked, understood), at_least)


def _asked(
    engine: Engine, hot: HotOwner, query: Recall, request: Request, asked_ms: int, scored: Scored | None
) -> Asked:
    laps, moment = Laps(engine.timer), Moment.of(query, asked_ms)
    index, graph = engine.at(hot, moment)
    laps.lap("index")
    if scored is not None:
        laps.add("rerank", scored.took_ms)
        engine.shared.costs.add("rerank", scored.took_ms)
    return Asked(engine, hot, query, request, asked_ms, moment, index, graph, laps, scored)


def _understand(asked: Asked, tenant: RecallSettings) -> Understood:
    query, shared = asked.query, asked.engine.shared
    question = understand(query.query.strip()[:QUERY_CHARACTERS], participants(asked.index), vocabulary(asked.index))
    intent = intent_of(question)
    tuning = tuned(query, mode_for(query.mode, intent), tenant)
    dropped: list[Step] = []
    if query.sla_target_ms is not None:
        ahead: list[Step] = []
        request, expansions = asked.request, asked.engine.expansions
        if query.strategy == "hybrid_graph" and expansions.is_on(request.owner.tenant_id, request.at_ms):
            ahead.append("graph")
        if query.traversal_depth > HOPS_MIN and tuning.wants_neighbours:
            ahead.append("boosts")
        if tuning.wants_proximity:
            ahead.append("proximity")
        # A vector that is at hand costs no time.
        if tuning.mode != "recency" and shared.questions.cached(question.own_words) is None:
            ahead.append("dense")
        if asked.engine.reranks and asked.scored is None and tuning.mode in rerank.MODES:
            ahead.append("rerank")
        dropped = shared.costs.drop(ahead, query.sla_target_ms - asked.laps.elapsed_ms())
    asked.laps.lap("understand")
    return Understood(question, intent, tuning, dropped, asked.laps.elapsed_ms())


def _find_candidates(asked: Asked, understood: Understood) -> Candidates:
    index, shared, question = asked.index, asked.engine.shared, understood.question
    linked = Linked(filtered_graph(asked.hot, index, asked.moment), index, asked.moment)
    filtering = Filtering(index, linked)
    standing = valid(index, asked.moment)
    if (out := superseded(asked.graph, index, asked.moment)) is not None:
        standing &= ~out
    mask = standing & filtering.within(asked.query.filters)
    if (project := asked.query.project_id) is not None:
        mask &= filtering.within(Filters(project_id=project))
    permitted = mask.nonzero()[0]
    if understood.tuning.mode == "recency" or not index.conversation.size:
        found = Signal()
    elif "dense" in understood.dropped:
        found = Signal(signal.by_words(shared, index, question, permitted))
    else:
        found = signal.read(shared, index, question, permitted, asked.rows)
    asked.laps.lap("candidates")
    return Candidates(permitted, found, linked.warnings(), int(standing.sum()) - len(permitted))


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
    """Whether the time that the query gave is over."""
    target_ms = asked.query.sla_target_ms
    return target_ms is not None and asked.laps.elapsed_ms() > target_ms


def vocabulary(index: OwnerIndex) -> Vocabulary:
    """The languages that at least one in fifty current memories is in, and the stems they hold."""
    counted = np.bincount(index.conversation.facts["flags"] >> LANGUAGE_SHIFT, minlength=1)
    common = counted * RARE_LANGUAGE >= max(counted.sum(), 1)
    languages = [int(number) for number in np.argsort(-counted, kind="stable") if common[number]]
    return Vocabulary(languages or [0], lambda stem: index.standing[stem].holders > 0)


def participants(index: OwnerIndex) -> list[str]:
    """Everyone who wrote a current memory; of very many, those who wrote the most."""
    now = index.conversation
    authors = now.authors[now.authors >= 0]
    if len(authors) > PARTICIPANTS_MAX:
        wrote = np.bincount(now.facts["author"] + 1)[authors + 1]
        authors = np.sort(authors[np.argsort(-wrote, kind="stable")[:PARTICIPANTS_MAX]])
    return [index.names.strings[author] for author in authors]
