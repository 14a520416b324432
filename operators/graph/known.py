"""Which of the doubtful names in a text the owner's graph has already."""

from collections.abc import Callable

from recallflow.operators.graph.names import NAMES_MAX, Named
from recallflow.state.graph_codec import ENTITY_KIND, node_key


def with_known(named: Named, is_known: Callable[[str], bool]) -> Named:
    """What a text names, with the doubtful names whose nodes are known, as long as there is room. `is_known`: asked for
    each by the key of its node, so that it costs no more than so many look-ups, however many nodes there are."""
    found: list[str] = []
    for name in named.doubtful:
        # What is part of a longer name that is known is that one.
        if not any(name in longer for longer in found) and is_known(node_key(ENTITY_KIND, name)):
            found.append(name)
    entities = tuple(dict.fromkeys([*named.entities, *found]))[:NAMES_MAX]
    return named._replace(entities=entities, doubtful=()) if found else named
