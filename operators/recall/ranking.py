"""Scores and rank order of memories by mode, from the semantic signal, other factors and boosts.

| factor | value |
|---|---|
| semantic | the signal of `columns.py` (log-odds): 1 for the best candidate, 0 for the last of the best candidates |
| cluster | cosine to the centroid of the memory's episode |
| recency | 1 - ln(1 + age / 30) / ln(1 + max(365, all ages) / 30); the decay function, if query or tenant set `decay` |
| importance | the importance of the memory |
| usage | u / (1 + u) / (1 + days since it was last returned / 30), where u = ln(1 + times returned) |
| quality | (2 · confidence + useful) / (2 + useful + not useful): confidence, adjusted by feedback |
| decay | 1 / (1 + age / decay_days); 30 days, unless the query or the tenant asks for hyperbolic decay |
| proximity | 1 / (1 + hops) to the requested entities, 0 without a path |

| boost | value |
|---|---|
| relationship | strength of the best edge from another candidate, by its type (see docs/concepts/graph.md) |
| personalisation | cosine to the mean of the newest 100 memories that the user found useful, at least 0 |
| session_continuity | 1 if the memory was returned earlier in the same session |

In `hybrid`, a weight is the number of log-odds that a factor or boost of 1 adds to the signal. Values are not scaled to
the range of the candidates, so that small differences remain small. The default weights are small: they only order
memories of similar signal (docs/internals/decisions/09).

In `cluster` and `personalisation`, a memory without a vector has the mean value of the other candidates.

The mode `episode` answers with whole conversations, the most relevant first, each in conversation order:

| factor | value of an episode |
|---|---|
| relevance | the relevance of the best of all memories, times the episode's share of all evidence |
| mentions | n / (1 + n), where n members mention requested or named entities |

An episode's share is exp(odds - log Σ exp(odds of all)). Its odds are log Σ exp(signal) over its members, the log-odds
that any of them is evidence, plus a quarter of the z-score of the cosine between question and centroid. The cosine term
is 0 if no member has a vector. Centroids alone have too little recall: on LoCoMo (hash embedder), the three best
episodes by centroid hold evidence for .49 of the questions, and the three best by members for .90.

A memory's score is its episode's score. Episodes with equal scores, and members of an episode, are ordered by event
time. A memory outside any episode is an episode by itself."""

import math
from collections.abc import Callable, Mapping
from itertools import islice

import numpy as np
import numpy.typing as npt

from recallflow.operators.recall.people import impute
from recallflow.operators.recall.ranking_input import DAY_MS, Ranking, RankingInput
from recallflow.queries import K_MAX, WEIGHTS, Decay, Mode
from recallflow.state.arrays import Column, Ints, Mask, Positions
from recallflow.state.usage import Records

SPREAD_MIN = 1.0  # log-odds that the semantic factor spans, even if the best candidates span less
OLDEST_DAYS_MIN = 365.0  # recency is 0 at this age or a greater one, so that it hardly differs within a week
USAGE_DAYS = 30.0
DECAY_DAYS = 30.0
CONFIDENCE_VOTES = 2.0  # number of feedback votes that count as much as the stated confidence
LIKED_MAX = 100  # newest useful memories that `personalisation` compares with
EPISODES_MIN = 3  # best episodes that are answered at least in part, if they do not fit as a whole
CENTROID_WEIGHT = 0.25
BEST_BY_SIGNAL = 50  # memories with the highest signal; the relevance of the best memory is the highest of these
NAMED_SHARE = 0.2  # share of the weight of mentions, if entities are named and not requested
MENTION_PROXIMITY = 1.0  # of a memory that mentions an entity directly
TIE_DEVIATION = 0.02  # scores with a smaller standard deviation, relative to the sum of weights, are tied
CANDIDATES = 4 * K_MAX  # per source of candidates, so that no score depends on k
DECAYED_CONFIDENCE = 0.6  # default minimum of the mode `decayed`


