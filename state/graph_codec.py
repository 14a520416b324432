"""The stored form of an owner's graph: JSON arrays, like `state/rows.py`.

A link is the membership of a memory in a node, with a role. An edge is a typed relation of two nodes; memories state it
(its evidence), or an event gives it."""

import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from recallflow.caching import Kept
from recallflow.fields import EPOCH_MS_MIN

SIMILAR_TO = "similar_to"
SUPERSEDES = "supersedes"
CONTRADICTS = "contradicts"
SAME_AS = "same_as"
SYMMETRIC = frozenset({SIMILAR_TO, CONTRADICTS})  # true in both directions, or in none

MEMORY_KIND = "memory"
ENTITY_KIND = "entity"
EPISODE_KIND = "episode"
CONDITION_KIND = "condition"
SELF_ROLE = "self"
# What a node's key begins with; what conditions are called may begin with anything else (`time:morning`).
NODE_KINDS = frozenset(("type", "tag", "category", "topic", "repo", ENTITY_KIND, EPISODE_KIND, CONDITION_KIND))

SUPERSEDES_CONFIDENCE = 0.7  # what is less sure than this hides nothing
SAME_AS_CONFIDENCE = 0.7  # and what is less sure than this joins nothing


class NodeKey(NamedTuple):
    """A node's key: `NodeKey("m1", memory=True)` is the memory `m1`, `NodeKey("tag:tea")` what memories have in common.

    As a text no two are the same: a memory whose id begins like a node's key is `memory:tag:tea`, and a condition of
    another kind `condition:time:morning`. `nodes_called` reads such a text.
    """

    text: str
    memory: bool = False

    def __str__(self) -> str:
        kind, colon, _ = self.text.partition(":")
        if self.memory:
            return f"{MEMORY_KIND}:{self.text}" if colon and kind in _RESERVED else self.text
        return self.text if kind in NODE_KINDS else f"{CONDITION_KIND}:{self.text}"


def is_entity(key: NodeKey) -> bool:
    """Whether a node is an entity."""
    return not key.memory and key.text.startswith(_ENTITY)


_ENTITY = f"{ENTITY_KIND}:"
_RESERVED = NODE_KINDS | {MEMORY_KIND}


def begins_like_a_key(text: str) -> bool:
    """Whether a text can name a memory only as `memory:…`: it begins like a node's key."""
    kind, colon, _ = text.partition(":")
    return bool(colon) and kind in _RESERVED


def nodes_called(text: str) -> list[NodeKey]:
    """Return the possible nodes of a text, in order of precedence. `memory:…` names a memory, and another kind prefix a
    node, regardless of memory ids; any other text names a memory before a condition."""
    kind, colon, name = text.partition(":")
    if colon and kind == MEMORY_KIND:
        return [NodeKey(name, memory=True)]
    if kind == CONDITION_KIND and ":" in name:
        kind, _, name = name.partition(":")
        return [NodeKey(node_key(kind, name))]
    shared = NodeKey(node_key(kind, name))
    return [shared] if colon and kind in NODE_KINDS else [NodeKey(text, memory=True), shared]


class NodeDescription(NamedTuple):
    """How a memory describes a node that it belongs to: given with the memory, not read from its text."""

    urn: str | None
    properties: dict[str, Any]


class LinksRow(NamedTuple):
    """The contributions of a memory to the graph, for their removal: its links (node key → role), and the edges (stored
    names in hexadecimal) that it is evidence of, by its own relations or by events. `sketch` is of its vector (see
    `state/window.py`); empty if there is none or it is not wanted."""

    id: str
    links: dict[str, str]
    relations: list[str]
    evidence: list[str]
    sketch: bytes = b""

    def encode(self) -> bytes:
        return bytes([len(self.sketch)]) + self.sketch + orjson.dumps(self[:-1])

    @classmethod
    def decode(cls, data: bytes) -> "LinksRow":
        end = 1 + data[0]
        memory_id, links, relations, evidence = orjson.loads(data[end:])
        return cls(memory_id, links, relations, evidence, data[1:end])


