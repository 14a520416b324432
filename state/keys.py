"""The layout of a state partition's RocksDB: every key there is, and why.

A partition's own records come first, then everything of each owner under one prefix, so that an owner's data can be
read, or deleted, as one range and can never be reached from another owner's prefix.

    00 name                                   the partition's own
       format                                 format version and partition number
       applied: source                        last applied offset of each source partition
       counts                                 how many owners and current memories there are
       settled: source                        last offset of a replayed file whose outputs are all delivered, and
                                              a digest of the file up to there
       complete                               all folders of the directory were created, in one process's directory
       place                                  how far the log is read and answered (encoded by the reader)
    01 owner(16) table(1) …                   one owner's
       H                                      head: who the owner is, next sequence number, ingestion clock,
                                              language
       C name(16)                             memory id → sequence number, version, content digest, forgotten or not
       R name(16) version(4)                  a memory's row, one per version: history is kept, not overwritten
       E seq(8)                               index entry of the current version: the source of the in-memory indexes
       V seq(8)                               vectors of the current version
       P seq(8) version(4)                    index entry of a version that an update replaced
       Q seq(8) version(4)                    its vectors
       G first(8) end(8)                      a segment (state/segments.py): memories from one sequence number up to
                                              another, packed
       W                                      how far segments reach
       Y seq(8)                               memories that changed since their segment was packed
       X change(8)                            episode marks, which no entry contains: explicit ends, and
                                              where forgotten messages stood
       B name(16) change(8)                   category summaries, every one there was
       S name(16) number(8)                   episodes, by session
       e number(8)                            the summary of an episode
       d seq(8)                               memories and summaries derived from a memory
       D name(16)                             ids of applied events that create no memory: each applies once
       N node(16)                             the graph (docs/internals/graph.md): a node
       L node(16) seq'(8)                     a memory's link to a node, newest first
       M seq(8)                               a memory's contributions to the graph, so that it can be removed
       O name(16)                             an edge, by its ends and type
       A node(16) number'(8)                  names of the edges at a node, out of it and into it, newest first
       J seq(8)                               a memory's most similar ones
       Z seq(8)                               by which memories a memory is superseded
       T node(16)                             which other names an entity is joined to (state/entity_names.py)
       c                                      names in scripts without case (state/entity_names.py)
       F seq(8)                               memories whose graph could not be written
       m seq(8) version(4)                    the graph contributions of a replaced version
       l node(16) seq'(8)                     a memory's link to a node that it lost
       o name(16) seq(8) part(1) change(8)    former statements on an edge: by which memory, or all
                                              ones; when it was deleted
       a node(16) number'(8)                  edges that were at a node
       j seq(8) seq(8) change(8)              a former neighbour, or an earlier archive mark of one
       i name(16) number(8)                   names that an edge joined formerly
       n node(16) change(8)                   a node before it was archived, put back or deleted
       U seq(8)                               what queries and feedback cause (usage): no part of the state hash
       K session name(16)                     memories returned in a session, for its continuity
       I                                      ids of the owner's latest queries: one asked twice counts once
    02 source name(16) offset(8)              outbox: outputs not yet known to be delivered
    03 source name(16) offset(8)              queries whose effects are in: a query answered again has them once
    04 owner(16)                              progress of an event that is applied in several steps
    05 owner(16)                              the owner's key, wrapped, and which user it is of
    06 user(16) owner(16)                     the owners that a user has, one in each environment
    07 user(16)                               up to which event time a user was erased, in all environments
    07 user(16) owner(16)                     the same, in one
    08 tenant(16)                             the tenant's key, wrapped
    09 owner(16) user(16)                     an erased owner whose data may still be in files
    0a original(16)                           a record that was forwarded here and is applied

`owner`, `user`, `tenant`, `name` and `original` are keyed hashes: no key holds a user's own words. Integers are
big-endian, so that byte order is number order. `seq` numbers an owner's memories in order of arrival and never changes;
`change` counts an owner's events that changed something; `number` is the `seq` of the message that opened the
episode, or counts edges. A prime means counted backwards from 2^64 - 1. `node` is a `name`, of a memory's id or of
another node's key."""

import struct
from collections.abc import Callable, Iterable

FORMAT_VERSION = 9

FORMAT = b"\x00format"
APPLIED = b"\x00applied:"
SETTLED = b"\x00settled:"
COUNTS = b"\x00counts"
COMPLETE = b"\x00complete"
PROGRESS = b"\x00place"
OWNERS = b"\x01"
OUTBOX = b"\x02"
EFFECTS = b"\x03"
WORK = b"\x04"
OWNER_KEYS = b"\x05"
USERS = b"\x06"
ERASED = b"\x07"
TENANT_KEYS = b"\x08"
UNCLEANED = b"\x09"
FORWARDED = b"\x0a"
END = b"\xff"  # behind every key

