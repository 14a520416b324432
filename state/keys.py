"""The layout of a state partition's RocksDB: every key.

All records of an owner have one prefix, so that they can be read or deleted as one range.

`owner`, `user`, `tenant`, `name`, `node` and `original` are keyed hashes of 16 bytes: no key contains a text of a user.
A `node` is the `name` of a memory's id, or else the hash of the node's key. Integers are big-endian, so that byte order
is number order; `version` has 4 bytes, all others have 8. `seq` numbers an owner's memories in order of arrival and
never changes. `change` numbers the owner's events that changed something. `number` is an episode's (the `seq` of the
memory that opened it), or an edge's. A prime (`seq'`) means 2^64 - 1 minus the number: the newest comes first."""

import struct
from collections.abc import Callable, Iterable

FORMAT_VERSION = 9

# Key prefixes, and the rest of each key.
FORMAT = b"\x00format"  # format version and partition number
APPLIED = b"\x00applied:"  # source: the last applied offset of a source partition
SETTLED = b"\x00settled:"  # source: the offset up to which a file's outputs are delivered, and a digest up to there
COUNTS = b"\x00counts"  # the numbers of owners and of current memories
COMPLETE = b"\x00complete"  # a marker: one process owns all partitions, and has created all folders
PROGRESS = b"\x00place"  # how far the log is read and answered (in the encoding of its reader)
OWNERS = b"\x01"  # owner, a table's letter, the rest of the table's key: the tables of owners, see below
OUTBOX = b"\x02"  # source name, offset: outputs that may not be delivered yet
EFFECTS = b"\x03"  # source name, offset: queries whose effects are stored, so that a repeated answer has none
WORK = b"\x04"  # owner: the progress of an event that is applied in several steps
OWNER_KEYS = b"\x05"  # owner: its user and tenant, and its wrapped key, if the directory is encrypted
USERS = b"\x06"  # user, owner: the owners of a user, one in each environment
ERASED = b"\x07"  # user: the event time up to which all environments of a user were erased; user, owner: one of them
TENANT_KEYS = b"\x08"  # tenant: the tenant's wrapped key, if the directory is encrypted
UNCLEANED = b"\x09"  # owner, user: an erased owner whose data may still be in files
FORWARDED = b"\x0a"  # original: a record that was forwarded here and is applied
END = b"\xff"  # after every key

# Tables of an owner.
HEAD = b"H"  # the owner's identity, next numbers and counts (`rows.OwnerHead`)
CURRENT = b"C"  # name: the state of a memory id (`rows.MemoryHead`)
ROW = b"R"  # name, version: a memory's row; each version is kept
ENTRY = b"E"  # seq: the index entry of the current version, from which in-memory indexes are built
VECTORS = b"V"  # seq: the vectors of the current version
PAST_ENTRY = b"P"  # seq, version: the index entry of a version that an update replaced
PAST_VECTORS = b"Q"  # seq, version: its vectors
SEGMENT = b"G"  # first seq, end seq: a segment (state/segments.py) of packed memories
SEGMENTS_END = b"W"  # the `seq` after the last segment
STALE = b"Y"  # seq: memories that changed since their segment was packed
EPISODE_LOG = b"X"  # change: episode changes that no entry shows: explicit ends, and deleted members
CATEGORY_SUMMARY = b"B"  # name, change: the summaries of a category, former ones included
EPISODE = b"S"  # name, number: the episodes of a session
EVENT_ID = b"D"  # name: ids of applied events without a memory, so that a repeated event has no effect
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
UNSYNCED = b"F"  # seq: memories whose graph update failed
JOINED = b"T"  # node: the other names that an entity is joined to (state/entity_names.py)
PAST_LINKS = b"m"  # seq, version: the graph contributions of a replaced version
PAST_MEMBER = b"l"  # node, seq': a memory's former link to a node
PAST_EDGE = b"o"  # name, seq, part (1 byte), change: former statements of a memory, or values of events, and their end
PAST_ADJACENCY = b"a"  # node, number': former edges at a node
PAST_SIMILAR = b"j"  # seq, seq, change: a former neighbour, or an earlier archive mark of one
PAST_NODE = b"n"  # node, change: a node before it was archived, restored or deleted
PAST_JOINED = b"i"  # name, number: names that an edge joined formerly
CASELESS = b"c"  # names in scripts without case (state/entity_names.py)
# Effects of queries.
USAGE = b"U"  # seq: returns and feedback; not in the state hash
SESSION = b"K"  # session name: memories returned in a session, for its continuity
QUERY_IDS = b"I"  # ids of the owner's latest queries, so that a repeated query is not counted again

OWNER_BYTES = 16
NAME_BYTES = 16
TABLE_BYTES = 1 + OWNER_BYTES + 1  # of the prefix of an owner's table
GROUP_BYTES = TABLE_BYTES + NAME_BYTES  # of the prefix of a group in the tables below, such as a node's links
GROUPED = frozenset(
    (EPISODE, MEMBER, ADJACENCY, ROW, CATEGORY_SUMMARY, PAST_MEMBER, PAST_EDGE, PAST_ADJACENCY, PAST_NODE)
)

_pack_u32, _pack_u64 = struct.Struct(">I").pack, struct.Struct(">Q").pack
_MAX_U64 = 2**64 - 1


def _single(table_: bytes) -> Callable[[bytes], bytes]:
    return lambda owner: OWNERS + owner + table_


def _named(table_: bytes) -> Callable[[bytes, bytes], bytes]:
    return lambda owner, name: OWNERS + owner + table_ + name


