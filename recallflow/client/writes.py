"""What a client wrote last for each user: its own questions are answered once that is applied."""

import threading
from collections import OrderedDict

from recallflow.records import Position

USERS_MAX = 10_000  # those of the latest writes; of others, an engine has long applied them


class Writes:
    """The last acknowledged write for each of the latest users. Thread-safe."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, Position] = OrderedDict()
        self._lock = threading.Lock()

    def note(self, user_id: str, position: Position) -> Position:
        """A write for a user was acknowledged. Returns where it stands."""
        with self._lock:
            known = self._last.pop(user_id, position)
            self._last[user_id] = max(known, position) if known.source == position.source else position
            if len(self._last) > USERS_MAX:
                self._last.popitem(last=False)
        return position

    def last(self, user_id: str) -> Position | None:
        """Where the last one stands, if it is known."""
        return self._last.get(user_id)