def memory_factors(inputs: RankingInput, positions: Positions) -> dict[str, Column]:
    """Return the factors of `hybrid` that do not depend on the question. Usage and feedback do not count in queries
    about a past moment."""
    decay = inputs.tuning.decay
    ages, confidence = inputs.age_days(positions), inputs.fact("confidence", positions)
    # Each doubling of age beyond a month costs about the same. Recency is 0 at the age of the oldest candidate or one
    # year, whichever is older.
    log_oldest = np.log1p(ages.max(initial=OLDEST_DAYS_MIN) / DECAY_DAYS)
    usages = None if inputs.usage is None else inputs.usage.of(inputs.fact("seq", positions))
    has_vector = inputs.index.vectors.holds(inputs.index.conversation.slots[positions])
    return {
        "cluster": impute(inputs.index.clusters.cosines(positions).astype(np.float64), has_vector),
        "recency": age_decay(ages, decay) if decay.model_fields_set else 1 - np.log1p(ages / DECAY_DAYS) / log_oldest,
        "importance": inputs.fact("importance", positions),
        "usage": np.zeros(len(positions)) if usages is None else usage_factor(usages, inputs.now_ms),
        "quality": confidence if usages is None else quality_factor(confidence, usages),
        "decay": hyperbolic(ages, decay.decay_days if decay.function == "hyperbolic" else DECAY_DAYS),
    }


def age_decay(age_days: Column, decay: Decay) -> Column:
    """Return the value, 0 to 1, of the decay function at each age."""
    match decay.function:
        case "exponential":
            factor: Column = np.exp(-age_days / decay.tau_days)
        case "linear":
            factor = np.maximum(0.0, 1 - age_days / decay.max_age_days)
        case "logarithmic":
            factor = 1 / (1 + np.log1p(age_days))
        case "step":
            factor = (age_days < decay.threshold_days) * 1.0
        case "hyperbolic":
            factor = hyperbolic(age_days, decay.decay_days)
    return factor


def hyperbolic(age_days: Column, decay_days: float) -> Column:
    return 1 / (1 + age_days / decay_days)


def usage_factor(usages: Records, now_ms: int) -> Column:
    """Return u / (1 + u), u = ln(1 + times returned), which halves 30 days after the memory was returned last."""
    idle_days = np.where(usages["times"] > 0, np.maximum(now_ms - usages["last_ms"], 0) / DAY_MS, 0.0)
    log_times = np.log1p(usages["times"])
    factor: Column = log_times / (1 + log_times) / (1 + idle_days / USAGE_DAYS)
    return factor


def quality_factor(confidence: npt.NDArray[np.float64], usages: Records) -> Column:
    """Return the mean of a Beta distribution: its prior is the stated confidence, and feedback votes update it."""
    votes = usages["useful"] + usages["not_useful"].astype(np.float64)
    factor: Column = (CONFIDENCE_VOTES * confidence + usages["useful"]) / (CONFIDENCE_VOTES + votes)
    return factor


def semantic_factor(inputs: RankingInput, positions: Positions, best: Positions) -> tuple[Column, float]:
    """Return the signal of `positions`, scaled to 1 for the first of `best` and 0 for the last or a lower signal, and
    the log-odds from 0 to 1. These are at least `SPREAD_MIN`: if `best` spans less, its last one has more than 0."""
    highest = float(inputs.semantic[best[0]])
    spread = max(highest - float(inputs.semantic[best[-1]]), SPREAD_MIN)
    factor: Column = np.maximum(1 - (highest - inputs.semantic[positions]) / spread, 0.0)
    return factor, spread


def boosts(inputs: RankingInput, positions: Positions, spread: float) -> dict[str, Column]:
    """Return weight · value of each boost in the unit of scores, without boosts of weight 0 or without data. `spread`
    are the log-odds that the semantic factor spans. They correspond to its default weight."""
    unit = WEIGHTS[inputs.tuning.mode]["semantic"] / spread
    weights = {name: weight * unit for name, weight in inputs.tuning.boosts.items() if weight * unit > 0}
    found: dict[str, Column] = {}
    if "relationship" in weights and inputs.relationship:
        found["relationship"] = np.array([inputs.relationship.get(position, 0.0) for position in positions.tolist()])
    if "personalisation" in weights and (liked_mean := _liked_mean(inputs)) is not None:
        vectors, slots = inputs.index.vectors, inputs.index.conversation.slots[positions]
        cosines = (vectors.of(slots) @ liked_mean).astype(np.float64)
        found["personalisation"] = impute(np.clip(cosines, 0.0, 1.0), vectors.holds(slots))
    if "session_continuity" in weights and len(inputs.returned):
        was_returned = (inputs.fact("seq", positions)[:, None] == inputs.returned).any(axis=1)
        found["session_continuity"] = was_returned * 1.0
    return {name: weights[name] * values for name, values in found.items()}


