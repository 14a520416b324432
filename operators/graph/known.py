"""Which names in a text the owner's graph has already, where nothing else tells them."""

from collections.abc import Callable, Sequence

from recallflow.operators.graph.names import NAMES_MAX, READ_CHARACTERS, Named
from recallflow.state.caseless import names_in
from recallflow.state.graph_codec import ENTITY_KIND, node_key


def with_known(named: Named, is_known: Callable[[str], bool], text: str, caseless: Sequence[str]) -> Named:
    """What a text names, with the names that are known, as long as there is room. `is_known` is asked for each doubtful
    one by the key of its node, which costs the same however many nodes there are; the text itself is searched for names
    in scripts without case, of which an owner keeps so many."""
    found: list[str] = []
    for name in named.doubtful:
        # What is part of a longer name that is known is that one.
        if not any(name in longer for longer in found) and is_known(node_key(ENTITY_KIND, name)):
            found.append(name)
    if caseless:
        there = [*names_in(text[:READ_CHARACTERS], caseless)]
        found += [name for name in there if not any(name in other and name != other for other in there)]
    entities = tuple(dict.fromkeys([*named.entities, *found]))[:NAMES_MAX]
    return named._replace(entities=entities, doubtful=()) if found else named
