"""The signal of questions asked again while nothing was written: what a popular question costs most.

Kept are columns, never scores: those depend on the time, the session and use. A conversation is made anew with every
change of its owner's memories, so that what is kept for one holds for exactly that version of them.
"""

from collections import OrderedDict
from sys import getsizeof
from threading import Lock
from typing import NamedTuple
from weakref import ref

from recallflow.operators.recall.columns import Columns
from recallflow.state.index import Conversation

BUDGET_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES = 1_000  # of Python objects


class _Kept(NamedTuple):
    conversation: "ref[Conversation]"
    columns: Columns
    size_bytes: int


class CandidatesCache:
    """Columns by conversation and question, within a byte budget, least recently used out first. Safe to share between
    the workers of a process."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._kept: OrderedDict[tuple[int, str], _Kept] = OrderedDict()
        self._lock = Lock()
        self.total_bytes = 0

    def get(self, conversation: Conversation, text: str) -> Columns | None:
        """What was kept of this question about these very memories."""
        key = id(conversation), text
        with self._lock:
            found = self._kept.get(key)
            if found is None or found.conversation() is not conversation:  # another one had its address before
                return None
            self._kept.move_to_end(key)
            return found.columns

    def put(self, conversation: Conversation, text: str, columns: Columns) -> None:
        """Keeps the columns, unless they alone are over the budget."""
        size_bytes = _ENTRY_BYTES + getsizeof(text) + sum(column.nbytes for column in columns.values.values())
        if size_bytes > self._budget_bytes:
            return
        key = id(conversation), text
        with self._lock:
            if key in self._kept:
                self.total_bytes -= self._kept.pop(key).size_bytes
            self._kept[key] = _Kept(ref(conversation), columns, size_bytes)
            self.total_bytes += size_bytes
            while self.total_bytes > self._budget_bytes:
                self.total_bytes -= self._kept.popitem(last=False)[1].size_bytes