def _liked_mean(inputs: RankingInput) -> Column | None:
    """Return the L2-normalised mean vector of the newest memories with more useful than not useful votes."""
    liked = () if inputs.usage is None else inputs.usage.liked()
    found = (slot for seq in liked if (slot := inputs.index.slot(seq)) is not None)
    slots = [*islice(found, LIKED_MAX)][::-1]
    if not slots:
        return None
    mean = inputs.index.vectors.of(np.array(slots, np.int64)).mean(axis=0)
    norm = np.linalg.norm(mean)
    return mean / norm if norm else None  # 0 without vectors


def by_episode(inputs: RankingInput) -> Ranking:
    """Rank the memories of the best episodes."""
    members = inputs.allowed
    ordinals = inputs.index.conversation.episode_ordinal[members]
    starts = np.flatnonzero(np.diff(ordinals, prepend=-1))  # the index in `members` of each episode's first member
    factors = {"relevance": _episode_relevance(inputs, starts), "mentions": _episode_mentions(inputs, starts)}
    weights = _episode_weights(inputs)
    scores: Column = sum((weights[name] * values for name, values in factors.items()), np.zeros(len(starts)))
    order = np.lexsort((starts, inputs.fact("created_ms", members[starts]), -scores))
    chosen = _choose_episodes(inputs, starts, order)
    positions, episode_of = np.concatenate(chosen), np.repeat(order[: len(chosen)], [len(one) for one in chosen])
    factors = {name: values[episode_of] for name, values in factors.items()}
    return Ranking(positions, scores[episode_of], factors, weights)


def _episode_weights(inputs: RankingInput) -> dict[str, float]:
    """Return the weights of the factors. Mentions of requested entities have their full weight. Mentions of entities
    that the question names have little, because the signal counts their words; if it names a participant, none."""
    weights, query = dict(inputs.tuning.weights), inputs.query
    if not query.entity_urns and "mentions" not in (query.weights or {}):
        weights["mentions"] *= 0.0 if inputs.question.named else NAMED_SHARE
    return weights


def _episode_relevance(inputs: RankingInput, starts: Ints) -> Column:
    odds: Column = np.logaddexp.reduceat(inputs.semantic[inputs.allowed], starts)
    if inputs.vector is not None:
        ordinals = inputs.index.conversation.episode_ordinal[inputs.allowed[starts]]
        centroids = inputs.index.clusters.centroids(ordinals)
        embedded: Mask = np.linalg.norm(centroids, axis=1) > 0
        if embedded.any():
            cosines = impute(centroids.astype(np.float64) @ inputs.vector, embedded)
            known = cosines[embedded]
            odds = odds + CENTROID_WEIGHT * (cosines - known.mean()) / (known.std() + 1e-6)
    relevance: Column = np.exp(odds - np.logaddexp.reduce(odds)) * inputs.relevance(inputs.best(BEST_BY_SIGNAL)).max()
    return relevance


def _episode_mentions(inputs: RankingInput, starts: Ints) -> Column:
    if inputs.proximity is None:
        return np.zeros(len(starts))
    counts = np.add.reduceat((inputs.proximity[inputs.allowed] >= MENTION_PROXIMITY) * 1.0, starts)
    mentions: Column = counts / (1 + counts)
    return mentions