def _numbered(table_: bytes) -> Callable[[bytes, int], bytes]:
    return lambda owner, number: OWNERS + owner + table_ + _pack_u64(number)


def _named_and_numbered(table_: bytes) -> Callable[[bytes, bytes, int], bytes]:
    return lambda owner, name, number: OWNERS + owner + table_ + name + _pack_u64(number)


def _newest_first(table_: bytes) -> Callable[[bytes, bytes, int], bytes]:
    return lambda owner, name, number: OWNERS + owner + table_ + name + _pack_u64(_MAX_U64 - number)


def _versioned(table_: bytes) -> Callable[[bytes, int, int], bytes]:
    return lambda owner, seq, version: OWNERS + owner + table_ + _pack_u64(seq) + _pack_u32(version)


def table(owner: bytes, letter: bytes) -> bytes:
    return OWNERS + owner + letter


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
    return rows(owner, memory) + _pack_u32(version)


def segment(owner: bytes, first: int, end: int) -> bytes:
    return OWNERS + owner + SEGMENT + _pack_u64(first) + _pack_u64(end)


def member_key_parts(owner: bytes, seq: int) -> tuple[bytes, bytes]:
    """Return the parts before and after the node in the keys of a memory's links."""
    return OWNERS + owner + MEMBER, _pack_u64(_MAX_U64 - seq)


def members_from(owner: bytes, table_: bytes, node: bytes, newest: int) -> tuple[bytes, bytes]:
    """Return the key range of a node's links (in `MEMBER` or `PAST_MEMBER`) to memories with a `seq` up to `newest`."""
    prefix = OWNERS + owner + table_ + node
    return prefix + _pack_u64(_MAX_U64 - newest), after(prefix)


def past_edge_of(owner: bytes, name: bytes, seq: int | None) -> bytes:
    """Return the prefix of a memory's former statements on an edge; `seq` None for the values given by events."""
    return past_edges(owner, name) + _pack_u64(_MAX_U64 if seq is None else seq)


def past_edge(owner: bytes, name: bytes, seq: int | None, part: bytes, change: int) -> bytes:
    return past_edge_of(owner, name, seq) + part + _pack_u64(change)


def past_similar(owner: bytes, seq: int, other: int, change: int) -> bytes:
    return past_similar_of(owner, seq) + _pack_u64(other) + _pack_u64(change)


def _prefixed(prefix: bytes) -> Callable[[bytes], bytes]:
    return lambda name: prefix + name


def _paired(prefix: bytes) -> Callable[[bytes, bytes], bytes]:
    return lambda one, other: prefix + one + other


def _of_source(prefix: bytes) -> Callable[[str], bytes]:
    return lambda source: prefix + source.encode()


def _positioned(prefix: bytes) -> Callable[[bytes, int], bytes]:
    return lambda source, offset: prefix + source + _pack_u64(offset)


applied = _of_source(APPLIED)  # the source is `topic:partition`
settled = _of_source(SETTLED)
owner = _prefixed(OWNERS)  # prefix: all data of an owner
outbox = _positioned(OUTBOX)
effects = _positioned(EFFECTS)
work = _prefixed(WORK)
owner_key = _prefixed(OWNER_KEYS)
users_owners = _prefixed(USERS)  # prefix: the owners of a user
erased = _prefixed(ERASED)  # the erasure of a user in all environments
tenant_key = _prefixed(TENANT_KEYS)
forwarded = _prefixed(FORWARDED)  # by the digest of a record's owner and original position
user_owner = _paired(USERS)  # by user and owner
erased_in = _paired(ERASED)  # by user and owner
uncleaned = _paired(UNCLEANED)  # by owner and user


def uncleaned_of(key: bytes) -> tuple[bytes, bytes]:
    """Return owner and user in a key of `UNCLEANED`."""
    return key[1 : 1 + OWNER_BYTES], key[1 + OWNER_BYTES :]


def edge_part(key: bytes) -> tuple[bytes, int | None]:
    """Return the part of an edge in a key of `PAST_EDGE` (`graph_codec.edge_part`), and the memory's `seq`."""
    seq = int.from_bytes(key[-17:-9], "big")
    return key[-9:-8], None if seq == _MAX_U64 else seq


def scan_prefixes(found: Iterable[bytes]) -> list[bytes]:
    """Return the prefix of the table of each key, or of the group in grouped tables."""
    return [key[:GROUP_BYTES] if key[OWNER_BYTES + 1 : TABLE_BYTES] in GROUPED else key[:TABLE_BYTES] for key in found]


def split(key: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a key of `OWNERS` into (owner, table's letter, rest). Other keys have an empty owner and letter."""
    return (key[1:17], key[17:18], key[18:]) if key.startswith(OWNERS) else (b"", b"", key)


def sequence(key: bytes) -> int:
    """Return the number at the end of a key."""
    return int.from_bytes(key[-8:], "big")


def seq_and_version(key: bytes) -> tuple[int, int]:
    """Return the `seq` and the version at the end of a key."""
    return int.from_bytes(key[-12:-4], "big"), version(key)


def version(key: bytes) -> int:
    return int.from_bytes(key[-4:], "big")


def reversed_sequence(key: bytes) -> int:
    """Return the number at the end of a key whose numbers are stored newest first."""
    return _MAX_U64 - sequence(key)


def after(prefix: bytes) -> bytes:
    """Return the first key after all keys with the prefix, the upper bound of its range."""
    head_, last = prefix[:-1], prefix[-1]
    return head_ + bytes([last + 1]) if last < 0xFF else after(head_)
