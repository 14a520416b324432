"""Responses of graph queries. Times are RFC 3339 in UTC."""

from typing import Any, Literal

from recallflow.control import RolloutMode
from recallflow.fields import Model, Truncatable

InvalidReason = Literal["archived", "expired", "not_yet_valid", "superseded"]
"""Reason why a node, edge or memory is not valid at the requested time. Responses list these reasons as `marks`."""


class RolloutState(Model):
    """The tenant's rollout mode with its author, time and reason. `enabled` is false if settings disable the graph."""

    mode: RolloutMode
    enabled: bool
    since: str | None
    by: str | None
    why: str | None


class TypeFigures(Model):
    """Figures of one edge type: the number of answers in the gate's window with memories from such edges, and the mean
    relevance of these memories in the window, and before it (null: too few answers)."""

    answers: int
    relevance: float | None
    before: float | None


class GateState(Model):
    """The tenant's quality gate: its verdict with time, author and reason (null: no verdict yet), and figures over all
    state partitions of the answering engine (null: too few answers). `windows` contains the figures by name."""

    blocked: bool
    since: str | None
    by: str | None
    why: str | None
    windows: dict[str, int | float | None]
    edge_types: dict[str, TypeFigures]


class GraphFailure(Truncatable):
    """A failed graph expansion of a query."""

    at: str
    query_id: str
    error: str


class GraphReport(Truncatable):
    """Size of the owner's graph, and the tenant's rollout. `complete` is false if a large graph is counted in part."""

    nodes: dict[str, int]
    edges: dict[str, int]
    complete: bool
    rollout: RolloutState
    gate: GateState
    failures: list[GraphFailure]


class TracedMemory(Truncatable):
    """A memory of a trace: a seed with its score, or an added memory with its path."""

    id: str
    score: float
    why: dict[str, Any] | None = None


class TracedStep(Truncatable):
    """An edge examined from `source`, with the outcome. `score` is set if the edge leads to a candidate memory."""

    hop: int
    source: str
    target: str
    type: str
    weight: float
    confidence: float
    score: float | None
    outcome: str


class Trace(Truncatable):
    """Expansion of one query, step by step, regardless of the rollout. `left_out` is the number of steps after the
    first thousand; `caps` are the reached limits; `fallback` is the reason why answers do not use the expansion."""

    seeds: list[TracedMemory]
    steps: list[TracedStep]
    left_out: int
    expanded: list[TracedMemory]
    caps: dict[str, Any]
    fallback: str | None


class ExploredNode(Truncatable):
    """A node. The key of a memory is its id, or `memory:…` if the id begins like a key of another kind. `expanded`: the
    node's neighbours were loaded (not at a limit, nor for an archived node). `hops` is the distance from the requested
    nodes. `centrality` is the closeness to the other nodes of the subgraph, 0 to 1. `aliases` are other names of an
    entity. On pages of the whole graph, `hops` and `centrality` are 0."""

    key: str
    kind: str
    name: str
    urn: str | None
    archived: bool
    properties: dict[str, Any]
    expanded: bool
    hops: int
    centrality: float
    aliases: list[str]


class ExploredEdge(Truncatable):
    """An edge with its data; a symmetric edge is listed once. `marks`: why it is not valid at the requested time."""

    source: str
    target: str
    type: str
    weight: float
    confidence: float
    evidence: list[str]
    valid_from: str | None
    valid_to: str | None
    expires_at: str | None
    archived: bool
    marks: list[InvalidReason]
    ingested_at: str
    properties: dict[str, Any]


class ExploredLink(Model):
    """Link of a memory to a node, by their keys, with its role."""

    memory: str
    node: str
    role: str


class ExploredMemory(Truncatable):
    """A memory of a subgraph in short form. `marks`: why it is invalid at the requested time, and omitted by recall."""

    id: str
    key: str
    content: str
    kind: str
    role: str | None
    name: str | None
    created_at: str
    marks: list[InvalidReason]


class Subgraph(Truncatable):
    """A neighbourhood of the requested nodes, or a page of the whole graph. `caps` are the reached limits. `after`
    is the cursor of the next page; null on the last."""

    nodes: list[ExploredNode]
    edges: list[ExploredEdge]
    links: list[ExploredLink]
    memories: list[ExploredMemory]
    caps: dict[str, Any]
    after: str | None = None


class Evidence(Truncatable):
    """A memory that states a fact. `quote` is the sentence with the fact."""

    id: str
    quote: str


class Fact(Truncatable):
    """A relation between two nodes, with their keys and names. `evidence` are the newest of `evidence_count` memories
    that state the relation; `score` is the fraction of the query's words that occur in it; `marks` are the reasons why
    the relation, or all its evidence, is not valid."""

    source: str
    source_name: str
    type: str
    target: str
    target_name: str
    weight: float
    confidence: float
    valid_from: str | None
    valid_to: str | None
    expires_at: str | None
    ingested_at: str
    properties: dict[str, Any]
    evidence: list[Evidence]
    evidence_count: int
    score: float
    marks: list[InvalidReason]


class Facts(Truncatable):
    """Relations, best first. `complete` is false if only a part of a large neighbourhood was searched."""

    facts: list[Fact]
    complete: bool
