"""The state hash: equal for equal logs, however they were cut, killed, replayed or spread over workers."""

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from recallflow.errors import DecryptionFailed, StateError
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.description import check_same
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import AtRest
from recallflow.state.entity_names import decode_joined, decode_names
from recallflow.state.folders import names
from recallflow.state.graph_codec import (
    EdgeRow,
    LinksRow,
    NodeRow,
    StoredNeighbour,
    Unsynced,
    decode_member,
    decode_neighbours,
    decode_superseded,
    edge_part,
)
from recallflow.state.partition import Partition
from recallflow.state.rows import (
    CategorySummaryRow,
    Entry,
    EpisodeMark,
    EpisodeRow,
    EpisodeSummaryRow,
    Made,
    MemoryRow,
    OwnerHead,
)


def state_hash(directory: StateDirectory) -> str:
    return hash_of(directory.existing_partitions())


def hash_of(partitions: Iterable[Partition]) -> str:
    """SHA-256 over the digests of all log-derived records, sorted. What queries cause (usage), positions, keys and
    times that no log carries have no part in it, nor has which directory a partition is in."""
    found = sorted(digest for partition in partitions for _, digest in digests(partition))
    return hashlib.sha256(b"".join(found)).hexdigest()


def owners(partition: Partition) -> Iterator[tuple[bytes, OwnerHead]]:
    for key, value in partition.scan(keys.OWNERS):
        owner, table, _ = keys.split(key)
        if table == keys.HEAD:
            yield owner, OwnerHead.decode(value)


def known_owners(partition: Partition) -> Iterator[Owner]:
    """Yield the owners with memories in a partition whose names can be decrypted.

    One small record is read for each, however much an owner has."""
    for key, _ in partition.scan_committed(keys.USERS):
        with suppress(DecryptionFailed):
            for _, value in partition.scan_committed(keys.head(key[-keys.OWNER_BYTES :])):
                yield OwnerHead.decode(value).owner


def digests(partition: Partition) -> Iterator[tuple[Owner, bytes]]:
    """Yield the digest of each log-derived record, with its owner."""
    for key, head in owners(partition):
        for name, record in _logical_records(partition, key):
            whole = orjson.dumps([*head.owner, name, record], option=orjson.OPT_SORT_KEYS)
            yield head.owner, hashlib.sha256(whole).digest()


def _logical_records(partition: Partition, owner: bytes) -> Iterator[tuple[str, Any]]:
    for _, value in partition.scan(keys.table(owner, keys.ROW)):
        yield "row", MemoryRow.decode(value).logical()
    for _, value in partition.scan(keys.table(owner, keys.ENTRY)):
        entry = Entry.decode(value)
        yield "entry", [entry.seq, entry.version, entry.id, entry.episode, entry.flags, entry.author_stems, entry.stems]
    for key, value in partition.scan(keys.table(owner, keys.VECTORS)):
        yield "vectors", [keys.sequence(key), hashlib.sha256(value).hexdigest()]
    for _, value in partition.scan(keys.table(owner, keys.EPISODE_LOG)):
        mark = EpisodeMark.decode(value)
        yield "episode mark", [mark.change, mark.session_id, mark.opened is None]
    for _, value in partition.scan(keys.table(owner, keys.CATEGORY_SUMMARY)):
        summary = CategorySummaryRow.decode(value)
        yield "category summary", [summary.change, summary.category, summary.summary, summary.sources]
    for _, value in partition.scan(keys.table(owner, keys.EPISODE_SUMMARY)):
        kept = EpisodeSummaryRow.decode(value)
        yield "episode summary", [kept.change, kept.number, kept.summary]
    for key, value in partition.scan(keys.table(owner, keys.MADE)):
        yield "made", [keys.sequence(key), *Made.decode(value)]
    for _, value in partition.scan(keys.table(owner, keys.EPISODE)):
        yield "episode", EpisodeRow.decode(value).logical()
    yield from graph_records(partition, owner)


def graph_records(partition: Partition, owner: bytes) -> Iterator[tuple[str, Any]]:
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


@dataclass(frozen=True, slots=True)
class Combined:
    """`hash`: equal to that of one directory with all partitions. `several`: of each partition that is in more than one
    directory which they are, the one first that counts."""

    hash: str
    several: dict[int, list[Path]]


def combined_hash(paths: Sequence[Path], at_rest: AtRest) -> Combined:
    """Return the hash of all partitions. Of several copies of a partition, the one with the most applied records
    counts. Raise StateError for a missing partition."""
    with contextlib.ExitStack() as stack:
        holders: dict[int, list[tuple[Path, Partition]]] = defaultdict(list)
        directories = [
            stack.enter_context(StateDirectory.existing(path, CACHE_BYTES, at_rest))
            for path in {path.resolve(): path for path in paths}.values()
        ]
        for one in directories:
            check_same(directories[0].path, directories[0].fingerprint, one.path, one.fingerprint)
            for partition in one.existing_partitions():
                holders[partition.number].append((one.path, partition))
        if missing := {*range(directories[0].fingerprint.partitions)} - holders.keys():
            where = ", ".join(str(one.path) for one in directories)
            raise StateError(f"no {names(missing)} in {where}: name every directory of the deployment")
        for found in holders.values():
            found.sort(key=lambda held: _reach(held[1]), reverse=True)
        several = {number: [path for path, _ in found] for number, found in holders.items() if len(found) > 1}
        return Combined(hash_of(found[0][1] for found in holders.values()), several)


def _reach(partition: Partition) -> tuple[int, int]:
    """Return the number of applied records of the partition's own log, and of all logs."""
    own = [offset for source, offset in partition.applied.items() if source.endswith(f":{partition.number}")]
    return sum(own) + len(own), sum(partition.applied.values()) + len(partition.applied)
