"""The history of an edge: its existence, and its earlier statements, in parts."""

from typing import Any, NamedTuple, Self

from recallflow.state.graph_codec import EdgeRow, GivenEdge, NodeKey, Statement

RELATION, EVIDENCE, GIVEN, OVERRIDE, LIFE = b"r", b"e", b"g", b"o", b"x"


class Life(NamedTuple):
    """The existence of an edge since `added_ms`."""

    source: NodeKey
    target: NodeKey
    type: str
    number: int
    added_ms: int

    @classmethod
    def of(cls, stored: list[Any]) -> Self:
        """Parse the JSON form."""
        source, target, *rest = stored
        return cls(NodeKey(*source), NodeKey(*target), *rest)

    @classmethod
    def of_row(cls, row: EdgeRow) -> Self:
        """Return the existence of a current edge."""
        return cls(row.source, row.target, row.type, row.number, row.added_ms)


def edge_part(part: bytes, content: Any) -> Any:
    """Decode a part of an edge's history from JSON."""
    if content is None or part == OVERRIDE:
        return content
    if part == LIFE:
        return Life.of(content)
    return GivenEdge(*content) if part == GIVEN else Statement(*content)