def _choose_episodes(inputs: RankingInput, starts: Ints, order: Ints) -> list[Positions]:
    """Return the positions of each answered episode, best first. Episodes are included whole while they fit; the next
    ones share the remaining slots by their best members."""
    tuning = inputs.tuning
    ends = np.append(starts[1:], len(inputs.allowed))
    members = [
        inputs.allowed[starts[number] : ends[number]] for number in order[: tuning.max_episodes or tuning.k].tolist()
    ]
    whole_count, taken_count, limit = 0, 0, tuning.memories_max
    while whole_count < len(members) and taken_count < tuning.k and taken_count + len(members[whole_count]) <= limit:
        taken_count += len(members[whole_count])
        whole_count += 1
    if taken_count >= tuning.k or taken_count == limit:
        return members[:whole_count]
    partial = members[whole_count : max(whole_count + 1, EPISODES_MIN)]
    if not partial:
        return members
    candidates = np.concatenate(partial)
    is_chosen = np.zeros(inputs.index.conversation.size, np.bool_)
    is_chosen[candidates[np.argsort(-inputs.semantic[candidates], kind="stable")[: limit - taken_count]]] = True
    return [*members[:whole_count], *(episode[is_chosen[episode]] for episode in partial)]


def rank(inputs: RankingInput) -> Ranking:
    """Rank the memories in the requested mode."""
    return MODES[inputs.tuning.mode](inputs)


def by_relevance(inputs: RankingInput) -> Ranking:
    """Rank by the semantic signal alone."""
    best = inputs.best(CANDIDATES)
    factor, spread = semantic_factor(inputs, positions := best[: inputs.tuning.k], best)
    return Ranking(positions, factor, {"semantic": factor}, {"semantic": 1.0}, unit=1 / spread)


def by_recency(inputs: RankingInput) -> Ranking:
    """Rank by a decay function of age, the newest first."""
    scores = age_decay(inputs.age_days(inputs.allowed), inputs.tuning.decay)
    # A step function, or ages beyond float precision, produce ties. Event time orders them, then arrival.
    created_ms, seq = inputs.fact("created_ms", inputs.allowed), inputs.fact("seq", inputs.allowed)
    order = np.lexsort((-seq, -created_ms, -scores))[: inputs.tuning.k]
    return Ranking(inputs.allowed[order], scores[order], {"recency": scores[order]}, {"recency": 1.0})


def hybrid(inputs: RankingInput) -> Ranking:
    """Rank by the log-odds of the signal, plus weight · value of six other factors, and of proximity if it has weight.
    All parts of a score are divided by the log-odds that the semantic factor spans."""
    best = inputs.best(CANDIDATES)
    positions = _union(inputs, best, _nearest(inputs))
    semantic, spread = semantic_factor(inputs, positions, best)
    factors = {"semantic": semantic} | memory_factors(inputs, positions)
    if inputs.tuning.wants_proximity:
        factors["proximity"] = inputs.near(positions)
    weights = {name: inputs.tuning.weights[name] / (1 if name == "semantic" else spread) for name in factors}
    return _by_sum(inputs, positions, factors, weights, spread)


def balanced(inputs: RankingInput) -> Ranking:
    """Rank by recency, signal and proximity to entities. Candidates are the best memories by signal, the newest, and
    the nearest in the graph."""
    best = inputs.best(CANDIDATES)
    by_age = np.argsort(-inputs.fact("created_ms", inputs.allowed), kind="stable")
    positions = _union(inputs, best, inputs.allowed[by_age[: len(best)]], _nearest(inputs))
    semantic, spread = semantic_factor(inputs, positions, best)
    factors = {
        "recency": age_decay(inputs.age_days(positions), inputs.tuning.decay),
        "semantic": semantic,
        "proximity": inputs.near(positions),
    }
    return _by_sum(inputs, positions, factors, dict(inputs.tuning.weights), spread)


def entity_focused(inputs: RankingInput) -> Ranking:
    """Rank by proximity to the entities, and by signal at equal proximity."""
    best = inputs.best(CANDIDATES)
    positions = _union(inputs, best, _nearest(inputs))
    semantic, spread = semantic_factor(inputs, positions, best)
    factors = {"proximity": inputs.near(positions), "semantic": semantic}
    return _by_sum(inputs, positions, factors, dict(inputs.tuning.weights), spread)


