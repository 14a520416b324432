"""Another process that was in the group under a static member's name."""

import logging

from recallflow.connectors.kafka.group_consumer import Found
from recallflow.connectors.kafka.holder import Holder
from recallflow.connectors.kafka.lease import Lease

_log = logging.getLogger(__name__)


class Namesake:
    """When we join under its name, the coordinator takes nothing from it any more, and gives us what it had at once.
    But what it was allowed to send, it may send for a session more."""

    def __init__(self, me: Holder, lease: Lease) -> None:
        self._me = me
        self._lease = lease
        self._until_s = 0.0
        self._warned = False

    def replaced(self) -> None:
        """We joined a moment ago."""
        if self._me.instance:
            self._until_s = self._lease.clock_s() + self._lease.session_s

    @property
    def is_through(self) -> bool:
        """Whether whatever it was allowed has run out."""
        return self._lease.clock_s() >= self._until_s

    def has_left(self, found: dict[int, Found]) -> set[int]:
        """The partitions on which it cannot be at work."""
        if self.is_through:
            return set(found)
        working = {partition for partition, at in found.items() if self._wrote(Holder.parse(at.note))}
        if working and not self._warned:
            self._warned = True
            _log.warning("waiting until the right of another process, also %s, has run out", self._me.instance)
        return set(found) - working

    def _wrote(self, last: Holder | None) -> bool:
        """Whoever wrote our own directory's name is dead: its lock is ours."""
        if last is None or last.released or last.instance != self._me.instance or last.run == self._me.run:
            return False
        return last.directory_id != self._me.directory_id or not last.directory_id