def sketch_of(data: bytes) -> bytes:
    """The sketch in an encoded `LinksRow`."""
    return data[1 : 1 + data[0]]


class NodeRow(NamedTuple):
    """A node. `name` is the first spelling that came. `described_by` is the `seq` of the memory whose description
    counts: of the first that gives any; None where no memory does."""

    key: NodeKey
    kind: str
    name: str
    urn: str | None = None
    properties: dict[str, Any] | None = None
    archived: bool = False
    described_by: int | None = None

    def encode(self) -> bytes:
        return orjson.dumps(tuple(self), default=tuple)

    @classmethod
    def decode(cls, data: bytes) -> "NodeRow":
        key, *rest = orjson.loads(data)
        return cls(NodeKey(*key), *rest)

    def describe(self, description: NodeDescription | None, by: int | None) -> "NodeRow":
        """The node with another description, or with none. A URN that is its name stays."""
        urn = self.name if self.urn == self.name else description and description.urn
        return self._replace(urn=urn, properties=description and description.properties, described_by=by)


class Statement(NamedTuple):
    """A memory's evidence for an edge: a `relation` of its own with its values, or evidence named by an event.
    `said_ms`: its event time. `ingested_ms`: the time of its first ingestion. `derived`: it was extracted from the
    memory and the memories at the edge's ends."""

    memory_id: str
    seq: int
    ingested_ms: int
    relation: bool
    archived: bool = False
    properties: dict[str, Any] | None = None
    weight: float = 1.0
    confidence: float = 1.0
    valid_from_ms: int | None = None
    valid_to_ms: int | None = None
    said_ms: int = EPOCH_MS_MIN
    derived: bool = False


class GivenEdge(NamedTuple):
    """The values of an edge given by an event. `stands`: given without evidence, so that they outlive all evidence.
    `said_ms`, `ingested_ms`: of the first such event."""

    weight: float
    confidence: float
    expires_ms: int | None
    archived: bool
    properties: dict[str, Any]
    ingested_ms: int
    stands: bool
    valid_from_ms: int | None = None
    valid_to_ms: int | None = None
    said_ms: int = EPOCH_MS_MIN


class EdgeRow(NamedTuple):
    """An edge. `number` counts the owner's edges in order. `archived` is set by `graph.archive` and overrides the
    edge's own values; None without such an event. `added_ms` is its ingestion time."""

    source: NodeKey
    target: NodeKey
    type: str
    number: int
    given: GivenEdge | None = None
    statements: tuple[Statement, ...] = ()
    archived: bool | None = None
    added_ms: int = EPOCH_MS_MIN

    def encode(self) -> bytes:
        return orjson.dumps(tuple(self), default=tuple)

    @classmethod
    def decode(cls, data: bytes) -> "EdgeRow":
        source, target, kind, number, given, statements, archived, added_ms = orjson.loads(data)
        return cls(
            NodeKey(*source),
            NodeKey(*target),
            kind,
            number,
            None if given is None else GivenEdge(*given),
            tuple(Statement(*statement) for statement in statements),
            archived,
            added_ms,
        )

    @property
    def word(self) -> "GivenEdge | Statement":
        """The weight and confidence in force: given by an event, or else stated by the newest memory."""
        return self.statements[-1] if self.given is None else self.given

    @property
    def hides(self) -> bool:
        """Whether it keeps a memory out of answers: a newer one supersedes that, and surely enough."""
        if self.type != SUPERSEDES or not (self.source.memory and self.target.memory) or self.is_archived:
            return False
        return self.word.confidence >= SUPERSEDES_CONFIDENCE

    @property
    def joins(self) -> bool:
        """Whether it makes two entities one: surely enough, and for good."""
        if self.type != SAME_AS or self.is_archived or not (is_entity(self.source) and is_entity(self.target)):
            return False
        return self.word.confidence >= SAME_AS_CONFIDENCE and self.ends_ms is None

    @property
    def is_archived(self) -> bool:
        if self.archived is not None:
            return self.archived
        if self.given is not None:
            return self.given.archived
        return all(statement.archived for statement in self.statements)

    @property
    def ingested_ms(self) -> int:
        """When it was first stated, of what states it now."""
        return min(one.ingested_ms for one in self._words)

    @property
    def said_ms(self) -> int:
        """The earliest event time of what states it now."""
        return min(one.said_ms for one in self._words)

    @property
    def ends_ms(self) -> int | None:
        """When it ceases to hold, if that is said."""
        ends = [self.word.valid_to_ms, None if self.given is None else self.given.expires_ms]
        return min((at for at in ends if at is not None), default=None)

    @property
    def _words(self) -> "list[GivenEdge | Statement]":
        return [*self.statements] if self.given is None else [*self.statements, self.given]


