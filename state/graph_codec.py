"""The stored form of an owner's graph: JSON arrays, like `state/rows.py`.

A link is the membership of a memory in a node, with a role. An edge is a typed relation of two nodes. It exists because
memories state it (they are its evidence), or because an event gives it."""

import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import orjson

from recallflow.caching import BoundedCache
from recallflow.fields import EPOCH_MS_MIN

SIMILAR_TO = "similar_to"
SUPERSEDES = "supersedes"
CONTRADICTS = "contradicts"
SAME_AS = "same_as"
SYMMETRIC = frozenset({SIMILAR_TO, CONTRADICTS})  # types of edges that hold in both directions

MEMORY_KIND = "memory"
ENTITY_KIND = "entity"
EPISODE_KIND = "episode"
CONDITION_KIND = "condition"
SELF_ROLE = "self"
# Kind prefixes of node keys. A condition may have any other prefix (`time:morning`).
NODE_KINDS = frozenset(("type", "tag", "category", "topic", "repo", ENTITY_KIND, EPISODE_KIND, CONDITION_KIND))

SUPERSEDES_CONFIDENCE = 0.7  # minimum confidence of an edge that hides a memory
SAME_AS_CONFIDENCE = 0.7  # minimum confidence of an edge that joins entities


def encode_row(row: Sequence[Any]) -> bytes:
    """Encode a row, or a list of rows, as a JSON array."""
    return orjson.dumps(tuple(row), default=tuple)


class NodeKey(NamedTuple):
    """A node's key. `NodeKey("m1", memory=True)` is the memory `m1`; `NodeKey("tag:tea")` is a node that memories
    share.

    The text form (`str`) is unique: the memory `tag:tea` is `memory:tag:tea`, and the condition `time:morning` is
    `condition:time:morning`. `candidate_nodes` parses it."""

    text: str
    memory: bool = False

    def __str__(self) -> str:
        if self.memory:
            return f"{MEMORY_KIND}:{self.text}" if has_kind_prefix(self.text) else self.text
        return self.text if self.text.partition(":")[0] in NODE_KINDS else f"{CONDITION_KIND}:{self.text}"


def is_entity(key: NodeKey) -> bool:
    return not key.memory and key.text.startswith(_ENTITY_PREFIX)


_ENTITY_PREFIX = f"{ENTITY_KIND}:"
_KIND_PREFIXES = NODE_KINDS | {MEMORY_KIND}


def has_kind_prefix(text: str) -> bool:
    """Return whether a text begins with a kind and a colon. A memory id of this form must be written `memory:…`."""
    kind, colon, _ = text.partition(":")
    return bool(colon) and kind in _KIND_PREFIXES


def candidate_nodes(text: str) -> list[NodeKey]:
    """Return the nodes that a text may name, the most likely one first. `memory:…` names a memory, and another kind
    prefix a shared node, even if a memory has this id. Any other text names a memory, or else a condition."""
    kind, colon, name = text.partition(":")
    if colon and kind == MEMORY_KIND:
        return [NodeKey(name, memory=True)]
    if kind == CONDITION_KIND and ":" in name:
        kind, _, name = name.partition(":")
        return [NodeKey(node_key(kind, name))]
    shared = NodeKey(node_key(kind, name))
    return [shared] if colon and kind in NODE_KINDS else [NodeKey(text, memory=True), shared]


class NodeDescription(NamedTuple):
    """A memory's description of a node that it is linked to, as sent with the memory."""

    urn: str | None
    properties: dict[str, Any]


class LinksRow(NamedTuple):
    """The contributions of a memory to the graph, stored so that they can be removed."""

    id: str
    links: dict[str, str]  # role by node key
    relations: list[str]  # hexadecimal names of the edges that the memory's own relations state
    evidence: list[str]  # hexadecimal names of the edges for which an event names the memory as evidence
    sketch: bytes = b""  # of its vector (see `state/hot_graph.py`); empty without a vector

    def encode(self) -> bytes:
        return bytes([len(self.sketch)]) + self.sketch + orjson.dumps(self[:-1])

    @classmethod
    def decode(cls, data: bytes) -> "LinksRow":
        end = 1 + data[0]
        memory_id, links, relations, evidence = orjson.loads(data[end:])
        return cls(memory_id, links, relations, evidence, data[1:end])


