"""A recall query's way to its response, from top to bottom. The numbers are the twelve steps of docs/recall.md.

Each step gives a frozen value that the next ones need: `Asked → Understood → Candidates → Ranked → Expanded →
Composed`. Step 1 (validate) only warns, and is part of composing. Step 2 (authorise) belongs before the state:
everything here is about an owner whom the query may ask.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from recallflow.control import RecallSettings
from recallflow.embedder import Embedder
from recallflow.language import Intent
from recallflow.limits import PARTICIPANTS_MAX, QUERY_CHARACTERS
from recallflow.operators.events import Request
from recallflow.operators.graph.query_graph import QueryGraph
from recallflow.operators.graph.rollout import Applied, Expansions
from recallflow.operators.recall import compose, episode_list, people, rerank, signal, why
from recallflow.operators.recall.columns import known
from recallflow.operators.recall.context import About, context
from recallflow.operators.recall.deadline import REST, TARGET_MS, Laps, Step, tier_of
from recallflow.operators.recall.excerpt import excerpts
from recallflow.operators.recall.filters import Filtering, Linked, superseded, valid
from recallflow.operators.recall.intent import intent_of, mode_for
from recallflow.operators.recall.modes import CANDIDATES, rank
from recallflow.operators.recall.moment import Moment, graph_at, index_at
from recallflow.operators.recall.question import Question, Vocabulary, understand
from recallflow.operators.recall.relevance import NEAREST, Judge, Judged
from recallflow.operators.recall.relevance_weights import Basis
from recallflow.operators.recall.rerank import Scored, Text
from recallflow.operators.recall.scene import NO_SEQS, Ranking, Scene
from recallflow.operators.recall.shared import Shared
from recallflow.operators.recall.signal import Signal
from recallflow.operators.recall.tuning import Tuning, tuned, validate
from recallflow.queries import HOPS_MIN, Filters, Recall
from recallflow.responses import RecalledMemory, Response, Warn, status_of
from recallflow.state.arrays import Column, Places
from recallflow.state.graph import OwnerGraph
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import LANGUAGE_SHIFT, MemoryRow

RARE_LANGUAGE = 50  # of so many memories, one in a language is a slip, or a quotation


@dataclass(frozen=True, slots=True)
class Engine:
    """What recall needs beside an owner's state: what a process shares, such as the model for questions; the rows'
    reader; the episode gap; a timer for what the response says of its own time (seconds, from any start); the state
    partition's graph expansions; and whether there is a reranker."""

    shared: Shared
    rows: Callable[[HotOwner, OwnerIndex, list[int]], list[MemoryRow | None]]
    episode_gap_ms: int
    timer: Callable[[], float]
    expansions: Expansions
    reranks: bool = False

    @property
    def embedder(self) -> Embedder:
        return self.shared.questions.embedder


class Effects(NamedTuple):
    """What changes once an answer has been handed on (step 12): these memories were returned at that time, in that
    session."""

    seqs: tuple[int, ...]
    session_id: str | None
    at_ms: int


class Recalled(NamedTuple):
    """An answer; its effects, none where it was about another moment than now; what it was ranked from; and the ids of
    the memories that the graph added."""

    response: Response
    effects: Effects | None
    ranking: Ranking
    graph: QueryGraph
    added: frozenset[str]


# ---------------------------------------------------------------------- what each step gives


@dataclass(frozen=True, slots=True)
class Asked:
    """A query on its way: the moment it is about, and the owner's index and graph of then. `laps`: how long the steps
    took so far; `scored`: what a reranker said of its candidates, if it was asked."""

    engine: Engine
    hot: HotOwner
    query: Recall
    request: Request
    asked_ms: int
    moment: Moment
    index: OwnerIndex
    graph: OwnerGraph
    laps: Laps
    scored: Scored | None = None

    def rows(self, slots: list[int]) -> list[MemoryRow | None]:
        """The rows of the index's slots."""
        return self.engine.rows(self.hot, self.index, slots)


class Understood(NamedTuple):
    """Step 3: what is asked, how it is to be ranked, and which optional steps there is no time for; at so many ms from
    the query's beginning."""

    question: Question
    intent: Intent
    tuning: Tuning
    dropped: list[Step]
    at_ms: float


class Candidates(NamedTuple):
    """Step 4: the places that may be in the answer, what the question means to each, warnings of the filters, and how
    many memories they keep out."""

    permitted: Places
    signal: Signal
    warnings: list[Warn]
    kept_out: int


class Ranked(NamedTuple):
    """Steps 6, 7 and 9: the scene that was ranked, and the order; the graph, as this query may use it; the ranks before
    a reranker changed them, if one did; and how relevant what was ranked is."""

    scene: Scene
    ranking: Ranking
    graph: QueryGraph
    before: list[int]
    judged: Judged


