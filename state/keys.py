"""The layout of a state partition's RocksDB: every key there is, and why.

A partition's own records come first, then everything of each owner under one prefix, so that an owner's data can be
read, or deleted, as one range and can never be reached from another owner's prefix.

    00 name                                   the partition's own
       format                                 format version and partition number
       clock: source                          the ingestion clock of each source partition: its latest append time
       applied: source                        last applied offset of each source partition
    01 owner(16) table(1) …                   one owner's
       H                                      head: who the owner is, next sequence number
       C name(16)                             memory id → sequence number, version, content digest, forgotten or not
       R name(16) version(4)                  a memory's row, one per version: history is kept, not overwritten
       E seq(8)                               index entry of the current version: what the hot indexes are built from
       V seq(8)                               vectors of the current version
       S name(16) number(8)                   episodes, by session
       D name(16)                             ids of applied events that create no memory: each applies once
       A name(16) direction(1) name(16)       graph adjacency, both directions
       U seq(8)                               what queries cause (usage): no part of the state hash
    02 source name(16) offset(8)              outbox: outputs not yet known to be delivered

`owner` and `name` are keyed hashes: no key holds a user's own words. Integers are big-endian, so that byte order is
number order. `seq` is a memory's place in its owner's order of arrival and never changes; `number` is the `seq` of the
message that opened the episode.
"""

import struct

FORMAT_VERSION = 1

FORMAT = b"\x00format"
CLOCK = b"\x00clock:"
APPLIED = b"\x00applied:"
OWNERS = b"\x01"
OUTBOX = b"\x02"
END = b"\xff"  # behind every key

HEAD = b"H"
CURRENT = b"C"
ROW = b"R"
ENTRY = b"E"
VECTORS = b"V"
EPISODE = b"S"
EVENT_ID = b"D"
ADJACENCY = b"A"
USAGE = b"U"

OWNER_BYTES = 16
NAME_BYTES = 16

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


def applied(source: str) -> bytes:
    """Key of the applied position of one source partition (`topic:partition`)."""
    return APPLIED + source.encode()


def clock(source: str) -> bytes:
    """Key of the ingestion clock of one source partition."""
    return CLOCK + source.encode()


def table(owner: bytes, name: bytes) -> bytes:
    """Prefix of one table of one owner."""
    return OWNERS + owner + name


def head(owner: bytes) -> bytes:
    return OWNERS + owner + HEAD


def current(owner: bytes, memory: bytes) -> bytes:
    return OWNERS + owner + CURRENT + memory


def row(owner: bytes, memory: bytes, version: int) -> bytes:
    return OWNERS + owner + ROW + memory + _U32.pack(version)


def entry(owner: bytes, seq: int) -> bytes:
    return OWNERS + owner + ENTRY + _U64.pack(seq)


def vectors(owner: bytes, seq: int) -> bytes:
    return OWNERS + owner + VECTORS + _U64.pack(seq)


def episode(owner: bytes, session: bytes, number: int) -> bytes:
    return OWNERS + owner + EPISODE + session + _U64.pack(number)


def event_id(owner: bytes, event: bytes) -> bytes:
    return OWNERS + owner + EVENT_ID + event


def outbox(source: bytes, offset: int) -> bytes:
    return OUTBOX + source + _U64.pack(offset)


def split(key: bytes) -> tuple[bytes, bytes, bytes]:
    """A key of the owners' namespace → (owner, table, rest)."""
    return key[1:17], key[17:18], key[18:]


def sequence(key: bytes) -> int:
    """The sequence number that ends an entry or vectors key."""
    return int(_U64.unpack(key[-8:])[0])


def after(prefix: bytes) -> bytes:
    """The first key behind all keys that start with `prefix`: the upper bound of its range."""
    head_, last = prefix[:-1], prefix[-1]
    return head_ + bytes([last + 1]) if last < 0xFF else after(head_)
