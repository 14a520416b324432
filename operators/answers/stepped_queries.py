"""Queries that are answered in steps, one per owner at a time, and the queries that wait for them."""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from recallflow.operators.answers.asides import ParkedQuery
from recallflow.operators.recall.stages import Effects
from recallflow.outputs import Answer
from recallflow.owner import Owner
from recallflow.queries import ReplyTo
from recallflow.stepped import SteppedWork

Outcome = tuple[Answer, Effects | None]


class Answering(NamedTuple):
    """A query whose answer is in progress."""

    question: ParkedQuery
    reply_to: ReplyTo | None
    work: SteppedWork[Outcome]


@dataclass(slots=True)
class _OwnerQueue:
    answering: Answering | None = None
    waiting: deque[ParkedQuery] = field(default_factory=deque)


class SteppedQueries:
    """The queries in steps of one state partition, by tenant and owner."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[Owner, _OwnerQueue]] = {}  # by tenant; the next owner comes first

    def __bool__(self) -> bool:
        return bool(self._lines)

    def tenants(self) -> Collection[str]:
        return self._lines.keys()

    def has(self, owner: Owner) -> bool:
        """Return whether a query of the owner is in steps."""
        return owner in self._lines.get(owner.tenant_id, ())

    def hold(self, answering: Answering) -> None:
        """Keep a query until its next step."""
        self._line(answering.question.ask.owner).answering = answering

    def wait(self, question: ParkedQuery) -> None:
        """Queue a query after earlier ones of its owner."""
        self._line(question.ask.owner).waiting.append(question)

    def next(self, tenant_id: str) -> Answering | ParkedQuery | None:
        """Take the next query of a tenant: one in progress, or a waiting one."""
        owners = self._lines.get(tenant_id)
        if not owners:
            return None
        owner = next(iter(owners))
        line = owners.pop(owner)
        taken: Answering | ParkedQuery | None = line.answering
        line.answering = None
        if taken is None:
            taken = line.waiting.popleft()
        owners[owner] = line  # other owners precede this owner's next query or step
        return taken

    def take(self, covers: Callable[[Owner], bool]) -> Iterator[Answering]:
        """Take the queries in progress of some owners."""
        for owners in self._lines.values():
            for owner, line in owners.items():
                if line.answering is not None and covers(owner):
                    answering, line.answering = line.answering, None
                    yield answering

    def give_up(self, owners: Collection[Owner]) -> list[ParkedQuery]:
        """Drop the queries of these owners, and return them."""
        given_up: list[ParkedQuery] = []
        for owner in owners:
            if self.has(owner):
                given_up += self._questions(self._lines[owner.tenant_id].pop(owner))
        self.prune()
        return given_up

    def questions(self) -> list[ParkedQuery]:
        """Return all unanswered queries."""
        return [one for owners in self._lines.values() for line in owners.values() for one in self._questions(line)]

    def prune(self) -> None:
        """Forget owners without queries."""
        for tenant_id, owners in [*self._lines.items()]:
            for owner, line in [*owners.items()]:
                if line.answering is None and not line.waiting:
                    del owners[owner]
            if not owners:
                del self._lines[tenant_id]

    def _line(self, owner: Owner) -> _OwnerQueue:
        return self._lines.setdefault(owner.tenant_id, {}).setdefault(owner, _OwnerQueue())

    @staticmethod
    def _questions(line: _OwnerQueue) -> list[ParkedQuery]:
        own = [] if line.answering is None else [line.answering.question]
        return [*own, *line.waiting]
