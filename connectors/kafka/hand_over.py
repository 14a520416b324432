"""Whoever works on partitions, and how it is waited for where some of them move."""

import threading
from collections.abc import Collection
from typing import Protocol

from recallflow.connectors.kafka.group_consumer import Committed


class Assignee(Protocol):
    """Who works on the partitions."""

    def gain(self, places: dict[int, str | None]) -> None:
        """Partitions are ours from now on: the text that the last owner committed for each, None where there is none.
        Returns at once."""

    def give_up(self, partitions: Collection[int]) -> dict[int, Committed]:
        """Returns once nothing of the partitions is on its way any more: what to commit last, for each that was begun
        with."""


class HandOver:
    """Has partitions given up, on a thread of its own: ours has to go on renewing."""

    def __init__(self, assignee: Assignee, partitions: frozenset[int]) -> None:
        self._final: dict[int, Committed] | Exception | None = None
        work = (assignee, partitions)
        threading.Thread(target=self._give_up, args=work, daemon=True, name="recallflow-hand-over").start()

    @property
    def ended(self) -> bool:
        return self._final is not None

    def final(self) -> dict[int, Committed]:
        """What to commit, once it has ended. Raises what went wrong."""
        if isinstance(self._final, Exception):
            raise self._final
        return self._final or {}

    def _give_up(self, assignee: Assignee, partitions: frozenset[int]) -> None:
        try:
            self._final = assignee.give_up(partitions)
        except Exception as error:  # noqa: BLE001 - `final` raises it
            self._final = error
