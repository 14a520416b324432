"""The state hash: equal for equal logs, regardless of batches, interruptions, replays and the number of workers."""

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from recallflow.errors import DecryptionFailed, StateError
from recallflow.owner import Owner
from recallflow.state import description, entity_names, folders, keys, rows
from recallflow.state import graph_codec as codec
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import AtRest
from recallflow.state.partition import Partition


def state_hash(directory: StateDirectory) -> str:
    return hash_of(directory.existing_partitions())


def hash_of(partitions: Iterable[Partition]) -> str:
    """Return SHA-256 over the sorted digests of all log-derived records (hexadecimal). Not hashed are positions,
    keys, usage by queries, times that a replay does not repeat, and the directories of partitions."""
    digests = sorted(digest for partition in partitions for digest in _digests(partition))
    return hashlib.sha256(b"".join(digests)).hexdigest()


def owners(partition: Partition) -> Iterator[tuple[bytes, rows.OwnerHead]]:
    for key, value in partition.scan(keys.OWNERS):
        owner, table, _ = keys.split(key)
        if table == keys.HEAD:
            yield owner, rows.OwnerHead.decode(value)


def readable_owners(partition: Partition) -> Iterator[Owner]:
    """Yield a partition's owners that have memories and a decryptable name, in two small reads for each."""
    for key, _ in partition.scan_committed(keys.USERS):
        with suppress(DecryptionFailed):
            for _, value in partition.scan_committed(keys.head(key[-keys.OWNER_BYTES :])):
                yield rows.OwnerHead.decode(value).owner


def _digests(partition: Partition) -> Iterator[bytes]:
    """Yield the digest of each log-derived record."""
    for owner, head in owners(partition):
        for table, (name, content) in LOG_DERIVED.items():
            for key, value in partition.scan(keys.table(owner, table)):
                record = orjson.dumps([*head.owner, name, content(key, value)], option=orjson.OPT_SORT_KEYS)
                yield hashlib.sha256(record).digest()


def _episode_log_entry(value: bytes) -> list[Any]:
    entry = rows.EpisodeLogEntry.decode(value)
    return [entry.change, entry.session_id, entry.opened is None]


def _superseded(value: bytes) -> list[Any]:
    by = [[one.by, one.until_ms is None, one.expires_ms, one.valid_from_ms] for one in codec.decode_superseded(value)]
    return sorted(by, key=repr)


def _past_edge(key: bytes, value: bytes) -> list[Any]:
    part, seq = keys.edge_part(key)
    content = codec.edge_part(part, orjson.loads(value)[1])
    return [part.decode(), seq, keys.sequence(key), _timeless(content)]


def _past_similar(key: bytes, value: bytes) -> list[Any]:
    return [keys.sequence(key[:-16]), keys.sequence(key), _timeless(codec.StoredNeighbour(*orjson.loads(value)[1]))]


def _edge(row: codec.EdgeRow) -> list[Any]:
    event_values = None if row.given is None else _timeless(row.given)
    statements = [_timeless(statement) for statement in row.statements]
    return [*_plain(row._replace(given=None, statements=(), added_ms=0)), event_values, statements]


def _timeless(part: Any) -> Any:
    """Return a part of the graph with 0 in place of ingestion and event times."""
    fields = getattr(part, "_fields", ())
    times = {"ingested_ms", "stated_ms", "added_ms"}.intersection(fields)
    return _plain(part._replace(**dict.fromkeys(times, 0))) if fields else part


def _plain(value: Any) -> Any:
    """Return a value with tuples as lists, as in JSON."""
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