HEAD = b"H"
CURRENT = b"C"
ROW = b"R"
ENTRY = b"E"
VECTORS = b"V"
PAST_ENTRY = b"P"
PAST_VECTORS = b"Q"
SEGMENT = b"G"
REACH = b"W"
RENEWED = b"Y"
EPISODE_LOG = b"X"
CATEGORY_SUMMARY = b"B"
EPISODE = b"S"
EVENT_ID = b"D"
MADE = b"d"
EPISODE_SUMMARY = b"e"
NODE = b"N"
MEMBER = b"L"
LINKS = b"M"
EDGE = b"O"
ADJACENCY = b"A"
SIMILAR = b"J"
SUPERSEDED = b"Z"
UNSYNCED = b"F"
JOINED = b"T"
PAST_LINKS = b"m"
PAST_MEMBER = b"l"
PAST_EDGE = b"o"
PAST_ADJACENCY = b"a"
PAST_SIMILAR = b"j"
PAST_NODE = b"n"
PAST_JOINED = b"i"
CASELESS = b"c"
USAGE = b"U"
SESSION = b"K"
ASKED = b"I"

OWNER_BYTES = 16
NAME_BYTES = 16
TABLE_BYTES = 1 + OWNER_BYTES + 1  # of a table's prefix
GROUP_BYTES = TABLE_BYTES + NAME_BYTES  # of a name's prefix in one of these: a session's episodes, a node's links
GROUPED = frozenset(
    (EPISODE, MEMBER, ADJACENCY, ROW, CATEGORY_SUMMARY, PAST_MEMBER, PAST_EDGE, PAST_ADJACENCY, PAST_NODE)
)

_U32, _U64 = struct.Struct(">I"), struct.Struct(">Q")
_LAST = 2**64 - 1


# ------------------------------------------------------------------ keys and key prefixes of one owner's tables


def _single(table_: bytes) -> Callable[[bytes], bytes]:
    return lambda owner: OWNERS + owner + table_


def _named(table_: bytes) -> Callable[[bytes, bytes], bytes]:
    return lambda owner, name: OWNERS + owner + table_ + name


def _numbered(table_: bytes) -> Callable[[bytes, int], bytes]:
    pack = _U64.pack
    return lambda owner, number: OWNERS + owner + table_ + pack(number)


def _named_and_numbered(table_: bytes) -> Callable[[bytes, bytes, int], bytes]:
    pack = _U64.pack
    return lambda owner, name, number: OWNERS + owner + table_ + name + pack(number)


def _newest_first(table_: bytes) -> Callable[[bytes, bytes, int], bytes]:
    pack = _U64.pack
    return lambda owner, name, number: OWNERS + owner + table_ + name + pack(_LAST - number)


def _versioned(table_: bytes) -> Callable[[bytes, int, int], bytes]:
    pack, pack_version = _U64.pack, _U32.pack
    return lambda owner, seq, version: OWNERS + owner + table_ + pack(seq) + pack_version(version)


def table(owner: bytes, name: bytes) -> bytes:
    return OWNERS + owner + name


head = _single(HEAD)
current = _named(CURRENT)
rows = _named(ROW)  # prefix: all versions of a memory
entry = _numbered(ENTRY)
vectors = _numbered(VECTORS)
past_entry = _versioned(PAST_ENTRY)
past_vectors = _versioned(PAST_VECTORS)
reach = _single(REACH)
renewed = _numbered(RENEWED)
episode_log = _numbered(EPISODE_LOG)
category_summary = _named_and_numbered(CATEGORY_SUMMARY)
episode = _named_and_numbered(EPISODE)
episode_summary = _numbered(EPISODE_SUMMARY)
made = _numbered(MADE)
event_id = _named(EVENT_ID)
usage = _numbered(USAGE)
session = _named(SESSION)
asked = _single(ASKED)

node = _named(NODE)
member = _newest_first(MEMBER)
members = _named(MEMBER)  # prefix: a node's links
links = _numbered(LINKS)
edge = _named(EDGE)
adjacency = _newest_first(ADJACENCY)
adjacency_of = _named(ADJACENCY)  # prefix: a node's edges
similar = _numbered(SIMILAR)
superseded = _numbered(SUPERSEDED)
joined = _named(JOINED)
caseless = _single(CASELESS)
unsynced = _numbered(UNSYNCED)

past_links = _versioned(PAST_LINKS)
past_links_of = _numbered(PAST_LINKS)  # prefix: the graph contributions of a memory's replaced versions
past_member = _newest_first(PAST_MEMBER)
past_members = _named(PAST_MEMBER)  # prefix: the links that a node lost
past_edges = _named(PAST_EDGE)  # prefix: an edge's history
past_adjacency = _newest_first(PAST_ADJACENCY)
past_adjacency_of = _named(PAST_ADJACENCY)  # prefix: the edges that were at a node
past_joined = _named_and_numbered(PAST_JOINED)
past_similar_of = _numbered(PAST_SIMILAR)  # prefix: the neighbours that a memory had
past_node = _named_and_numbered(PAST_NODE)
past_nodes = _named(PAST_NODE)  # prefix: a node's history


