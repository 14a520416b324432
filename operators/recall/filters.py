"""Which memories may be in an answer: filters as a mask over all places, applied before any cut."""

import numpy as np
import numpy.typing as npt

from recallflow.operators.recall.moment import Moment
from recallflow.queries import Filters
from recallflow.state.index import OwnerIndex

Mask = npt.NDArray[np.bool_]


def allowed(index: OwnerIndex, filters: Filters, moment: Moment) -> Mask:
    """(n,) in conversation order: valid and not expired at the moment, unless history is asked for; happened by then;
    and within every filter given."""
    slots, facts, now_ms = index.conversation.slots, index.conversation.facts, moment.now_ms
    mask: Mask = np.ones(len(slots), np.bool_)
    if index.conversation.limited and not moment.history:
        mask &= (facts["valid_from_ms"] <= now_ms) & (now_ms < facts["valid_to_ms"]) & (now_ms < facts["expires_ms"])
    if moment.happened_by_ms is not None:
        mask &= facts["created_ms"] <= moment.happened_by_ms
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
