"""Which memories newer ones have superseded.

Of memories that supersede each other, directly or around a circle, the newest by order of arrival stays: at least one
of what says the same thing must be told.
"""

from collections.abc import Mapping

import networkx as nx

from recallflow.state.graph import OwnerGraph
from recallflow.state.graph_codec import NodeKey, Superseded
from recallflow.state.index import NEVER_MS, OwnerIndex

Refined = Mapping[int, list[Superseded]]


def superseded(
    graph: OwnerGraph,
    index: OwnerIndex,
    now_ms: int,
    happened_by_ms: int | None = None,
) -> set[int]:
    """`seq` of the memories that others have superseded, by what holds at `now_ms`. One that had not happened by the
    time given supersedes nothing, and none does before it was said so."""
    by: dict[int, list[int]] = {}
    happened_ms = NEVER_MS if happened_by_ms is None else happened_by_ms
    for seq, refinements in graph.superseded().items():
        for one in refinements:
            if one.expires_ms is not None and now_ms >= one.expires_ms:
                continue
            if not one.happened(happened_ms):
                continue
            if one.valid_from_ms is not None and now_ms < one.valid_from_ms:
                continue
            newer = graph.members(NodeKey(one.by, memory=True), 1)
            slot = index.slot(newer[0]) if newer else None
            if slot is not None and index.facts["created_ms"][slot] <= happened_ms:
                by.setdefault(seq, []).append(newer[0])
    return by.keys() - _newest_of_circles(by)


def _newest_of_circles(by: Mapping[int, list[int]]) -> set[int]:
    """The newest of each circle of memories, unless one from outside the circle supersedes it."""
    if all(seq < newer for seq, found in by.items() for newer in found):
        return set()  # what is always newer comes to no circle
    pairs = nx.DiGraph((newer, seq) for seq, found in by.items() for newer in found)
    circles = (circle for circle in nx.strongly_connected_components(pairs) if len(circle) > 1)
    return {newest for circle in circles if circle.issuperset(by[newest := max(circle)])}
