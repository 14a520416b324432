"""Which memories may be in an answer: a mask over all places, applied before any cut."""

import numpy as np

from recallflow.operators.graph.superseded import superseded as refined
from recallflow.operators.recall.moment import Moment
from recallflow.queries import Filters
from recallflow.state.arrays import Mask
from recallflow.state.graph import OwnerGraph
from recallflow.state.index import OwnerIndex


def allowed(index: OwnerIndex, filters: Filters, moment: Moment) -> Mask:
    """(n,) in conversation order: valid and not expired at the moment, unless history is asked for; happened by then;
    and within every filter given."""
    facts, now_ms = index.conversation.facts, moment.now_ms
    mask: Mask = np.ones(index.conversation.size, np.bool_)
    if index.conversation.limited and not moment.history:
        mask &= (facts["valid_from_ms"] <= now_ms) & (now_ms < facts["valid_to_ms"]) & (now_ms < facts["expires_ms"])
    if moment.happened_by_ms is not None:
        mask &= facts["created_ms"] <= moment.happened_by_ms
    mask &= within(index, filters)
    return mask


def within(index: OwnerIndex, filters: Filters) -> Mask:
    """(n,) in conversation order: which memories are within every filter given."""
    slots, facts = index.conversation.slots, index.conversation.facts
    mask: Mask = np.ones(len(slots), np.bool_)
    for column, wanted in (
        ("category", filters.categories),
        ("kind", filters.kinds),
        ("layer", filters.layers),
        ("role", filters.roles),
        ("author", filters.names),
        ("project", None if filters.project_id is None else [filters.project_id]),
        ("session", filters.session_ids),
    ):
        if wanted is not None:
            mask &= np.isin(facts[column], [index.names.known(text) for text in wanted])
    if filters.tags is not None:
        tags = set(filters.tags)
        mask &= np.fromiter((not tags.isdisjoint(index.tags[slot]) for slot in slots), np.bool_, len(slots))
    if filters.created_after is not None:
        mask &= facts["created_ms"] >= filters.created_after
    if filters.created_before is not None:
        mask &= facts["created_ms"] < filters.created_before
    if filters.min_confidence is not None:
        mask &= facts["confidence"] >= filters.min_confidence
    return mask


def superseded(graph: OwnerGraph, index: OwnerIndex, moment: Moment) -> Mask | None:
    """(n,) in conversation order: which memories a newer one had superseded by the moment; None where there are
    none."""
    if moment.history or not graph.superseded():
        return None
    seqs = refined(graph, index, moment.now_ms, moment.happened_by_ms)
    mask: Mask = np.isin(index.conversation.facts["seq"], [*seqs])
    return mask
