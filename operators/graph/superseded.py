"""Which memories newer ones have superseded.

Of memories that supersede each other, directly or around a circle, the newest by order of arrival stays: at least one
of what says the same thing must be told.
"""

from collections.abc import Iterator, Mapping

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
    circles = (circle for circle in _components(by) if len(circle) > 1)
    return {newest for circle in circles if circle.issuperset(by[newest := max(circle)])}


def _components(edges: Mapping[int, list[int]]) -> Iterator[set[int]]:
    """Yield the strongly connected components of a graph, by Kosaraju's algorithm in linear time.

    networkx has it too, and would be all that recall needs of 19 MB.
    """
    against: dict[int, list[int]] = {}
    for node, others in edges.items():
        for other in others:
            against.setdefault(other, []).append(node)
    reached: set[int] = set()
    finished = [node for root in edges for node in _finished(root, edges, reached)]
    reached = set()
    for root in reversed(finished):
        if component := {*_finished(root, against, reached)}:
            yield component


def _finished(root: int, edges: Mapping[int, list[int]], reached: set[int]) -> Iterator[int]:
    """Yield the nodes that are reached from a root first, each after all that are reached from it; add to `reached`."""
    if root in reached:
        return
    reached.add(root)
    path = [(root, iter(edges.get(root, ())))]
    while path:
        node, others = path[-1]
        following = next((other for other in others if other not in reached), None)
        if following is None:
            path.pop()
            yield node
        else:
            reached.add(following)
            path.append((following, iter(edges.get(following, ()))))
