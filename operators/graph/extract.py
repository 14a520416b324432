"""Nodes and edges of a memory, from its fields and the names in its text."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from recallflow.caching import Kept
from recallflow.operators.graph.names import TextNames
from recallflow.state.graph_codec import ENTITY_KIND, EPISODE_KIND, SAME_AS, NodeDescription, NodeKey, node_key
from recallflow.state.rows import MemoryRow


class Link(NamedTuple):
    """The membership of a memory in a node, with the node's name and the memory's description of it."""

    key: str
    kind: str
    name: str
    role: str
    description: NodeDescription | None = None
    is_urn: bool = False  # the name is a URN


class StatedRelation(NamedTuple):
    """An edge that a memory states."""

    source: NodeKey
    target: NodeKey
    type: str
    archived: bool
    properties: dict[str, Any] | None
    weight: float = 1.0
    confidence: float = 1.0
    valid_from_ms: int | None = None
    valid_to_ms: int | None = None


_NOBODY = node_key(ENTITY_KIND, "")  # the key of a blank name


def links(row: MemoryRow, episode_id: str | None, named: TextNames) -> dict[str, Link]:
    """Return the links of a memory by node key. If it names a node several times, the first gives the role, and the
    first with a description gives the name."""
    found: dict[str, Link] = {}
    for link in _all_links(row, episode_id, named):
        before = found.get(link.key)
        if before is None:
            if len(link.key) > len(link.kind) + 1:  # blank names are skipped
                found[link.key] = link
        elif link.description is not None and before.description is None:
            found[link.key] = before._replace(name=link.name, description=link.description)
    return found


def _all_links(row: MemoryRow, episode_id: str | None, named: TextNames) -> Iterator[Link]:
    yield _link("type", row.kind)
    if row.category is not None:
        yield _link("category", row.category)
    for topic in row.topics:
        yield _link("topic", topic)
    for tag in (*row.tags, *named.tags):
        yield _link("tag", tag)
    if row.project_id is not None:
        yield _link("repo", row.project_id)
    if episode_id is not None:
        # Hardly any episode comes twice: the cache is for names.
        yield Link(f"{EPISODE_KIND}:{episode_id}", EPISODE_KIND, episode_id, EPISODE_KIND)
    if row.name is not None:
        yield _link(ENTITY_KIND, row.name, "author")
    yield from _given_entities(row)
    for name in named.entities:
        yield _link(ENTITY_KIND, name, "mention")
    for urn in named.urns:
        yield _link(ENTITY_KIND, urn, "mention", is_urn=True)


def _given_entities(row: MemoryRow) -> Iterator[Link]:
    """Yield links of a memory's entities. URNs and aliases are separate nodes, because texts use either; a relation
    connects them."""
    for entity in row.entities:
        name, urn = entity["name"], entity.get("urn")
        properties = {field: value for field, value in entity.items() if field not in ("name", "urn", "aliases")}
        description = NodeDescription(urn, properties) if urn is not None or properties else None
        yield _link(ENTITY_KIND, name)._replace(description=description)
        if urn is not None:
            yield _link(ENTITY_KIND, urn, is_urn=True)._replace(
                description=NodeDescription(urn, {"name": name, **properties})
            )
        for alias in entity.get("aliases", ()):
            yield _link(ENTITY_KIND, alias)
    for relation in row.relations:
        yield _link(ENTITY_KIND, relation["source"])
        yield _link(ENTITY_KIND, relation["target"])


def _make_link(link: tuple[str, str, str, bool]) -> Link:
    kind, name, role, is_urn = link
    return Link(node_key(kind, name), kind, name, role, None, is_urn)


_links = Kept(_make_link, 4 * 1024 * 1024)  # few distinct links occur often


def _link(kind: str, name: str, role: str | None = None, is_urn: bool = False) -> Link:
    return _links[kind, name, role or kind, is_urn]


def relations(row: MemoryRow) -> list[StatedRelation]:
    """Return the stated edges between entities, including `same_as` for aliases and URNs. An end given as a URN is the
    entity named with it."""
    names = {node_key(ENTITY_KIND, e["urn"]): node_key(ENTITY_KIND, e["name"]) for e in row.entities if e.get("urn")}

    def end(name: str) -> NodeKey:
        key = node_key(ENTITY_KIND, name)
        return NodeKey(names.get(key, key))

    found = [
        StatedRelation(
            end(r["source"]),
            end(r["target"]),
            r["type"],
            r.get("archived", False),
            r.get("properties"),
            r.get("weight", 1.0),
            r.get("confidence", 1.0),
            r.get("valid_from"),
            r.get("valid_to"),
        )
        for r in row.relations
    ]
    stated = [one for one in found if one.type != SAME_AS or one.source != one.target]
    return [one for one in (*stated, *_others(row)) if _NOBODY not in (one.source.text, one.target.text)]


def _others(row: MemoryRow) -> Iterator[StatedRelation]:
    """Yield `same_as` relations for URNs and aliases."""
    for entity in row.entities:
        own = NodeKey(node_key(ENTITY_KIND, entity["name"]))
        for other in (entity.get("urn"), *entity.get("aliases", ())):
            if other is not None and (key := NodeKey(node_key(ENTITY_KIND, other))) != own:
                yield StatedRelation(own, key, SAME_AS, False, None)
