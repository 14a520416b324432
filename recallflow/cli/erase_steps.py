"""Execution of `recallflow erase`."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from recallflow.cli.flags import at_rest, config
from recallflow.cli.output import note
from recallflow.cli.tenants import open_client
from recallflow.connectors.kafka import topic_erasure
from recallflow.connectors.kafka.messages import json_or_wire
from recallflow.errors import RecallflowError, UsageError
from recallflow.events import PRODUCTION, UserErase
from recallflow.fields import EPOCH_MS_MAX, format_time
from recallflow.flows import directory_erasure
from recallflow.flows.runner import now_ms
from recallflow.owner import Owner
from recallflow.process import TimeLimit
from recallflow.records import Position
from recallflow.state.description import DESCRIPTION, describe, reads_topics
from recallflow.state.folders import unpurged_owners
from recallflow.state.trace_search import Findings

COMPACTION = "compaction keeps the newest record of the user's key, which a tombstone removes"
MEMORY_COMPACTION = (
    "compaction keeps only the newest record of each user (for this user, the erasure). It deletes earlier events of "
    "every other user too, so a memory topic must not be compacted"
)
OTHER_DIRECTORIES = (
    "directories of other members were not searched. A member keeps folders of moved partitions for a day; they may "
    "contain data that was erased after the move. Search them with --also (docs/how-to/erasure.md)"
)


def remaining_line(remaining: topic_erasure.RemainingRecords, *, is_memory: bool) -> str:
    """Describe the remaining records of a user in a topic, with the time of their deletion at the latest."""
    if not remaining.count:
        return f"{remaining.topic}: nothing"
    newest = format_time(remaining.newest_ms)
    expiry = _expiry(remaining, is_memory=is_memory)
    return f"{remaining.topic}: {remaining.count} records, the newest from {newest}; {expiry}"


def _expiry(remaining: topic_erasure.RemainingRecords, *, is_memory: bool) -> str:
    retention = remaining.retention
    if retention is None:
        return "expiry unknown, because the Kafka login may not describe the topic's configuration"
    terms = [_retention(retention, remaining.newest_ms)] if "delete" in retention.policies else []
    if "compact" in retention.policies:
        terms.append(MEMORY_COMPACTION if is_memory else COMPACTION)
    return f"cleanup.policy={','.join(retention.policies)}: {'; '.join(terms)}"


def _retention(retention: topic_erasure.Retention, newest_ms: int) -> str:
    sooner = "" if retention.retention_bytes < 0 else f", or sooner (retention.bytes={retention.retention_bytes})"
    if retention.longest_ms is None:
        return f"kept until the topic, or its records, are deleted (retention.ms=-1){sooner}"
    latest = format_time(min(newest_ms + retention.longest_ms, EPOCH_MS_MAX))
    deletion = f"deleted by {latest} at the latest{sooner}, plus a few minutes for the broker's cleanup"
    segment = f"a segment takes records for segment.ms={retention.segment_ms} and is deleted"
    return f"{deletion}: {segment} retention.ms={retention.retention_ms} after its last one"


def finding_lines(search: directory_erasure.TraceSearch, findings: Findings) -> Iterator[str]:
    """Yield lines about the searched files and the findings. No line quotes content."""
    strings, conclusive, shared = len(search.traces.pieces()), findings.conclusive(), len(findings.others)
    files = f"{len(findings.sizes)} files ({sum(findings.sizes.values()) / 1024**2:,.1f} MiB)"
    ignored = f"; {shared} other strings were ignored, because other users have them too" if shared else ""
    omitted = f"; {search.traces.left_out} more strings were omitted" if search.traces.left_out else ""
    yield f"searched for {strings - shared} strings of user {search.user_id} in {files}{ignored}{omitted}"
    for path in sorted(findings.unread):
        yield f"{path}: unreadable for RocksDB; only its bytes were searched"
    for path, count in conclusive.items():
        yield f"{path}: FOUND {count} of the strings"
    if not conclusive:
        yield "nothing was found"


class EraseCommand:
    """Erasure of a user, and the search for the user's data."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Raise UsageError for contradictory options."""
        self._options, self._config = options, config(options)
        self._tenant, self._user, self._environments = options.tenant, options.user, options.environments
        self._scope = self._tenant, self._user, self._environments
        state_dirs = [self._config.named_state_dir()] if options.state_dir else []
        # Only a directory without Kafka is erased here: an engine on Kafka erases its own when it reads the event.
        self._dir_without_kafka = next((path for path in state_dirs if not reads_topics(path)), None)
        self._verifies = options.verify or options.verify_only
        # Without --state-dir, the settings may name the engine's directory, which may be on another machine.
        engine_dir = self._config.state_dir
        searched = state_dirs if engine_dir is None or not engine_dir.is_dir() else [engine_dir]
        self._searched_folders = [*searched, *options.checkpoints, *options.also]
        if self._verifies and not self._searched_folders:
            raise UsageError("--verify has nothing to search; give --state-dir, --checkpoint or --also")
        if self._verifies and (missing := [path for path in self._searched_folders if not path.is_dir()]):
            raise UsageError(f"--verify: the folder {missing[0]} does not exist")
        problem = None
        if self._environments or self._dir_without_kafka is not None:
            problem = "needs Kafka and excludes --environment, because a tombstone removes all environments of a user"
        elif "/" in options.tenant + options.user:
            problem = "does not work for names with a slash, because records of other users may have the same key"
        if options.compact_kafka and problem is not None:
            raise UsageError(f"--compact-kafka {problem}")

    def run(self) -> int:
        search = None
        if self._verifies:  # the search terms are read before the erasure
            search = directory_erasure.new_trace_search(*self._scope, self._known_events())
        failed = False if self._options.verify_only else self._erase()
        if search is not None:
            failed |= self._verify(search)
        return 1 if failed else 0

    def _erase(self) -> bool:
        """Erase the user. Return whether an erasure failed, or left files that were not purged."""
        folder_failed = False
        if self._dir_without_kafka is None:
            positions = [self._send(event) for event in self._events(receipt=True)]
            at_ms = max(directory_erasure.append_time(self._config.kafka, position) for position in positions)
        else:
            at_ms = now_ms()
            folder_failed = not self._erase_folder(self._dir_without_kafka, at_ms)
        failed = [path for path in self._options.checkpoints if not self._erase_checkpoint(path, at_ms)]
        if self._dir_without_kafka is None:
            self._print_remains()
        return bool(failed) or folder_failed

    def _send(self, event: UserErase) -> Position:
        """Send an event, and return its position once an engine has applied it. Raise RecallflowError if none does."""
        topics, timeout_s = self._config.topics, self._options.timeout_s
        answers = (topics.receipts, topics.dead_letters)
        with closing(topic_erasure.OutcomeReader(self._config.kafka, answers)) as outcomes:
            with closing(open_client(self._config, self._tenant, event.environment or PRODUCTION)) as client:
                position = client.send(event).result()
            outcome = outcomes.outcome_of(position, TimeLimit(timeout_s))
        if outcome is None:
            remedy = "is the engine running (recallflow run)? The event is in the topic, and the engine will apply it"
            raise RecallflowError(f"{position}: no engine applied the erasure within {timeout_s:g} s; {remedy}")
        if outcome.refused:
            raise RecallflowError(f"{position}: the erasure was refused: {outcome.outcome}: {outcome.detail}")
        where = "" if event.environment is None else f" from {event.environment}"
        print(f"{position}: {self._outcome_text(erased=outcome.outcome == 'erased')}{where}")
        return position

    def _outcome_text(self, *, erased: bool) -> str:
        """Describe the outcome of the erasure. A user without data is reported, because the name may be mistyped."""
        return f"user {self._user} of tenant {self._tenant} {'is erased' if erased else 'had no data'}"

    def _events(self, **fields: int) -> list[UserErase]:
        """Return an event for each environment, or one for all of them."""
        shared = {"type": "user.erase", "tenant_id": self._tenant, "user_id": self._user} | fields
        return [UserErase.model_validate(shared | {"environment": name}) for name in self._environments or [None]]

    def _erase_folder(self, folder: Path, at_ms: int) -> bool:
        """Erase the user from a folder. Return whether its files are purged as well."""
        result = directory_erasure.erase_directory(self._config, folder, self._events(timestamp=at_ms))
        print(f"{folder}: {self._outcome_text(erased=result.had_data)}")
        unpurged = f"NOT purged; the next start of the engine purges it: {result.unpurged}"
        print(f"{folder}: {unpurged if result.unpurged else 'purged'}")
        return not result.unpurged

    def _erase_checkpoint(self, folder: Path, at_ms: int) -> bool:
        try:
            return self._erase_folder(folder, at_ms)
        except RecallflowError as error:
            print(f"{folder}: NOT erased: {error}")
            return False

    def _print_remains(self) -> None:
        topics = self._config.topics
        inputs = {topics.memory, topics.queries, topics.enrichment, topics.results}  # an engine would read a tombstone
        searched_topics = [*topics.read_topics()[:2], topics.enrichment, topics.results, *topics.outputs()]
        print(f"Records in Kafka of user {self._user} of tenant {self._tenant}:")
        compacted = list[topic_erasure.RemainingRecords]()
        for remaining in topic_erasure.remaining_records(self._config.kafka, searched_topics, self._tenant, self._user):
            print(f"  {remaining_line(remaining, is_memory=remaining.topic == topics.memory)}")
            compacts = remaining.retention is not None and "compact" in remaining.retention.policies
            if compacts and remaining.topic not in inputs and remaining.partitions_without_tombstone:
                compacted.append(remaining)
        if self._options.compact_kafka:
            topic_erasure.send_tombstones(self._config.kafka, compacted, Owner(self._tenant, "", self._user).record_key)
            for one in compacted:
                print(f"  {one.topic}: tombstones written")

    def _known_events(self) -> Iterator[Mapping[str, Any]]:
        if self._options.export is not None:
            return directory_erasure.read_export(self._options.export)
        if self._dir_without_kafka is not None:
            return directory_erasure.export_before(self._config, self._dir_without_kafka, *self._scope)
        records = topic_erasure.records_of(self._config.kafka, self._config.topics.memory, self._tenant, self._user)
        return (event for one in records if isinstance(event := _parsed(json_or_wire(one)), dict))

    def _verify(self, search: directory_erasure.TraceSearch) -> bool:
        """Search the files. Return whether anything was found."""
        # A running engine purges its files in the background: the search is repeated until they are purged.
        wait_s = self._options.timeout_s if self._dir_without_kafka is None else 0.0
        findings = directory_erasure.search(search, self._searched_folders, at_rest(self._config), TimeLimit(wait_s))
        print(*finding_lines(search, findings), sep="\n")
        for folder in self._searched_folders:
            if (folder / DESCRIPTION).exists():
                print(f"{folder}: {_purges_line(folder)}")
        if self._dir_without_kafka is None and not self._options.also:
            note(OTHER_DIRECTORIES)
        return bool(findings.conclusive())


def _purges_line(folder: Path) -> str:
    try:
        pending = unpurged_owners(folder, describe(folder).fingerprint.partitions)
    except (RecallflowError, OSError) as error:  # a running engine may replace files during the read
        return f"pending purges cannot be read: {error}"
    return f"{pending} pending purges" if pending else "no pending purges"


def _parsed(value: bytes | None) -> Any:
    try:
        return orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return None