class Expanded(NamedTuple):
    """Steps 8, 5 and 10: the ranked places, then those that the graph adds behind them, with their relevance and their
    rows, opened."""

    places: Places
    relevance: Column
    rows: list[MemoryRow | None]
    applied: Applied | None


class Composed(NamedTuple):
    """Step 11: what the response shows. `optional`: its fields that a query has to ask for."""

    memories: list[RecalledMemory]
    optional: dict[str, Any]
    warnings: list[Warn]


# ---------------------------------------------------------------------- the steps


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
    ranked = _rank(asked, understood, candidates)
    expanded = _expand(asked, understood, ranked)
    composed = _compose(asked, understood, candidates, ranked, expanded)
    response = _respond(asked, understood, candidates, ranked, expanded, composed)
    effects = None
    if moment.is_now:
        seqs = zip(ranked.scene.fact("seq", expanded.places).tolist(), expanded.rows, strict=True)
        effects = Effects(tuple(seq for seq, row in seqs if row is not None), query.session_id, asked_ms)
    added = frozenset(item.id for item in expanded.applied.items) if expanded.applied is not None else frozenset()
    return Recalled(response, effects, ranked.ranking, ranked.graph, added)


def to_rerank(
    engine: Engine, hot: HotOwner, query: Recall, request: Request, asked_ms: int, tenant: RecallSettings
) -> list[Text]:
    """The texts that a reranker is to read before the query is answered, best first: none where it has no part in the
    answer, or would not be done in time."""
    asked = _asked(engine, hot, query, request, asked_ms, None)
    understood = _understand(asked, tenant)
    if understood.tuning.mode not in rerank.MODES or "rerank" in understood.dropped:
        return []
    ranked = _rank(asked, understood, _find_candidates(asked, understood), rerank.BEST)
    found = rerank.texts(asked.rows(asked.index.conversation.slots[ranked.ranking.places].tolist()))
    return found if len(found) > 1 else []


def _asked(
    engine: Engine, hot: HotOwner, query: Recall, request: Request, asked_ms: int, scored: Scored | None
) -> Asked:
    laps, moment, embedder = Laps(engine.timer), Moment.of(query, asked_ms), engine.embedder
    index = index_at(hot, moment, embedder.name, embedder.dimension, engine.episode_gap_ms)
    laps.lap("index")
    if scored is not None:
        laps.add("rerank", scored.took_ms)
        engine.shared.costs.add("rerank", scored.took_ms)
    return Asked(engine, hot, query, request, asked_ms, moment, index, graph_at(hot, index, moment), laps, scored)


def _understand(asked: Asked, tenant: RecallSettings) -> Understood:
    query, shared = asked.query, asked.engine.shared
    question = understand(query.query.strip()[:QUERY_CHARACTERS], participants(asked.index), vocabulary(asked.index))
    intent = intent_of(question)
    tuning = tuned(query, mode_for(query.mode, intent), tenant)
    dropped: list[Step] = []
    if query.sla_target_ms is not None:
        ahead: list[Step] = ["graph"] if query.strategy == "hybrid_graph" else []
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
    linked = Linked(asked.graph, asked.moment)
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


def _rank(asked: Asked, understood: Understood, candidates: Candidates, at_least: int = 0) -> Ranked:
    """Ranks `at_least` so many; the query's k, where a reranker has not ordered them anew."""
    query, moment, index, hot = asked.query, asked.moment, asked.index, asked.hot
    permitted, columns, tuning = candidates.permitted, candidates.signal.columns, understood.tuning
    scores = {} if asked.scored is None else asked.scored.scores
    # An episode's members are no more where some of them are left out.
    judged_first = query.min_relevance is not None and tuning.mode != "episode"
    most = max(at_least, rerank.BEST if scores else 0, CANDIDATES if judged_first else 0)
    semantic = columns.score() if columns.values else np.zeros(index.conversation.size)
    graph = QueryGraph(
        graph=asked.graph,
        index=index,
        semantic=semantic,
        permitted=permitted,
        now_ms=moment.now_ms,
        expansions=asked.engine.expansions,
        request=asked.request,
    )
    graph.warn_of_unknown(query.entity_urns)
    asked.laps.lap("score")
    session_id = query.session_id if moment.is_now else None
    judge = _judge(asked, understood, candidates)
    scene = Scene(
        index=index,
        question=understood.question,
        query=query,
        now_ms=moment.now_ms,
        semantic=semantic,
        allowed=permitted,
        tuning=replace(tuning, k=most) if most > tuning.k else tuning,
        relevance=judge.at,
        vector=candidates.signal.vector,
        proximity=_proximity(asked, graph, understood),
        relationship=_relationship(asked, graph, understood),
        usage=hot.usage() if moment.is_now else None,
        returned=NO_SEQS if session_id is None else hot.returned(session_id),
    )
    ranking = rank(scene) if len(permitted) else Ranking(permitted, np.zeros(0))
    before: list[int] = []
    if scores:
        places = ranking.places
        slots, versions = index.conversation.slots[places].tolist(), scene.fact("version", places).tolist()
        ranked = [rerank.key(index.ids[slot], version) for slot, version in zip(slots, versions, strict=True)]
        ranking, before = rerank.reordered(ranking, ranked, scores, scene.tuning.k)
    asked.laps.lap("rank")
    judged = _judged(judge, scene, ranking)
    if (least := query.min_relevance) is not None:
        enough = judged.relevance >= least
        ranking, judged = ranking.only(enough), judged.only(enough)
        before = [*compress(before, enough.tolist())]
    cut = slice(max(at_least, tuning.most))
    ranking, judged, before = ranking.only(cut), judged.only(cut), before[cut]
    asked.laps.lap("judge")
    return Ranked(scene, ranking, graph, before, judged)


