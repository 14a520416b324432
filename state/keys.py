"""The layout of a state partition's RocksDB: every key.

A partition's own records come first, then all records of each owner under one prefix. So an owner's data can be read or
deleted as one range, and no key of one owner begins like another's.

`owner`, `user`, `tenant`, `name`, `node` and `original` are keyed hashes of 16 bytes: no key contains a user's own
words. A `node` is the `name` of a memory's id or of another node's key. Integers are big-endian, so that byte order is
number order; `version` has 4 bytes, and all others have 8. `seq` numbers an owner's memories in order of arrival and
never changes; `change` counts an owner's events that changed something; `number` is the `seq` of the message that
opened the episode, or counts edges. A prime means 2^64 - 1 minus the number: the newest first."""

import struct
from collections.abc import Callable, Iterable

FORMAT_VERSION = 9

# ------------------------------------------------------------------ key prefixes, and the rest of each key

FORMAT = b"\x00format"  # format version and partition number
APPLIED = b"\x00applied:"  # source: the last applied offset of a source partition
SETTLED = b"\x00settled:"  # source: the last offset of a replayed file with delivered outputs, and a digest up to there
COUNTS = b"\x00counts"  # the numbers of owners and of current memories
COMPLETE = b"\x00complete"  # all folders of the directory were created, in the directory of one process
PROGRESS = b"\x00place"  # how far the log is read and answered (encoded by the reader)
OWNERS = b"\x01"  # owner, a table's letter, the rest of the table's key: one owner's records, see below
OUTBOX = b"\x02"  # source name, offset: outputs that may not be delivered yet
EFFECTS = b"\x03"  # source name, offset: queries whose effects are stored: a repeated answer has no second effect
WORK = b"\x04"  # owner: the progress of an event that is applied in several steps
OWNER_KEYS = b"\x05"  # owner: the owner's wrapped key, and its user
USERS = b"\x06"  # user, owner: the owners of a user, one in each environment
ERASED = b"\x07"  # user: the event time up to which a user was erased everywhere; user, owner: in one environment
TENANT_KEYS = b"\x08"  # tenant: the tenant's wrapped key
UNCLEANED = b"\x09"  # owner, user: an erased owner whose data may still be in files
FORWARDED = b"\x0a"  # original: a record that was forwarded here and is applied
END = b"\xff"  # after every key

# Tables of an owner.
HEAD = b"H"  # identity, next sequence number, ingestion clock, language
CURRENT = b"C"  # name: sequence number, version, content digest of a memory id, and whether it is deleted
ROW = b"R"  # name, version: a memory's row; each version is kept
ENTRY = b"E"  # seq: the index entry of the current version, from which in-memory indexes are built
VECTORS = b"V"  # seq: the vectors of the current version
PAST_ENTRY = b"P"  # seq, version: the index entry of a version that an update replaced
PAST_VECTORS = b"Q"  # seq, version: its vectors
SEGMENT = b"G"  # first seq, end seq: a segment (state/segments.py) of packed memories
SEGMENTS_END = b"W"  # the end of the last segment
STALE = b"Y"  # seq: memories that changed since their segment was packed
EPISODE_LOG = b"X"  # change: episode marks, which no entry contains: explicit ends, and deleted members
CATEGORY_SUMMARY = b"B"  # name, change: the summaries of a category, former ones included
EPISODE = b"S"  # name, number: the episodes of a session
EVENT_ID = b"D"  # name: ids of applied events that create no memory: each applies once
DERIVATIVES = b"d"  # seq: memories and summaries derived from a memory
EPISODE_SUMMARY = b"e"  # number: the summary of an episode
# The graph (docs/internals/graph.md).
NODE = b"N"  # node: a node
MEMBER = b"L"  # node, seq': a memory's link to a node
LINKS = b"M"  # seq: a memory's contributions to the graph, for their removal
EDGE = b"O"  # name: an edge, by its ends and type
ADJACENCY = b"A"  # node, number': the names of the edges at a node, in both directions
SIMILAR = b"J"  # seq: a memory's most similar memories
SUPERSEDED = b"Z"  # seq: the memories that supersede a memory
UNSYNCED = b"F"  # seq: memories whose graph could not be written
JOINED = b"T"  # node: the other names that an entity is joined to (state/entity_names.py)
PAST_LINKS = b"m"  # seq, version: the graph contributions of a replaced version
PAST_MEMBER = b"l"  # node, seq': a memory's former link to a node
PAST_EDGE = b"o"  # name, seq, part (1 byte), change: former statements on an edge, by one memory or all, and their end
PAST_ADJACENCY = b"a"  # node, number': former edges at a node
PAST_SIMILAR = b"j"  # seq, seq, change: a former neighbour, or an earlier archive mark of one
PAST_NODE = b"n"  # node, change: a node before it was archived, restored or deleted
PAST_JOINED = b"i"  # name, number: names that an edge joined formerly
CASELESS = b"c"  # names in scripts without case (state/entity_names.py)
# Effects of queries.
USAGE = b"U"  # seq: returns and feedback; not in the state hash
SESSION = b"K"  # session name: memories returned in a session, for its continuity
QUERY_IDS = b"I"  # ids of the owner's latest queries: a repeated query counts once

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
segments_end = _single(SEGMENTS_END)
stale = _numbered(STALE)
episode_log = _numbered(EPISODE_LOG)
category_summary = _named_and_numbered(CATEGORY_SUMMARY)
episode = _named_and_numbered(EPISODE)
episode_summary = _numbered(EPISODE_SUMMARY)
derivatives = _numbered(DERIVATIVES)
event_id = _named(EVENT_ID)
usage = _numbered(USAGE)
session = _named(SESSION)
query_ids = _single(QUERY_IDS)

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


def scan_prefixes(found: Iterable[bytes]) -> list[bytes]:
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