_ENTRY = attrgetter("seq", "version", "id", "episode", "flags", "author_stems", "stems")
_CATEGORY_SUMMARY = attrgetter("change", "category", "summary", "sources")
_EPISODE_SUMMARY = attrgetter("change", "number", "summary")
_LINKS = attrgetter("id", "links")
_SIMILAR = attrgetter("seq", "id", "weight", "archived")
# The name and the hashed content of the records of each table. Ingestion times are left out, because not every log has
# them. So are the graph's keyed hashes: they differ between directories, and follow from the other content.
LOG_DERIVED: dict[bytes, tuple[str, Callable[[bytes, bytes], Any]]] = {
    keys.ROW: ("row", lambda _, value: rows.MemoryRow.decode(value).logged_fields()),
    keys.ENTRY: ("entry", lambda _, value: _ENTRY(rows.Entry.decode(value))),
    keys.VECTORS: ("vectors", lambda key, value: [keys.sequence(key), hashlib.sha256(value).hexdigest()]),
    keys.EPISODE_LOG: ("episode mark", lambda _, value: _episode_log_entry(value)),
    keys.CATEGORY_SUMMARY: (
        "category summary",
        lambda _, value: _CATEGORY_SUMMARY(rows.CategorySummaryRow.decode(value)),
    ),
    keys.EPISODE_SUMMARY: ("episode summary", lambda _, value: _EPISODE_SUMMARY(rows.EpisodeSummaryRow.decode(value))),
    keys.DERIVATIVES: ("made", lambda key, value: [keys.sequence(key), *rows.Derivatives.decode(value)]),
    keys.EPISODE: ("episode", lambda _, value: rows.EpisodeRow.decode(value).logged_fields()),
    keys.NODE: ("node", lambda _, value: _plain(codec.NodeRow.decode(value))),
    keys.MEMBER: ("member", lambda key, value: [keys.reversed_sequence(key), _plain(codec.decode_member(value))]),
    keys.LINKS: ("links", lambda key, value: [keys.sequence(key), *_LINKS(codec.LinksRow.decode(value))]),
    keys.EDGE: ("edge", lambda _, value: _edge(codec.EdgeRow.decode(value))),
    keys.SIMILAR: (
        "similar",
        lambda key, value: [keys.sequence(key), [*map(_SIMILAR, codec.decode_neighbours(value))]],
    ),
    keys.SUPERSEDED: ("superseded", lambda key, value: [keys.sequence(key), _superseded(value)]),
    keys.JOINED: ("joined", lambda _, value: _plain(entity_names.decode_joins(value))),
    keys.CASELESS: ("caseless", lambda _, value: orjson.loads(value)),
    keys.UNSYNCED: ("unsynced", lambda key, value: [keys.sequence(key), _plain(codec.Unsynced.decode(value))]),
    keys.PAST_LINKS: (
        "past links",
        lambda key, value: [*keys.seq_and_version(key), *_LINKS(codec.LinksRow.decode(value))],
    ),
    keys.PAST_MEMBER: ("past member", lambda key, _: keys.reversed_sequence(key)),
    keys.PAST_EDGE: ("past edge", _past_edge),
    keys.PAST_SIMILAR: ("past similar", _past_similar),
    keys.PAST_NODE: ("past node", lambda key, value: [keys.sequence(key), orjson.loads(value)[1]]),
}


class CombinedHash(NamedTuple):
    """The state hash of several directories: equal to that of one directory with all partitions."""

    hash: str
    copies: dict[int, list[Path]]  # partition → its directories, if several; the first one is hashed


def combined_hash(paths: Sequence[Path], at_rest: AtRest) -> CombinedHash:
    """Return the hash of all partitions. Of copies of a partition, the one with the most applied records is used.
    Raise StateError for a missing partition."""
    with contextlib.ExitStack() as stack:
        holders: dict[int, list[tuple[Path, Partition]]] = defaultdict(list)
        distinct = {path.resolve(): path for path in paths}.values()
        directories = [stack.enter_context(StateDirectory.existing(path, at_rest)) for path in distinct]
        for one in directories:
            description.check_same(directories[0].path, directories[0].fingerprint, one.path, one.fingerprint)
            for partition in one.existing_partitions():
                holders[partition.number].append((one.path, partition))
        if missing := {*range(directories[0].fingerprint.partitions)} - holders.keys():
            searched = ", ".join(str(one.path) for one in directories)
            raise StateError(
                f"no {folders.format_partitions(missing)} in {searched}: name all directories of the deployment"
            )
        for found in holders.values():
            found.sort(key=lambda copy: _applied_records(copy[1]), reverse=True)
        copies = {number: [path for path, _ in found] for number, found in holders.items() if len(found) > 1}
        return CombinedHash(hash_of(found[0][1] for found in holders.values()), copies)


def _applied_records(partition: Partition) -> tuple[int, int]:
    """Return the number of applied records of the partition's own log, and of all logs."""
    own = [offset for source, offset in partition.applied.items() if source.endswith(f":{partition.number}")]
    return sum(own) + len(own), sum(partition.applied.values()) + len(partition.applied)