def _judge(asked: Asked, understood: Understood, candidates: Candidates) -> Judge:
    """Who tells how relevant memories are. Without the question's vector, words alone were compared, whatever the
    model; in the mode `recency`, nothing was."""
    found, question = candidates.signal, understood.question
    basis: Basis = asked.engine.embedder.kind if found.vector is not None else "words"
    columns = found.columns if found.columns.values else known(asked.index, question)
    return Judge.of(asked.index, question, columns, basis, len(candidates.permitted))


def _judged(judge: Judge, scene: Scene, ranking: Ranking) -> Judged:
    """How relevant the ranked memories are, and whether those permitted hold an answer."""
    if scene.tuning.mode == "recency":
        return Judged(judge, None, judge.at(ranking.places))
    if not len(scene.allowed):
        return Judged(judge, 0.0, np.zeros(0))
    places = scene.best(NEAREST)
    figures = judge.figures(np.concatenate([places, ranking.places]))
    nearest, ranked = figures.only(slice(len(places))), figures.only(slice(len(places), None))
    answerable = judge.answerable(nearest)
    return Judged(judge, answerable, judge.relevance(ranked), judge.hopeless(nearest, answerable))


def _proximity(asked: Asked, graph: QueryGraph, understood: Understood) -> Column | None:
    """How near memories are to the entities asked for or named, where the ranking asks and the graph can tell; none is
    near any where there is no time to look."""
    if not understood.tuning.wants_proximity:
        return None
    if "proximity" in understood.dropped:
        near: Column | None = np.zeros(asked.index.conversation.size)
    else:
        near = graph.proximity(asked.query.entity_urns, understood.question.text)
        _took(asked, "proximity")
    return None if near is None else people.nearness(graph.index, understood.question.named, near)


def _relationship(asked: Asked, graph: QueryGraph, understood: Understood) -> Mapping[int, float]:
    """What edges between candidates add to scores, by place, where the ranking asks and there is time."""
    hops = asked.query.traversal_depth
    if hops <= HOPS_MIN or "boosts" in understood.dropped or not understood.tuning.wants_neighbours:
        return {}
    found = graph.boosts(hops)
    _took(asked, "boosts")
    return found


def _took(asked: Asked, step: Step) -> None:
    """Notes what an optional step of the graph took."""
    asked.engine.shared.costs.add(step, asked.laps.lap(step))


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