class StoredNeighbour(NamedTuple):
    """A memory whose vector is close to another's. `weight` is their cosine, to 4 digits."""

    seq: int
    id: str
    weight: float
    ingested_ms: int
    archived: bool = False


class Unsynced(NamedTuple):
    """A memory whose graph could not be written: how often that was tried, and the episodes (by their id) whose members
    were to go over to another one with it."""

    id: str
    failures: int
    merged: list[tuple[str, str]]

    def encode(self) -> bytes:
        return orjson.dumps(tuple(self))

    @classmethod
    def decode(cls, data: bytes) -> "Unsynced":
        memory_id, failures, merged = orjson.loads(data)
        return cls(memory_id, failures, [(one, into) for one, into in merged])


class Superseded(NamedTuple):
    """The refinement of a memory by a newer one, valid from `valid_from_ms` to `expires_ms`, if given. It was known
    from `ingested_ms` to `until_ms`; None if it is current. `said_ms`: the event time of the first statement. `asks`: a
    memory that stated it is forgotten, so its times must be derived from the edge."""

    by: str
    ingested_ms: int
    expires_ms: int | None
    valid_from_ms: int | None = None
    until_ms: int | None = None
    said_ms: int = EPOCH_MS_MIN
    asks: bool = False

    def happened(self, by_ms: int) -> bool:
        """Whether it is about a time: since one that it names, or else since it was said."""
        return (self.said_ms if self.valid_from_ms is None else self.valid_from_ms) <= by_ms


def encode_rows(rows: Sequence[StoredNeighbour] | Sequence[Superseded]) -> bytes:
    """Encode the similar memories of a memory, or the memories that supersede it."""
    return orjson.dumps([tuple(row) for row in rows])


def decode_neighbours(data: bytes) -> list[StoredNeighbour]:
    """What `encode_rows` made of similar memories."""
    return [StoredNeighbour(*row) for row in orjson.loads(data)]


def decode_superseded(data: bytes) -> list[Superseded]:
    """What `encode_rows` made of superseding memories."""
    return [Superseded(*row) for row in orjson.loads(data)]


def encode_member(role: str, description: NodeDescription | None) -> bytes:
    """A link as the node has it: a role, and rarely more."""
    return role.encode() if description is None else orjson.dumps([role, *description])


def decode_member(data: bytes) -> tuple[str, NodeDescription | None]:
    """What `encode_member` made."""
    if not data.startswith(b"["):  # no role does
        return data.decode(), None
    role, *description = orjson.loads(data)
    return role, NodeDescription(*description)


def node_key(kind: str, name: str) -> str:
    """Return the normalised key of a name: Unicode NFKC, case folded, blanks trimmed. An empty name gives only the kind
    and a colon."""
    return _node_keys[kind, name]


def _node_key(node: tuple[str, str]) -> str:
    kind, name = node
    plain = name if name.isascii() else unicodedata.normalize("NFKC", name)
    return f"{kind}:{' '.join(plain.casefold().split())}"


_node_keys = Kept(_node_key, 4 * 1024 * 1024)