def row(owner: bytes, memory: bytes, version: int) -> bytes:
    return rows(owner, memory) + _U32.pack(version)


def segment(owner: bytes, first: int, end: int) -> bytes:
    return OWNERS + owner + SEGMENT + _U64.pack(first) + _U64.pack(end)


def member_of(owner: bytes, seq: int) -> tuple[bytes, bytes]:
    """Return the parts of the keys of a memory's links, before and after the node."""
    return OWNERS + owner + MEMBER, _U64.pack(_LAST - seq)


def members_from(owner: bytes, table_: bytes, node: bytes, newest: int) -> tuple[bytes, bytes]:
    """Return the range of a node's current or lost links of memories up to the `seq` `newest`."""
    prefix = OWNERS + owner + table_ + node
    return prefix + _U64.pack(_LAST - newest), after(prefix)


def past_edge_of(owner: bytes, name: bytes, seq: int | None) -> bytes:
    """Return the prefix of a memory's earlier statements on an edge; None for events."""
    return past_edges(owner, name) + _U64.pack(_LAST if seq is None else seq)


def past_edge(owner: bytes, name: bytes, seq: int | None, part: bytes, change: int) -> bytes:
    return past_edge_of(owner, name, seq) + part + _U64.pack(change)


def past_similar(owner: bytes, seq: int, other: int, change: int) -> bytes:
    return past_similar_of(owner, seq) + _U64.pack(other) + _U64.pack(change)


# ------------------------------------------------------------------ a partition's other keys and prefixes


def _prefixed(prefix: bytes) -> Callable[[bytes], bytes]:
    return lambda name: prefix + name


def _positioned(prefix: bytes) -> Callable[[bytes, int], bytes]:
    pack = _U64.pack
    return lambda source, offset: prefix + source + pack(offset)


def applied(source: str) -> bytes:
    """Return the key of the applied position of one source partition (`topic:partition`)."""
    return APPLIED + source.encode()


def settled(source: str) -> bytes:
    return SETTLED + source.encode()


owner = _prefixed(OWNERS)  # prefix: all data of an owner
outbox = _positioned(OUTBOX)
effects = _positioned(EFFECTS)
work = _prefixed(WORK)
owner_key = _prefixed(OWNER_KEYS)
users_owners = _prefixed(USERS)  # prefix: the owners that a user has
erased = _prefixed(ERASED)  # the erasure of a user in all environments, and the prefix of those in one
tenant_key = _prefixed(TENANT_KEYS)
forwarded = _prefixed(FORWARDED)  # by the digest of a record's owner and original position


def user_owner(user: bytes, owner_: bytes) -> bytes:
    return users_owners(user) + owner_


def erased_in(user: bytes, owner_: bytes) -> bytes:
    return ERASED + user + owner_


def uncleaned(owner_: bytes, user: bytes) -> bytes:
    return UNCLEANED + owner_ + user


def uncleaned_of(key: bytes) -> tuple[bytes, bytes]:
    return key[1 : 1 + OWNER_BYTES], key[1 + OWNER_BYTES :]


# ------------------------------------------------------------------ parts of keys


def edge_part(key: bytes) -> tuple[bytes, int | None]:
    """Return the part of an edge's history that a key names, and its memory."""
    seq = int(_U64.unpack(key[-17:-9])[0])
    return key[-9:-8], None if seq == _LAST else seq


def stretches(found: Iterable[bytes]) -> list[bytes]:
    """Return the scan prefixes of owners' keys: the prefix of the table, or of the name in grouped tables."""
    return [key[:GROUP_BYTES] if key[OWNER_BYTES + 1 : TABLE_BYTES] in GROUPED else key[:TABLE_BYTES] for key in found]


def split(key: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a key of the owners' namespace into (owner, table, rest). Other keys have an empty owner and table."""
    return (key[1:17], key[17:18], key[18:]) if key.startswith(OWNERS) else (b"", b"", key)


def sequence(key: bytes) -> int:
    """Return the sequence number at the end of an entry or vectors key."""
    return int(_U64.unpack(key[-8:])[0])


def seq_and_version(key: bytes) -> tuple[int, int]:
    """Sequence number and version that end a past entry's or past vectors' key."""
    return int(_U64.unpack(key[-12:-4])[0]), int(_U32.unpack(key[-4:])[0])


def version(key: bytes) -> int:
    return int(_U32.unpack(key[-4:])[0])


def reversed_sequence(key: bytes) -> int:
    """Return the number at the end of a key in descending order."""
    return _LAST - sequence(key)


def after(prefix: bytes) -> bytes:
    """Return the first key after all keys with the prefix, the upper bound of its range."""
    head_, last = prefix[:-1], prefix[-1]
    return head_ + bytes([last + 1]) if last < 0xFF else after(head_)
