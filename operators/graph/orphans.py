"""What becomes of nodes that lost a link or an edge.

A node that nothing leads to any more is deleted. Where the memory whose description counts lost its link, the oldest
memory that describes the node takes its place.
"""

from collections.abc import Iterable
from itertools import islice

from recallflow.limits import DESCRIBERS_MAX
from recallflow.state import keys
from recallflow.state.graph_codec import Description, NodeKey, NodeRow, decode_member
from recallflow.state.hot_graph import Staged
from recallflow.state.partition import Partition

Nodes = dict[bytes, NodeKey]  # by what stands for each in stored keys

# Keys begin with the owners' prefix, the owner and the table: the node's name ends the part they share.
_SHARED_BYTES = keys.TABLE_BYTES + keys.NAME_BYTES


def prune(partition: Partition, owner: bytes, staged: Staged, detached: Nodes, undescribed: Nodes) -> list[NodeKey]:
    """Stages what becomes of `detached` nodes, which lost a link or an edge, and of `undescribed` ones, which lost the
    link of the memory that described them. Returns the nodes that are gone."""
    added: dict[bytes, list[tuple[bytes, bytes]]] = {}  # what the event itself added at a node, by prefix
    for stored, value in staged.effects.items():
        if value is not None:
            added.setdefault(stored[:_SHARED_BYTES], []).append((stored, value))

    def is_led_to(name: bytes) -> bool:
        return any(
            prefix in added or any(stored not in staged.effects for stored, _ in partition.scan(prefix))
            for prefix in (keys.members(owner, name), keys.adjacency_of(owner, name))
        )

    def oldest_description(name: bytes) -> tuple[int | None, Description | None]:
        prefix = keys.members(owner, name)
        left = (member for member in partition.scan_back(prefix) if member[0] not in staged.effects)
        members = (sorted(added.get(prefix, []), reverse=True), islice(left, DESCRIBERS_MAX))
        found = [one for one in map(_first_description, members) if one is not None]
        return min(found, key=lambda one: one[0], default=(None, None))

    orphans = {name for name in detached if not is_led_to(name)}
    for name in orphans:
        staged.effects[keys.node(owner, name)] = None
        staged.nodes[detached[name].text] = None
    for name in undescribed.keys() - orphans:
        if (row := staged.get(partition, keys.node(owner, name))) is not None:
            seq, description = oldest_description(name)
            staged.effects[keys.node(owner, name)] = NodeRow.decode(row).describe(description, seq).encode()
    return [detached[name] for name in orphans]


def _first_description(members: Iterable[tuple[bytes, bytes]]) -> tuple[int, Description] | None:
    described = ((stored, decode_member(value)[1]) for stored, value in members)
    return next(((keys.reversed_sequence(stored), found) for stored, found in described if found is not None), None)
