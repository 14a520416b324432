"""Filters: masks, over all positions, of the memories that may be in an answer. They apply before any cut to k."""

import operator
from collections.abc import Iterable

import numpy as np

from recallflow.limits import FILTER_MEMBERS_MAX, FILTER_PAST_MEMBERS_MAX
from recallflow.operators.graph.reader import given_entities
from recallflow.operators.graph.reader import superseded as superseded_seqs
from recallflow.operators.recall.moment import Moment
from recallflow.queries import Filters
from recallflow.responses import Warn
from recallflow.state.arrays import Ints, Mask, Positions
from recallflow.state.graph import OwnerGraph
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex
from recallflow.state.labels import Labels, metadata_label
from recallflow.state.past_graph import VersionGraph
from recallflow.state.rows import BLANK

# Columns compared with a list of names.
_COLUMNS = {
    "categories": "category",
    "kinds": "kind",
    "layers": "layer",
    "roles": "role",
    "names": "author",
    "session_ids": "session",
}
# Bounds of columns: field of the filters, column, and comparison.
_BOUNDS = (
    ("created_after", "created_ms", operator.ge),
    ("created_before", "created_ms", operator.lt),
    ("min_confidence", "confidence", operator.ge),
    ("min_importance", "importance", operator.ge),
)


def valid(index: OwnerIndex, moment: Moment) -> Mask:
    """Return a mask (n,) in conversation order of the memories that may be in an answer at the moment. They have a text
    and happened by then. Unless the query requests history, they are also valid and not expired."""
    facts, now_ms = index.conversation.facts, moment.now_ms
    mask: Mask = np.ones(index.conversation.size, np.bool_)
    if index.conversation.has_time_limits and not moment.history:
        mask &= (facts["valid_from_ms"] <= now_ms) & (now_ms < facts["valid_to_ms"]) & (now_ms < facts["expires_ms"])
    if index.conversation.has_blank_texts:
        mask &= (facts["flags"] & BLANK) == 0
    if moment.happened_by_ms is not None:
        mask &= facts["created_ms"] <= moment.happened_by_ms
    return mask


class Filtering:
    """Filter evaluation for one owner's memories at a moment, with a cache per label and entity. The number of memories
    read per query for entities is bounded; the newest come first."""

    def __init__(self, index: OwnerIndex, graph: OwnerGraph, moment: Moment) -> None:
        self._index, self._graph, self._facts = index, graph, index.conversation.facts
        self._reads_left = FILTER_MEMBERS_MAX if moment.is_now else FILTER_PAST_MEMBERS_MAX
        self._labelled: dict[tuple[int, str], Positions] = {}
        self._linked: dict[str, Mask] = {}  # by name of the entity
        self._unknown: list[str] = []  # names without an entity
        self._cut: list[str] = []  # names of entities with more memories than the bound

    def within(self, filters: Filters, project_id: str | None = None) -> Mask:
        """Return a mask (n,) in conversation order of the memories that pass all filters, and are of the project."""
        facts, names, size = self._facts, self._index.names, self._index.conversation.size
        mask: Mask = np.ones(size, np.bool_)
        for name, column in _COLUMNS.items():
            if (wanted := getattr(filters, name)) is not None:
                mask &= np.isin(facts[column], [names.number_of(text) for text in wanted])
        for name, column, passes in _BOUNDS:
            if (bound := getattr(filters, name)) is not None:
                mask &= passes(facts[column], bound)
        for project in (filters.project_id, project_id):
            if project is not None:
                mask &= facts["project"] == names.number_of(project)
        if filters.tags is not None:
            mask &= self._any(self._has(self._index.tags, tag) for tag in filters.tags)
        for tag in filters.all_tags or ():
            mask &= self._has(self._index.tags, tag)
        for name, values in (filters.metadata or {}).items():
            several = values if isinstance(values, list) else [values]
            mask &= self._any(self._has(self._index.metadata, metadata_label(name, value)) for value in several)
        if filters.entities is not None:
            mask &= self._any(map(self._linked_to, filters.entities))
        for one in filters.all or ():
            mask &= self.within(one)
        if filters.any is not None:
            mask &= self._any(map(self.within, filters.any))
        for one in filters.none_of:
            mask &= ~self.within(one)
        return mask

    def _any(self, masks: Iterable[Mask]) -> Mask:
        found: Mask = np.zeros(self._index.conversation.size, np.bool_)
        for mask in masks:
            found |= mask
        return found

    def _has(self, labels: Labels, label: str) -> Mask:
        key = id(labels), label
        if key not in self._labelled:
            self._labelled[key] = self._index.conversation.live_positions(labels.slots(label))
        mask: Mask = np.zeros(self._index.conversation.size, np.bool_)
        mask[self._labelled[key]] = True
        return mask

    def _linked_to(self, name: str) -> Mask:
        """Return a mask (n,) of the memories linked to the entities of a name."""
        if name in self._linked:
            return self._linked[name]
        mask = self._linked[name] = np.zeros(self._index.conversation.size, np.bool_)
        nodes = given_entities(self._graph, [name])
        if not nodes:
            self._unknown.append(name)
        for node in nodes:
            members = self._graph.members(node, self._reads_left + 1)
            if len(members) > self._reads_left:
                self._cut.append(name)
            mask[self._positions(node, members[: self._reads_left])] = True
            self._reads_left -= min(len(members), self._reads_left)
        return mask

    def _positions(self, node: NodeKey, members: list[int]) -> Ints:
        """Return the positions of a node's memories. Of several versions, return only the linked ones."""
        positions = np.flatnonzero(np.isin(self._facts["seq"], members))
        graph = self._graph
        if not isinstance(graph, VersionGraph):
            return positions
        versions = zip(self._facts["seq"][positions].tolist(), self._facts["version"][positions].tolist(), strict=True)
        return positions[[graph.was_linked(seq, version, node) for seq, version in versions]]

    def warnings(self) -> list[Warn]:
        found = []
        if self._unknown:
            found.append(Warn(code="unknown_entity", detail=f"filters: no entity is named {', '.join(self._unknown)}"))
        if self._cut:
            detail = f"only the newest memories of {', '.join(self._cut)} were considered; the others are left out"
            found.append(Warn(code="filter_cut", detail=detail))
        return found


def superseded(graph: OwnerGraph, index: OwnerIndex, moment: Moment) -> Mask | None:
    """Return a mask (n,) in conversation order of the memories superseded by the moment, or None if there are none."""
    if moment.history or not graph.superseded():
        return None
    return np.isin(index.conversation.facts["seq"], [*superseded_seqs(graph, moment.now_ms)])