def _compose(
    asked: Asked, understood: Understood, candidates: Candidates, ranked: Ranked, expanded: Expanded
) -> Composed:
    query, index, columns, ranking = asked.query, asked.index, candidates.signal.columns, ranked.ranking
    count, target_ms = len(ranking.places), query.sla_target_ms
    rows = expanded.rows[:count]
    warnings = validate(query)
    if understood.dropped:
        detail = f"went without {' and '.join(understood.dropped)} to be done within {target_ms:g} ms"
        warnings.append(Warn(code="deadline", detail=detail))
    if asked.scored is not None:
        warnings += asked.scored.warnings
    warnings += [*candidates.warnings, *candidates.signal.warnings, *compose.warnings(ranked.scene, ranking, rows)]
    shown = excerpts(index, understood.question, candidates.signal.vector, expanded.places, expanded.rows)
    # Without the question's vector, what is alike is spelt alike, whatever the model.
    kind = asked.engine.embedder.kind if candidates.signal.vector is not None else "spelling"
    names = partial(ranked.graph.names, query.entity_urns, understood.question.text)
    reasons = why.why(ranked.scene, ranking, rows, columns, kind, asked.rows, names)
    if asked.scored is not None:
        why.say_reranked(reasons, asked.scored.model, ranked.before)
    items = () if expanded.applied is None else expanded.applied.items
    reasons += why.added(items, rows)
    current = _current(asked, expanded.places)
    shown_with = compose.particulars(index, expanded.places, shown, expanded.relevance, current, reasons)
    scores = {} if asked.scored is None else asked.scored.scores
    explained: list[dict[str, Any]] = [{} for _ in rows]
    if query.explain:
        explained = compose.explanations(ranked.scene, ranking, columns, asked.engine.embedder.kind)
    memories = compose.ranked(ranking, rows, shown_with[:count], explained, scores)
    memories += compose.added(items, expanded.rows[count:], shown_with[count:], len(memories))
    memories = compose.with_conflicts(memories, asked.graph, asked.moment)
    warnings += compose.relevance_warnings(ranked.scene, ranked.judged, len(memories))
    optional: dict[str, Any] = {}
    if understood.tuning.mode == "episode":
        found = episode_list.listed(index, ranking, memories, asked.rows) if len(ranking.places) else []
        optional["episodes"] = found
    asked.laps.lap("compose")
    if query.max_tokens is not None:
        permitted, kept_out = candidates.permitted, candidates.kept_out
        about = About(asked.hot, index, asked.moment, query.filters, permitted, kept_out, memories)
        filtered = query.filters != Filters() or query.project_id is not None
        entities = ranked.graph.context(query.entity_urns, understood.question.text, filtered=filtered)
        counter = asked.engine.shared.tokens()
        optional["context"], missed = context(about, query.max_tokens, counter, asked.rows, entities)
        warnings += missed
        asked.laps.lap("context")
    return Composed(memories, optional, [*warnings, *ranked.graph.warnings])


def _current(asked: Asked, places: Places) -> list[bool]:
    """Whether what stands at each place is its memory's latest version, and counts now."""
    if asked.moment.is_now:
        return [True] * len(places)
    index, hot, facts = asked.index, asked.hot, asked.index.conversation.facts
    late = superseded(hot.graph, index, Moment(asked.asked_ms, None, None, history=False))
    holds = (facts["valid_from_ms"] <= asked.asked_ms) & (asked.asked_ms < facts["valid_to_ms"])
    holds &= asked.asked_ms < facts["expires_ms"]
    found = []
    for place in places.tolist():
        stands = hot.current(index.ids[index.conversation.slots[place]])
        latest = stands is not None and stands.version == facts["version"][place]
        found.append(bool(latest and holds[place] and (late is None or not late[place])))
    return found


def _respond(
    asked: Asked,
    understood: Understood,
    candidates: Candidates,
    ranked: Ranked,
    expanded: Expanded,
    composed: Composed,
) -> Response:
    """The response, with what it says of how the answer came about."""
    found, applied, laps = candidates.signal, expanded.applied, asked.laps
    ran: dict[Step, bool] = {
        "dense": found.embedded,
        "graph": ranked.graph.ran,
        "rerank": asked.scored is not None,
    }
    tier = tier_of([step for step, did in ran.items() if did])
    target_ms, elapsed_ms = asked.query.sla_target_ms or TARGET_MS[tier], laps.elapsed_ms()
    optional_ms = sum(laps.stages_ms.get(stage, 0.0) for stage in ("proximity", "boosts", "expand"))
    asked.engine.shared.costs.add(REST, elapsed_ms - understood.at_ms - found.took_ms - optional_ms)
    routing = {
        "mode": understood.tuning.mode,
        "index": "flat",
        "memories": len(asked.index),
        "permitted": len(candidates.permitted),
        "cache_hits": {name: int(name in found.hits) for name in signal.CACHES},
        "stages_ms": laps.stages_ms,
    }
    if asked.scored is not None:
        routing["rerank"] = asked.scored.routing
    if applied is not None and applied.routing is not None:
        routing["graph"] = applied.routing
    return Response(
        query_id=asked.request.query_id,
        status=status_of(composed.warnings),
        memories=composed.memories,
        answerable=None if (likely := ranked.judged.answerable) is None else round(likely, 6),
        query_intent=understood.intent,
        computation_tier=tier,
        sla_target_ms=target_ms,
        sla_met=elapsed_ms <= target_ms,
        processing_time_ms=round(elapsed_ms, 3),
        routing_info=routing,
        tiebreak_applied=ranked.ranking.tiebreak_applied,
        fallback=None if applied is None else applied.fallback,
        warnings=composed.warnings,
        **composed.optional,
    )


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
