"""What queries about the graph answer. Times are RFC 3339 in UTC."""

from typing import Any, Literal

from recallflow.control import RolloutMode
from recallflow.fields import Cuttable, Model

Mark = Literal["archived", "expired", "not_yet_valid", "superseded"]
"""Why something does not count at the time asked about."""


class RolloutState(Model):
    """The tenant's rollout mode, and who set it when and why. `enabled`: whether the deployment has the graph on."""

    mode: RolloutMode
    enabled: bool
    since: str | None
    by: str | None
    why: str | None


class TypeFigures(Model):
    """What edges of one type give: `answers` of the window that have any of it, and the mean relevance to their
    questions, in the window and before it (null: too little was seen)."""

    answers: int
    relevance: float | None
    before: float | None


class GateState(Model):
    """The tenant's quality gate: the verdict that holds, since when, by whom and why (null: there was none yet), and
    the figures of all state partitions of the engine that answers (null: too little was seen)."""

    blocked: bool
    since: str | None
    by: str | None
    why: str | None
    windows: dict[str, int | float | None]
    edge_types: dict[str, TypeFigures]


class GraphFailure(Cuttable):
    """An expansion that failed."""

    at: str
    query_id: str
    error: str


class GraphReport(Cuttable):
    """The owner's graph in numbers, and what the tenant's rollout makes of it. `complete`: whether everything was
    counted; a very large graph is counted in part."""

    nodes: dict[str, int]
    edges: dict[str, int]
    complete: bool
    rollout: RolloutState
    gate: GateState
    failures: list[GraphFailure]


class TracedMemory(Cuttable):
    """A memory of a trace: a seed, with its rank's score, or one that the graph would add, with the path to it."""

    id: str
    score: float
    why: dict[str, Any] | None = None


class TracedStep(Cuttable):
    """An edge that was looked at, from the end it was come from, and what came of it. `score` where it led to a memory
    that may be answered."""

    hop: int
    source: str
    target: str
    type: str
    weight: float
    confidence: float
    score: float | None
    outcome: str


class Trace(Cuttable):
    """One query's expansion, step by step, as it would be without a rollout. `left_out`: steps beyond the first
    thousand; `caps`: bounds that were reached; `fallback`: why the answer would not have what the graph adds."""

    seeds: list[TracedMemory]
    steps: list[TracedStep]
    left_out: int
    expanded: list[TracedMemory]
    caps: dict[str, Any]
    fallback: str | None


class ExploredNode(Cuttable):
    """A node; of a memory the key is its id, as `memory:…` where that begins like another node's key. `expanded`:
    whether what lies behind it was loaded; a bound, or its being archived, keeps it closed. `hops`: the
    fewest from the nodes asked for. `centrality`: its closeness to all others of the subgraph, 0 to 1 (they are its
    neighbours). `aliases`: other names of an entity. On pages of the
    whole, `hops` and `centrality` are 0."""

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


class ExploredEdge(Cuttable):
    """An edge with all that is known of it. A symmetric one stands once. `marks`: why it does not count at the time
    asked about; none where it does."""

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
    marks: list[Mark]
    ingested_at: str
    properties: dict[str, Any]


class ExploredLink(Model):
    """That a memory belongs to a node, both by their keys, and in which role."""

    memory: str
    node: str
    role: str


class ExploredMemory(Cuttable):
    """A memory of a subgraph, as far as a page shows it. `marks`: as of an edge; recall leaves marked ones out."""

    id: str
    key: str
    content: str
    kind: str
    role: str | None
    name: str | None
    created_at: str
    marks: list[Mark]


class Subgraph(Cuttable):
    """What lies within some hops of the nodes asked for, or a page of the whole graph. `caps`: bounds that were
    reached. `after`: where the page ends, for the next one; null where it is the last."""

    nodes: list[ExploredNode]
    edges: list[ExploredEdge]
    links: list[ExploredLink]
    memories: list[ExploredMemory]
    caps: dict[str, Any]
    after: str | None = None


class Evidence(Cuttable):
    """A memory that states a fact, by a sentence of it."""

    id: str
    quote: str


class Fact(Cuttable):
    """A relation: from a node to another, by their keys and names. `evidence`: the newest memories that state it, of
    `evidence_count`; `score`: the share of the query's words that it has; `marks`: why it does not count at the moment,
    or why all that states it does not."""

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
    marks: list[Mark]


class Facts(Cuttable):
    """What relations say, best first. `complete`: whether all that could be meant was looked at; around very much only
    a part is."""

    facts: list[Fact]
    complete: bool
