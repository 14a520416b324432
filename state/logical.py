"""The state hash: equal for equal logs, however they were cut, killed, replayed or spread over workers."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import orjson

from recallflow.errors import DecryptionFailed
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.graph_logical import graph_records
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
    """Return the hash of a directory's log-derived contents."""
    return hash_of(directory.existing_partitions())


def hash_of(partitions: Iterable[Partition]) -> str:
    """SHA-256 over the digests of all log-derived records, sorted. What queries cause (usage), positions, keys and
    times that no log carries have no part in it, nor has which directory a partition is in."""
    found = sorted(digest for partition in partitions for _, digest in digests(partition))
    return hashlib.sha256(b"".join(found)).hexdigest()


def owners(partition: Partition) -> Iterator[tuple[bytes, OwnerHead]]:
    """Owner key and head of everyone with memories in a partition."""
    for key, value in partition.scan(keys.OWNERS):
        owner, table, _ = keys.split(key)
        if table == keys.HEAD:
            yield owner, OwnerHead.decode(value)


def known_owners(partition: Partition) -> Iterator[Owner]:
    """Yield the owners with memories in a partition whose names can be decrypted.

    One small record is read for each, however much an owner has.
    """
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