def sketch_of(data: bytes) -> bytes:
    return data[1 : 1 + data[0]]


class NodeRow(NamedTuple):
    key: NodeKey
    kind: str
    name: str  # the first spelling received
    urn: str | None = None
    properties: dict[str, Any] | None = None
    archived: bool = False
    described_by: int | None = None  # `seq` of the memory whose description applies: the first one with a description

    @classmethod
    def decode(cls, data: bytes) -> "NodeRow":
        key, *rest = orjson.loads(data)
        return cls(NodeKey(*key), *rest)

    def describe(self, description: NodeDescription | None, by: int | None) -> "NodeRow":
        """Return the node with another description, or without one. A URN that is the node's name stays."""
        urn = self.name if self.urn == self.name else description and description.urn
        return self._replace(urn=urn, properties=description and description.properties, described_by=by)


class Statement(NamedTuple):
    """A memory's evidence for an edge: one of its own relations, or evidence named by an event."""

    memory_id: str
    seq: int
    ingested_ms: int  # the time of the first ingestion
    relation: bool  # whether it is one of the memory's own relations; the export of a person has this name
    archived: bool = False
    properties: dict[str, Any] | None = None
    weight: float = 1.0
    confidence: float = 1.0
    valid_from_ms: int | None = None
    valid_to_ms: int | None = None
    stated_ms: int = EPOCH_MS_MIN  # the event time of the memory
    derived: bool = False  # by enrichment; withdrawn with a change of its memory, or of a memory at an end of the edge


class GivenEdge(NamedTuple):
    """The values of an edge given by an event."""

    weight: float
    confidence: float
    expires_ms: int | None
    archived: bool
    properties: dict[str, Any]
    ingested_ms: int  # of the first such event
    is_unconditional: bool  # whether the event names no evidence, so that the edge remains when all evidence is removed
    valid_from_ms: int | None = None
    valid_to_ms: int | None = None
    stated_ms: int = EPOCH_MS_MIN  # of the first such event


class EdgeRow(NamedTuple):
    source: NodeKey
    target: NodeKey
    type: str
    number: int  # its number among the owner's edges, in order of creation
    given: GivenEdge | None = None
    statements: tuple[Statement, ...] = ()
    archived: bool | None = None  # set by `graph.archive`; overrides `archived` of `given` and `statements`
    added_ms: int = EPOCH_MS_MIN  # the time of its creation; the statements of that time may be gone

    @classmethod
    def decode(cls, data: bytes) -> "EdgeRow":
        source, target, kind, number, given, statements, archived, added_ms = orjson.loads(data)
        values = None if given is None else GivenEdge(*given)
        stated = tuple(Statement(*statement) for statement in statements)
        return cls(NodeKey(*source), NodeKey(*target), kind, number, values, stated, archived, added_ms)

    @property
    def current(self) -> "GivenEdge | Statement":
        """Return the values that apply: those given by an event, or else those of the newest statement."""
        return self.statements[-1] if self.given is None else self.given

    @property
    def hides_target(self) -> bool:
        """Return whether the edge hides its target: a newer memory supersedes it with sufficient confidence."""
        if self.type != SUPERSEDES or not (self.source.memory and self.target.memory) or self.is_archived:
            return False
        return self.current.confidence >= SUPERSEDES_CONFIDENCE

    @property
    def joins_entities(self) -> bool:
        """Return whether the edge merges two entities: with sufficient confidence, and valid without end."""
        if self.type != SAME_AS or self.is_archived or not (is_entity(self.source) and is_entity(self.target)):
            return False
        return self.current.confidence >= SAME_AS_CONFIDENCE and self.ends_ms is None

    @property
    def is_archived(self) -> bool:
        if self.archived is not None:
            return self.archived
        if self.given is not None:
            return self.given.archived
        return all(statement.archived for statement in self.statements)

    @property
    def ingested_ms(self) -> int:
        return min(one.ingested_ms for one in self._sources)

    @property
    def stated_ms(self) -> int:
        return min(one.stated_ms for one in self._sources)

    @property
    def ends_ms(self) -> int | None:
        ends = [self.current.valid_to_ms, None if self.given is None else self.given.expires_ms]
        return min((at for at in ends if at is not None), default=None)

    @property
    def _sources(self) -> "list[GivenEdge | Statement]":
        return [*self.statements] if self.given is None else [*self.statements, self.given]


