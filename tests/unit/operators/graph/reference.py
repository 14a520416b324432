"""Small random graphs, and the same graphs in networkx, without bounds."""

import networkx as nx
from hypothesis import strategies as st

from recallflow.operators.graph.paths import TYPE_WEIGHTS
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import SYMMETRIC
from tests.unit.operators.graph.stub import edge

KINDS = st.sampled_from([*TYPE_WEIGHTS, "other"])
MEMORIES, NODES = [f"m{n}" for n in range(5)], ["tag:a", "tag:b"]


def stored_as(one: Edge) -> object:
    """Of equal type and ends there is one edge; of a symmetric type whichever end is the source."""
    ends = one.source, one.target
    return one.type, frozenset(ends) if one.type in SYMMETRIC else ends


ENDS = st.sampled_from([*MEMORIES, *NODES])
WEIGHTS = {"weight": st.sampled_from([0.5, 1.0, 2.0]), "confidence": st.sampled_from([0.5, 1.0])}
ANY_EDGE = st.builds(edge, ENDS, KINDS, ENDS, archived=st.booleans(), **WEIGHTS)
ANY_EDGES = st.lists(ANY_EDGE, max_size=8, unique_by=stored_as)
LINKS = st.fixed_dictionaries({name: st.lists(st.sampled_from(NODES), unique=True) for name in MEMORIES})


def reference(links: dict[str, list[str]], edges: list[Edge]) -> nx.MultiGraph:
    """The graph as the definition has it: edges that hold, in both directions, and links."""
    model = nx.MultiGraph()
    model.add_nodes_from([*MEMORIES, *NODES])
    model.add_edges_from((memory, node, {"edge": None}) for memory, nodes in links.items() for node in nodes)
    model.add_edges_from((str(one.source), str(one.target), {"edge": one}) for one in edges if not one.archived)
    return model
