"""Known entities that a text may mean: entities that it names, and entities whose name contains a new name or is part
of it.

A name is resolved when it first appears: `Ana` if `Ana García` is known, or the other way round. Later texts use the
result in the graph."""

from typing import NamedTuple

from pydantic import ValidationError

from recallflow.enrichment import ShownEntity
from recallflow.language import sentences
from recallflow.operators.enrichment.requests_shown import SHOWN_CHARACTERS
from recallflow.operators.view import View
from recallflow.state.graph_codec import NodeKey, is_entity
from recallflow.state.rows import MemoryRow

ENTITIES_MOST = 20
_NAMES = 8  # per text
_TOLD_CHARACTERS = 300


class Entities(NamedTuple):
    """Known entities, the ones in the text first. `in_doubt`: a new name may mean one of them."""

    shown: list[ShownEntity]
    in_doubt: bool


NO_ENTITIES = Entities([], False)


def entities(view: View, row: MemoryRow) -> Entities:
    """Return the known entities that a memory's text may mean."""
    links = view.graph.links(row.seq)
    named = [key for key in ({} if links is None else links.links) if is_entity(NodeKey(key))][:_NAMES]
    tellers = {key: next((seq for seq in view.graph.members(key, 2) if seq != row.seq), None) for key in named}
    others = dict.fromkeys(
        other for key, told_by in tellers.items() if told_by is None for other in view.graph.alike(key)
    )
    tellers |= {key: next(iter(view.graph.members(key, 1)), None) for key in [*others][:ENTITIES_MOST]}
    known = [(key, told_by) for key, told_by in tellers.items() if told_by is not None]
    found = [_shown(view, key, told_by) for key, told_by in known[:ENTITIES_MOST]]
    return Entities([one for one in found if one is not None], bool(others))


def _shown(view: View, key: str, told_by: int) -> ShownEntity | None:
    node = view.graph.node(NodeKey(key))
    if node is None or node.archived:
        return None
    kind, sentence = (node.properties or {}).get("type"), _sentence(view, told_by, node.name)
    try:
        return ShownEntity(key=key, name=node.name, type=kind, urn=node.urn, told_by=sentence)
    except ValidationError:  # names in texts are not validated like names in events
        return None


def _sentence(view: View, seq: int, name: str) -> str | None:
    """Return the sentence of a memory that names an entity, or else its first sentence."""
    for row in view.rows(view.entries_of([seq])):
        found = sentences(row.content[:SHOWN_CHARACTERS])
        naming = (one for one in found if name.casefold() in one.casefold())
        return next((one[:_TOLD_CHARACTERS] for one in (*naming, *found)), None)
    return None
