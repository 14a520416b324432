"""For how long a member of a group may send, after what the group's coordinator last told it.

A commit that the coordinator accepts shows that we were in the group after it was sent: nobody else is given what is
ours within a session from then. We may send for a while: it ends early enough that what waits in the producer's queue
by then has expired before the session has.
"""

import time
from collections.abc import Callable

MARGIN_MIN_S = 2.0
RENEWALS = 5  # in the time that one of them lets us send


def boottime_s() -> float:
    """Runs on while the process is stopped, and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def outage_s(session_s: float) -> float:
    """So long an output may wait for brokers that are away: below the session by what a renewal may take."""
    return session_s - max(MARGIN_MIN_S, session_s / 9)


class Lease:
    """What accepted commits entitle to. Thread-safe enough: each number is set at once, and read by itself."""

    def __init__(self, session_s: float, clock_s: Callable[[], float] = boottime_s) -> None:
        self.clock_s = clock_s
        self.session_s = session_s
        self.outage_s = outage_s(session_s)
        self.renew_s = (session_s - self.outage_s) / RENEWALS
        self._until_s: float | None = None

    def renew(self, sent_s: float) -> None:
        """A commit was accepted that was sent at `sent_s`."""
        self._until_s = sent_s + self.session_s

    def end(self) -> None:
        """Nothing may be sent any more."""
        self._until_s = None

    def seconds_left(self) -> float:
        """How long nobody else can be at work, without news from the coordinator."""
        until_s = self._until_s
        return 0.0 if until_s is None else max(0.0, until_s - self.clock_s())

    @property
    def may_send(self) -> bool:
        """Whether what is handed over now has expired when somebody else may come."""
        return self.seconds_left() > self.outage_s

    @property
    def ran_out(self) -> bool:
        """Whether we had one, and were away for longer than a session since."""
        return self._until_s is not None and self.seconds_left() <= 0