class StoredNeighbour(NamedTuple):
    """A memory whose vector is close to another's. `weight` is their cosine, to 4 digits."""

    seq: int
    id: str
    weight: float
    ingested_ms: int
    archived: bool = False


class Unsynced(NamedTuple):
    """A memory whose graph update failed."""

    id: str
    failures: int  # failed attempts
    merged: list[tuple[str, str]]  # ids of merged episodes and of those that absorbed them: links are to be moved

    @classmethod
    def decode(cls, data: bytes) -> "Unsynced":
        memory_id, failures, merged = orjson.loads(data)
        return cls(memory_id, failures, [(episode_id, target_id) for episode_id, target_id in merged])


class Superseded(NamedTuple):
    """The supersession of a memory by a newer one, which replaces it."""

    by: str  # the id of the newer memory
    ingested_ms: int  # the time from which it was known
    expires_ms: int | None  # the end of its validity; None without an end
    valid_from_ms: int | None = None  # the start of its validity; None without a start
    until_ms: int | None = None  # the time until which it was known; None if it is current
    stated_ms: int = EPOCH_MS_MIN  # the event time of the first statement
    needs_edge: bool = False  # read the times from the edge, because a memory that stated it was deleted

    def applies_at(self, time_ms: int) -> bool:
        """Return whether the supersession applies at a time: from `valid_from_ms`, or else from the event time."""
        return (self.stated_ms if self.valid_from_ms is None else self.valid_from_ms) <= time_ms


def decode_neighbours(data: bytes) -> list[StoredNeighbour]:
    return [StoredNeighbour(*row) for row in orjson.loads(data)]


def decode_superseded(data: bytes) -> list[Superseded]:
    return [Superseded(*row) for row in orjson.loads(data)]


def encode_member(role: str, description: NodeDescription | None) -> bytes:
    return role.encode() if description is None else orjson.dumps([role, *description])


def decode_member(data: bytes) -> tuple[str, NodeDescription | None]:
    if not data.startswith(b"["):  # a role never begins with a bracket
        return data.decode(), None
    role, *description = orjson.loads(data)
    return role, NodeDescription(*description)


def node_key(kind: str, name: str) -> str:
    """Return the key of a node: the kind, and the name in Unicode NFKC, case-folded, with single blanks."""
    return _node_keys[kind, name]


def _node_key(node: tuple[str, str]) -> str:
    kind, name = node
    plain = name if name.isascii() else unicodedata.normalize("NFKC", name)
    return f"{kind}:{' '.join(plain.casefold().split())}"


_node_keys = BoundedCache(_node_key, 4 * 1024 * 1024)


# Parts of an edge with a history of their own: a memory's statement (own relation, or evidence), values given by an
# event, the archive mark of `graph.archive`, and the edge's existence.
RELATION, EVIDENCE, GIVEN, OVERRIDE, LIFE = b"r", b"e", b"g", b"o", b"x"


class Life(NamedTuple):
    """The existence of an edge, which began at `added_ms`."""

    source: NodeKey
    target: NodeKey
    type: str
    number: int
    added_ms: int

    @classmethod
    def of(cls, stored: list[Any]) -> Self:
        source, target, *rest = stored
        return cls(NodeKey(*source), NodeKey(*target), *rest)

    @classmethod
    def of_row(cls, row: EdgeRow) -> Self:
        return cls(row.source, row.target, row.type, row.number, row.added_ms)


def edge_part(part: bytes, content: Any) -> Any:
    """Decode the content of an edge's part in a past record."""
    if content is None or part == OVERRIDE:
        return content
    if part == LIFE:
        return Life.of(content)
    return GivenEdge(*content) if part == GIVEN else Statement(*content)
