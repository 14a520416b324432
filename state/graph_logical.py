"""The log-derived part of an owner's graph, for the state hash. Left out are keyed hashes, which differ between
directories, and ingestion times, which not every log carries; both follow from the rest."""

from collections.abc import Iterator
from typing import Any

import orjson

from recallflow.state import keys
from recallflow.state.caseless import decode_names
from recallflow.state.graph_codec import (
    EdgeRow,
    LinksRow,
    NodeRow,
    StoredNeighbour,
    Unsynced,
    decode_member,
    decode_neighbours,
    decode_superseded,
)
from recallflow.state.partition import Partition
from recallflow.state.past_edge import edge_part
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
        by = [[one.by, one.until_ms is None, one.expires_ms, one.valid_from_ms] for one in decode_superseded(value)]
        yield "superseded", [keys.sequence(key), sorted(by, key=repr)]
    for _, value in partition.scan(keys.table(owner, keys.JOINED)):
        yield "joined", _plain(decode_joined(value))
    for _, value in partition.scan(keys.table(owner, keys.CASELESS)):
        yield "caseless", decode_names(value)
    for key, value in partition.scan(keys.table(owner, keys.UNSYNCED)):
        yield "unsynced", [keys.sequence(key), _plain(Unsynced.decode(value))]
    yield from _past_records(partition, owner)


def _past_records(partition: Partition, owner: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the history of the graph."""
    for key, value in partition.scan(keys.table(owner, keys.PAST_LINKS)):
        row = LinksRow.decode(value)
        yield "past links", [*keys.seq_and_version(key), row.id, row.links]
    for key, _ in partition.scan(keys.table(owner, keys.PAST_MEMBER)):
        yield "past member", keys.reversed_sequence(key)
    for key, value in partition.scan(keys.table(owner, keys.PAST_EDGE)):
        part, seq = keys.edge_part(key)
        content = edge_part(part, orjson.loads(value)[1])
        yield "past edge", [part.decode(), seq, keys.sequence(key), _timeless(content)]
    for key, value in partition.scan(keys.table(owner, keys.PAST_SIMILAR)):
        _, one = orjson.loads(value)
        yield "past similar", [keys.sequence(key[:-16]), keys.sequence(key), _timeless(StoredNeighbour(*one))]
    for key, value in partition.scan(keys.table(owner, keys.PAST_NODE)):
        yield "past node", [keys.sequence(key), orjson.loads(value)[1]]


def _edge(row: EdgeRow) -> list[Any]:
    given = None if row.given is None else _timeless(row.given)
    statements = [_timeless(statement) for statement in row.statements]
    return [*_plain(row._replace(given=None, statements=(), added_ms=0)), given, statements]


def _timeless(part: Any) -> Any:
    """Return a part of the graph without ingestion and event times."""
    times = {"ingested_ms": 0, "said_ms": 0, "added_ms": 0}
    fields = getattr(part, "_fields", ())
    return _plain(part._replace(**{name: 0 for name in times if name in fields})) if fields else part


def _plain(value: Any) -> Any:
    """Return a value with tuples as lists, as in JSON."""
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
