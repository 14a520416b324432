"""One run of `recallflow erase`."""

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from recallflow.background import Patience
from recallflow.cli.deciding import client
from recallflow.cli.erase_text import finding_lines, remains_line
from recallflow.cli.options import config
from recallflow.cli.output import note
from recallflow.connectors.kafka.erasure import OutcomeReader, Remains, records_of, remains, send_tombstones
from recallflow.errors import RecallflowError, UsageError
from recallflow.events import PRODUCTION, UserErase
from recallflow.flows.erasing import (
    TraceSearch,
    append_time,
    erase_directory,
    export_before,
    read_export,
    search,
    sought,
)
from recallflow.flows.settings import open_at_rest
from recallflow.owner import Owner
from recallflow.records import Position
from recallflow.state.directory import DESCRIPTION, describe
from recallflow.state.looking import unpurged_owners
from recallflow.state.sources import reads_topics

OTHERS = (
    "no other member's directory was searched: for a day one keeps folders of partitions that went elsewhere, with "
    "what was erased since. Name them with --also, and delete such folders (docs/how-to/erasure.md)"
)


class Erasing:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Raises UsageError for options that do not go together."""
        self._options, self._config = options, config(options)
        self._tenant, self._user, self._environments = options.tenant, options.user, options.environments
        named = [self._config.named_state_dir()] if options.state_dir else []
        # A directory without Kafka: of any other, the engine erases what Kafka brings it.
        self._apart = next((one for one in named if not reads_topics(one)), None)
        self._verifies = options.verify or options.verify_only
        # The settings name the engine's directory, which may be on another machine.
        there = self._config.state_dir
        searched = named if there is None or not there.is_dir() else [there]
        self._folders = [*searched, *options.checkpoints, *options.also]
        if self._verifies and not self._folders:
            raise UsageError("--verify: nothing to search; give --state-dir, --checkpoint or --also")
        if self._verifies and (missing := [one for one in self._folders if not one.is_dir()]):
            raise UsageError(f"--verify: there is no folder {missing[0]}")
        if options.compact_kafka and (self._environments or self._apart is not None):
            raise UsageError("--compact-kafka: tombstones are for all environments of a user at once, on Kafka")
        if options.compact_kafka and "/" in options.tenant + options.user:
            raise UsageError("--compact-kafka: with a slash in a name, records of others may have the same key")

    def run(self) -> int:
        who = self._sought() if self._verifies else None
        failed = False if self._options.verify_only else self._erase()
        if who is not None:
            failed |= self._verify(who)
        return 1 if failed else 0

    # ------------------------------------------------------------------ erasing

    def _erase(self) -> bool:
        """Returns whether something was not erased, or a folder's files were not purged of it."""
        apart_failed = False
        if self._apart is None:
            at_ms = max(append_time(self._config.kafka, self._send(event)) for event in self._events(receipt=True))
        else:
            at_ms = time.time_ns() // 1_000_000
            apart_failed = not self._erase_folder(self._apart, at_ms)
        failed = [one for one in self._options.checkpoints if not self._erase_checkpoint(one, at_ms)]
        if self._apart is None:
            self._print_remains()
        return bool(failed) or apart_failed

    def _send(self, event: UserErase) -> Position:
        """Has Kafka take an event; returns its position once it is applied. Raises RecallflowError where it is refused,
        or nobody applies it in time."""
        topics, timeout_s = self._config.topics, self._options.timeout_s
        with OutcomeReader(self._config.kafka, (topics.receipts, topics.dead_letters)) as outcomes:
            with client(self._config, self._tenant, event.environment or PRODUCTION) as opened:
                position = opened.send(event)
            outcome = outcomes.of(position, Patience(timeout_s))
        if outcome is None:
            raise RecallflowError(
                f"{position}: nobody has applied the erasure within {timeout_s:g} s; is the engine running (recallflow "
                "run)? It is in the topic, and the engine applies it when it reads it"
            )
        if outcome.refused:
            raise RecallflowError(f"{position}: the erasure was refused: {outcome.outcome}: {outcome.detail}")
        where = "" if event.environment is None else f" from {event.environment}"
        print(f"{position}: {self._said(outcome.outcome)}{where}")
        return position

    def _said(self, outcome: str) -> str:
        """What became of the erasure, in words: a name that was mistyped should not look like one that was known."""
        user = f"user {self._user} of tenant {self._tenant}"
        return f"{user} is erased" if outcome == "erased" else f"nothing was held on {user}"

    def _events(self, **fields: int) -> list[UserErase]:
        """An event for each environment, or one for all of them."""
        whole = {"type": "user.erase", "tenant_id": self._tenant, "user_id": self._user} | fields
        return [UserErase.model_validate(whole | {"environment": one}) for one in self._environments or [None]]

    def _erase_folder(self, folder: Path, at_ms: int) -> bool:
        """Returns whether its files are purged as well."""
        erased = erase_directory(self._config, folder, self._events(timestamp=at_ms))
        print(f"{folder}: {self._said('erased' if erased.held else 'unchanged')}")
        if erased.unpurged:
            print(f"{folder}: NOT purged: the next start of the engine tries it again: {erased.unpurged}")
        else:
            print(f"{folder}: purged")
        return not erased.unpurged

    def _erase_checkpoint(self, folder: Path, at_ms: int) -> bool:
        """Returns whether it could be done."""
        try:
            return self._erase_folder(folder, at_ms)
        except RecallflowError as error:
            print(f"{folder}: NOT erased: {error}")
            return False

    # ------------------------------------------------------------------ what remains in Kafka

    def _print_remains(self) -> None:
        topics = self._config.topics
        read = {topics.memory, topics.queries, topics.enrichment, topics.results}
        named = [*topics.read()[:2], topics.enrichment, topics.results, *topics.outputs()]
        print(f"What Kafka holds of user {self._user} of tenant {self._tenant}:")
        compacted = list[Remains]()
        for found in remains(self._config.kafka, named, self._tenant, self._user):
            print(f"  {remains_line(found, is_memory=found.topic == topics.memory)}")
            if found.retention is not None and found.retention.compacts and found.topic not in read and found.keyed_in:
                compacted.append(found)
        if self._options.compact_kafka:
            send_tombstones(self._config.kafka, compacted, Owner(self._tenant, "", self._user).record_key)
            for one in compacted:
                print(f"  {one.topic}: tombstones written")

    # ------------------------------------------------------------------ verifying

    def _sought(self) -> TraceSearch:
        """What to look for: it is read before anything is erased."""
        return sought(self._tenant, self._user, self._environments, self._held())

    def _held(self) -> Iterator[Mapping[str, Any]]:
        if self._options.export is not None:
            return read_export(self._options.export)
        if self._apart is not None:
            return export_before(self._config, self._apart, self._tenant, self._user, self._environments)
        found = records_of(self._config.kafka, self._config.topics.memory, self._tenant, self._user)
        return (event for one in found if isinstance(event := _parsed(one.value()), dict))

    def _verify(self, who: TraceSearch) -> bool:
        """Returns whether anything was found."""
        # An engine that runs cleans its directory by and by.
        wait_s = self._options.timeout_s if self._apart is None else 0.0
        findings = search(who, self._folders, open_at_rest(self._config.encryption), Patience(wait_s))
        for line in finding_lines(who, findings):
            print(line)
        for folder in self._folders:
            if (folder / DESCRIPTION).exists():
                print(f"{folder}: {_purges_line(folder)}")
        if self._apart is None and not self._options.also:
            note(OTHERS)
        return bool(findings.telling())


def _purges_line(folder: Path) -> str:
    try:
        left = unpurged_owners(folder, describe(folder).fingerprint.partitions)
    except (RecallflowError, OSError) as error:  # an engine that runs replaces files meanwhile
        return f"pending purges cannot be read: {error}"
    return f"{left} pending purges" if left else "no pending purges"


def _parsed(value: bytes | None) -> Any:
    try:
        return orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return None
