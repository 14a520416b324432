"""The application of memory events: each exactly once, together with its outputs.

1. An event at or below the applied position of its source was applied before a crash. It changes nothing, and its
   outputs are sent again from the outbox. A second copy of a forwarded record changes nothing.
2. Other events are applied through a view, whose changes take effect only on success. After an internal error, the
   event is refused, and its owner is read from the store again.
3. Effects, outputs and the position are staged in one call, so a commit contains whole events.
4. The staged changes are made in memory too."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial

from recallflow.errors import DecryptionFailed, InvalidRecord
from recallflow.events import UserErase
from recallflow.operators import audit, erase, outbox, redaction
from recallflow.operators.apply import apply, receipts
from recallflow.operators.enrichment.requests import requests
from recallflow.operators.erase import Forget, LargeErasures, is_erased
from recallflow.operators.events import Decoded, Item, Refused, Write
from recallflow.operators.grants import check_projects
from recallflow.operators.graph.rollout import Expansions
from recallflow.operators.guard import retry_once, try_once
from recallflow.operators.large import STEP, LargeEvents
from recallflow.operators.outbox import Kept
from recallflow.operators.rules import EnrichmentTasks, Rules
from recallflow.operators.view import View
from recallflow.outputs import AuditEntry, DeadLetter, TaskRequest
from recallflow.owner import Owner
from recallflow.records import Position, Record
from recallflow.state import keys
from recallflow.state.hot_owner import Owners
from recallflow.state.partition import Partition, Values

# Refusals that depend on more than a record's fields: on our code, --skip, or settings. A replay may accept the record.
_UNSTABLE_CODES = ("internal_error", "skipped", "unauthenticated", "forbidden")


class MemoryWrites:
    """The memory events of one state partition."""

    def __init__(
        self, partition: Partition, owners: Owners, rules: Rules, expansions: Expansions, forget: Forget
    ) -> None:
        self._partition, self._owners, self._rules, self._expansions = partition, owners, rules, expansions
        self._large = LargeEvents(partition, owners, rules)
        self._forget: Forget = partial(_forget, self._large, expansions, forget)
        self._erasures = LargeErasures(partition, owners, self._forget)

    @property
    def has_steps(self) -> bool:
        """Whether `advance` has anything to do."""
        return bool(self._large) or bool(self._erasures)

    def is_at_work(self, owner: Owner) -> bool:
        return self._large.is_at_work(owner) or self._erasures.is_at_work(owner)

    def unfinished(self, source: str) -> list[Item]:
        """Return the events of a log that an earlier process left unfinished."""
        return self._large.unfinished(source)

    def advance(self) -> None:
        self._large.advance()
        self._erasures.advance()

    def apply(self, write: Write) -> Sequence[Kept] | None:
        """Apply an event. Return its outputs; None if it needs steps first."""
        record, owner = write.record, write.owner
        if self._partition.is_applied(record.position):
            return self._stored_outputs(record)
        forwarded = self._forwarded(write)
        # Each deployment that reads a topic forwards the misrouted records in it, so another copy may be applied.
        if any(self._partition.get(key) is not None for key in forwarded):
            if not record.silent:
                self._partition.unfit[write.event.type, "repeated"] += 1
            self.advance_past(record.position)
            return []
        if isinstance(write.event, UserErase):
            return self._erase(write, write.event)
        drop, view = partial(self._owners.drop, owner), None
        outputs: Sequence[Kept]
        try:
            self._check_topic(write)
            check_projects(write)
            applied = retry_once(STEP, record.position, self._apply_in_view, write, undo=drop)
            if applied is None:
                return None
            view, outputs = applied
        except InvalidRecord as error:
            outputs = [DeadLetter(record, 0, error, STEP), *self._audited(write, error)]
        except DecryptionFailed:
            drop()
            outputs = [DeadLetter(record, 0, redaction.unreadable(), STEP)]
        outputs_owner = None if view is None or view.refusal_outcome == "erased" else owner
        values = self._large.end(owner) | self._encoded_outputs(record, outputs, outputs_owner)
        position = self._committed_position(record.position)
        if view is None:
            self._partition.stage(values, position)
        else:
            view.stage(values | forwarded, position)
            if view.refusal_outcome is not None and not record.silent:
                self._partition.unfit[write.event.type, view.refusal_outcome] += 1
            try:
                try_once(STEP, record.position, view.publish)
            except (InvalidRecord, DecryptionFailed):  # the event is applied on disk already
                drop()
            if write.event.type == "memory.feedback":  # it also judges the graph expansion that added the memory
                self._expansions.feedback(owner, write.event.memory_id, write.event.useful, record.append_ms)
        return [] if record.silent else outputs

    def _erase(self, write: Write, event: UserErase) -> Sequence[Kept] | None:
        """Erase a user. Return the outputs; None if it needs steps first."""
        record, erasure, refusal = write.record, None, None
        outputs: Sequence[Kept]
        try:
            self._check_topic(write)
            check_projects(write)
            if self._erasures.begin(write, event):
                return None
            took_steps = self._erasures.end(write.owner)
            erasure = retry_once(STEP, record.position, erase.plan, self._partition, write, event)
            outputs = receipts(write, "erased" if took_steps or erasure.owners else "unchanged")
        except (InvalidRecord, DecryptionFailed) as error:
            refusal = error if isinstance(error, InvalidRecord) else redaction.unreadable()
            outputs = [DeadLetter(record, 0, refusal, STEP)]
        if self._rules.audited:
            outputs = [*outputs, audit.erased(write, refusal)]
        values = self._encoded_outputs(record, outputs)
        if erasure is None:
            self._partition.stage(values, self._committed_position(record.position))
        else:
            values |= self._forwarded(write)
            erase.carry_out(self._partition, self._owners, erasure, values, record.position, self._forget)
        return [] if record.silent else outputs

    def _forwarded(self, write: Write) -> Values:
        """Return the record that marks a forwarded original as applied; empty for other records. A producer may set a
        false position in the header. The key contains the owner, so other owners' records are never excluded."""
        if (original := write.record.moved_from) is None:
            return {}
        keyring = self._partition.keyring
        return {keys.forwarded(keyring.digest(keyring.owner(write.owner), str(original).encode())): b""}

    def advance_past(self, position: Position) -> None:
        """Advance the applied position past a record that has no effect in this partition."""
        self._partition.stage({}, self._committed_position(position))

    def _audited(self, item: Decoded, error: InvalidRecord) -> list[AuditEntry]:
        """Return the access log entry of a refusal, if any."""
        return audit.refused(item, error) if self._rules.audited else []

    def refuse(self, item: Refused) -> Sequence[Kept]:
        """Skip a record that cannot be applied."""
        record = item.record
        letters: list[Kept] = [DeadLetter(record, 0, item.error, item.step), *self._audited(item, item.error)]
        values: Values = {}
        # Other refusals are a function of the record's fields, and the same at the next reading.
        if item.error.code in _UNSTABLE_CODES and item.query_id is None:
            if self._partition.is_applied(record.position):
                return self._stored_outputs(record)
            values = self._encoded_outputs(record, letters)
        self._partition.stage(values, self._committed_position(record.position))
        return [] if record.silent else letters

    def _encoded_outputs(self, record: Record, outputs: Sequence[Kept], owner: Owner | None = None) -> Values:
        """Return the stored form of a record's outputs; empty if no process would send them again."""
        if record.silent or not self._rules.is_replayable:
            return {}
        return outbox.encode(self._partition, record, outputs, owner)

    def _stored_outputs(self, record: Record) -> Sequence[Kept]:
        """Return the outputs of an applied record that are to be sent again."""
        if record.silent:
            return []
        is_sent = {TaskRequest: self._rules.enrichment is not None, AuditEntry: self._rules.audited}
        return [one for one in outbox.read(self._partition, record) if is_sent.get(type(one), True)]

    def _apply_in_view(self, write: Write) -> tuple[View, Sequence[Kept]] | None:
        hot, work = self._owners.get(write.owner), self._large.done(write)
        if is_erased(hot, write):
            view = View(self._partition, hot, write, self._rules)
            view.refusal_outcome = "erased"
            return view, receipts(write, "erased")
        if work is None and self._large.begin(hot, write):
            return None
        if work is not None and work.error is not None:
            raise work.error
        view = View(self._partition, hot, write, self._rules, None if work is None else work.change)
        outputs: list[Kept] = [*apply(view, write, work)]
        view.begin_owner()
        enrichment = self._rules.enrichment
        if enrichment is not None and not write.record.silent:
            with suppress(InvalidRecord):  # a failed request does not affect the memory
                outputs += try_once("enrichment", write.record.position, self._requested, view, write, enrichment)
        return view, outputs

    def _requested(self, view: View, write: Write, enrichment: EnrichmentTasks) -> list[TaskRequest]:
        position, key = write.record.position, write.owner.record_key
        return [
            TaskRequest(position, number, key, one.model_dump_json(exclude_none=True).encode(), tuple(one.tasks))
            for number, one in requests(view, write, enrichment, self._rules.decisions)
        ]

    def _committed_position(self, position: Position) -> Position | None:
        """Return the position to commit; None for a record of the query topic, because a rebuild need not read it."""
        return None if position.topic == self._rules.query_topic else position

    def _check_topic(self, write: Write) -> None:
        if write.record.position.topic == self._rules.query_topic:
            problem = f"{write.event.type} changes memory: send it to the memory topic, which defines its order"
            raise InvalidRecord.of("invalid_event", problem, "type")


def _forget(large: LargeEvents, expansions: Expansions, forget_elsewhere: Forget, owners: Collection[Owner]) -> None:
    """Drop all in-memory data of erased owners."""
    large.forget(owners)
    expansions.forget(owners)
    forget_elsewhere(owners)
