"""What `recallflow erase` says of what is left."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from recallflow.fields import format_time

if TYPE_CHECKING:
    from recallflow.connectors.kafka.erasure import Remains, Retention
    from recallflow.flows.erasing import TraceSearch
    from recallflow.state.searching import Findings

MIB = 1024 * 1024


def remains_line(found: "Remains", *, is_memory: bool) -> str:
    """What a topic holds of a user, and until when."""
    if not found.count:
        return f"{found.topic}: nothing"
    newest = format_time(found.newest_ms)
    return f"{found.topic}: {found.count} records, the newest of {newest}; {_until(found, is_memory=is_memory)}"


def _until(found: "Remains", *, is_memory: bool) -> str:
    kept = found.retention
    if kept is None:
        return "until when is not known: the brokers do not let us describe the topic"
    policy = f"cleanup.policy={','.join(kept.policies)}"
    said = [_retention(kept, found.newest_ms)] if kept.deletes else []
    if kept.compacts:
        said.append(_compaction(is_memory=is_memory))
    return f"{policy}: {'; '.join(said)}"


def _retention(kept: "Retention", newest_ms: int) -> str:
    sooner = "" if kept.retention_bytes < 0 else f", or sooner (retention.bytes={kept.retention_bytes})"
    if kept.longest_ms is None:
        return f"without limit of time (retention.ms=-1){sooner}: until the topic, or its records, are deleted"
    latest = newest_ms + kept.longest_ms
    return (
        f"gone by {_time(latest)} at the latest{sooner}, some minutes aside: retention.ms={kept.retention_ms} after "
        f"the last record of their segment, which takes records for up to segment.ms={kept.segment_ms}"
    )


def _compaction(*, is_memory: bool) -> str:
    if is_memory:
        return (
            "compaction leaves the newest record of each user, here the erasure; but it loses the events of all other "
            "users too: a memory topic should not be compacted"
        )
    return "once it is compacted, the newest record of the user's key is left, and a tombstone takes that too"


def _time(at_ms: int) -> str:
    return format_time(min(at_ms, 253_402_300_799_999))


def finding_lines(who: "TraceSearch", findings: "Findings") -> Iterator[str]:
    """What was searched, for how much, and where anything was found. No line quotes anything."""
    pieces, telling = len(who.traces.pieces()), findings.telling()
    looked_for = f"looked for {pieces - len(findings.others)} strings of user {who.user_id}"
    left_out = []
    if findings.others:
        left_out.append(f"{len(findings.others)} that others have too prove nothing")
    if who.traces.left_out:
        left_out.append(f"{who.traces.left_out} more were left out")
    searched = f"in {len(findings.sizes)} files ({sum(findings.sizes.values()) / MIB:,.1f} MiB)"
    yield f"{looked_for} {searched}{''.join(f'; {one}' for one in left_out)}"
    for path in sorted(findings.unread):
        yield f"{path}: RocksDB cannot read it: only its bytes were searched"
    for path, count in telling.items():
        yield f"{path}: FOUND {count} of them"
    if not telling:
        yield "nothing was found"
