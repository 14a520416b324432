"""Which memories newer ones have superseded.

Of memories that supersede each other, directly or around a circle, the newest by order of arrival stays: at least one
of what says the same thing must be told.
"""

from collections.abc import Mapping

import networkx as nx

from recallflow.state.graph import OwnerGraph
from recallflow.state.graph_codec import NodeKey, Superseded

Refined = Mapping[int, list[Superseded]]


def superseded(graph: OwnerGraph, now_ms: int) -> set[int]:
    """`seq` of the memories that others have superseded, by what holds at `now_ms`."""
    by: dict[int, list[int]] = {}
    for seq, refinements in graph.superseded().items():
        for one in refinements:
            if one.expires_ms is not None and now_ms >= one.expires_ms:
                continue
            if one.valid_from_ms is not None and now_ms < one.valid_from_ms:
                continue
            if newer := graph.members(NodeKey(one.by, memory=True), 1):
                by.setdefault(seq, []).append(newer[0])
    return by.keys() - _newest_of_circles(by)


def _newest_of_circles(by: Mapping[int, list[int]]) -> set[int]:
    """The newest of each circle of memories, unless one from outside the circle supersedes it."""
    if all(seq < newer for seq, found in by.items() for newer in found):
        return set()  # what is always newer comes to no circle
    pairs = nx.DiGraph((newer, seq) for seq, found in by.items() for newer in found)
    circles = (circle for circle in nx.strongly_connected_components(pairs) if len(circle) > 1)
    return {newest for circle in circles if circle.issuperset(by[newest := max(circle)])}
