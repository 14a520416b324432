"""What of an owner's graph follows from the log alone: its part of the state hash.

Left out are the keyed hashes, which differ from one state directory to another, and ingestion times, which no log may
carry; both follow from what is in.
"""

from collections.abc import Iterator
from typing import Any

from recallflow.state import keys
from recallflow.state.graph_codec import (
    EdgeRow,
    LinksRow,
    NodeRow,
    Unsynced,
    decode_member,
    decode_neighbours,
    decode_superseded,
)
from recallflow.state.partition import Partition
from recallflow.state.unions import decode_joined


def graph_records(partition: Partition, owner: bytes) -> Iterator[tuple[str, Any]]:
    """Name and content of each record."""
    for _, value in partition.scan(keys.table(owner, keys.NODE)):
        yield "node", _plain(NodeRow.decode(value))
    for key, value in partition.scan(keys.table(owner, keys.MEMBER)):
        yield "member", [keys.reversed_sequence(key), _plain(decode_member(value))]
    for key, value in partition.scan(keys.table(owner, keys.LINKS)):
        row = LinksRow.decode(value)
        yield "links", [keys.sequence(key), row.id, row.links]
    for _, value in partition.scan(keys.table(owner, keys.EDGE)):
        yield "edge", _edge(EdgeRow.decode(value))
    for key, value in partition.scan(keys.table(owner, keys.SIMILAR)):
        near = [[one.seq, one.id, one.weight, one.archived] for one in decode_neighbours(value)]
        yield "similar", [keys.sequence(key), near]
    for key, value in partition.scan(keys.table(owner, keys.SUPERSEDED)):
        yield "superseded", [keys.sequence(key), sorted([one.by, one.expires_ms] for one in decode_superseded(value))]
    for _, value in partition.scan(keys.table(owner, keys.JOINED)):
        yield "joined", _plain(decode_joined(value))
    for key, value in partition.scan(keys.table(owner, keys.UNSYNCED)):
        yield "unsynced", [keys.sequence(key), _plain(Unsynced.decode(value))]


def _edge(row: EdgeRow) -> list[Any]:
    given = None if row.given is None else _plain(row.given._replace(ingested_ms=0))
    statements = [_plain(statement._replace(ingested_ms=0)) for statement in row.statements]
    return [*_plain(row._replace(given=None, statements=())), given, statements]


def _plain(value: Any) -> Any:
    """Without the types of tuples, for which JSON has no word."""
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