def decayed(inputs: RankingInput) -> Ranking:
    """Rank memories of sufficient confidence by confidence · 1/(1 + age/decay_days) · similarity. The similarity is a
    memory's relevance. It is absolute: that of an unrelated memory is nearly 0."""
    requested = inputs.query.filters.min_confidence
    min_confidence = DECAYED_CONFIDENCE if requested is None else requested
    positions = inputs.allowed[inputs.fact("confidence", inputs.allowed) >= min_confidence]
    signal = inputs.semantic[positions]
    factors: dict[str, Column] = {
        "confidence": inputs.fact("confidence", positions),
        "decay": hyperbolic(inputs.age_days(positions), inputs.tuning.decay.decay_days),
        "similarity": inputs.relevance(positions),
    }
    scores = np.prod([*factors.values()], axis=0)
    cut = np.lexsort((positions, -signal, -scores))[: inputs.tuning.k]
    return Ranking(positions, scores, factors).only(cut)


MODES: Mapping[Mode, Callable[[RankingInput], Ranking]] = {
    "recency": by_recency,
    "relevance": by_relevance,
    "entity_focused": entity_focused,
    "balanced": balanced,
    "episode": by_episode,
    "hybrid": hybrid,
    "decayed": decayed,
}


def _nearest(inputs: RankingInput) -> Positions:
    """Return the memories nearest to the requested entities, or none if the mode does not use proximity."""
    if inputs.proximity is None or not inputs.tuning.wants_proximity:
        return inputs.allowed[:0]
    near = inputs.allowed[inputs.proximity[inputs.allowed] > 0]
    return near[np.lexsort((near, -inputs.semantic[near], -inputs.proximity[near]))][:CANDIDATES]


def _union(inputs: RankingInput, *found: Positions) -> Positions:
    """Return the union of all candidates and the allowed positions with edges from them, in conversation order."""
    if not inputs.relationship and not any(map(len, found[1:])):
        return np.sort(found[0])
    is_candidate = np.zeros(inputs.index.conversation.size, np.bool_)
    if inputs.relationship:
        linked = np.fromiter(inputs.relationship, np.int64, len(inputs.relationship))
        is_candidate[linked[np.isin(linked, inputs.allowed)]] = True
    for positions in found:
        is_candidate[positions] = True
    return is_candidate.nonzero()[0]


def _by_sum(
    inputs: RankingInput, positions: Positions, factors: dict[str, Column], weights: dict[str, float], spread: float
) -> Ranking:
    """Rank by Σ weight · factor + Σ boosts. If all sums of factors are nearly equal, the order is by boosts, semantic
    factor, importance, recency, sum of factors and id, each descending. `spread`: the log-odds that the semantic factor
    spans."""
    values, boost_values = np.array([*factors.values()]), boosts(inputs, positions, spread)
    sums: Column = np.array([weights[name] for name in factors]) @ values
    boost_sums: Column = sum(boost_values.values(), np.zeros(len(positions)))
    signal, scores = inputs.semantic[positions], sums + boost_sums
    deviations = sums - sums.sum() / max(len(sums), 1)
    is_tied = len(sums) > 1 and math.sqrt(deviations @ deviations / len(sums)) <= TIE_DEVIATION * sum(weights.values())
    if is_tied:
        importance = inputs.fact("importance", positions)
        recency = age_decay(inputs.age_days(positions), inputs.tuning.decay)
        ids = [inputs.index.ids[slot] for slot in inputs.index.conversation.slots[positions].tolist()]
        by_id = np.argsort(sorted(range(len(ids)), key=ids.__getitem__))  # the rank of each id
        order = np.lexsort((-by_id, -sums, -recency, -importance, -signal, -boost_sums))
    else:
        order = np.lexsort((positions, -signal, -scores))
    middle = len(positions) // 2
    medians = dict(zip(factors, np.partition(values, middle)[:, middle].tolist(), strict=True))
    unit = weights["semantic"] / spread
    ranking = Ranking(positions, scores, factors, weights, boost_values, is_tied, medians, unit)
    return ranking.only(order[: inputs.tuning.k])
