"""One engine a deployment: who may send, decided by a consumer group's coordinator.

An engine joins the group and commits a note that says who it is, again and again; with each commit that the broker
accepts it may send for a while. The while ends early enough that what waits in its producer's queue by then has expired
before the broker would let another one in. Who was stopped or cut off for longer sends nothing, until it knows that
nobody came meanwhile.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from confluent_kafka import KafkaException

from recallflow.brokers.options import SESSION_S
from recallflow.brokers.trouble import passes
from recallflow.connectors.kafka.group import Fenced, Group, Member
from recallflow.connectors.kafka.holder import Holder, directory_id
from recallflow.connectors.kafka.patience import Patience
from recallflow.errors import DeploymentHeld, DeploymentLost, SinkError, SourceError

MARGIN_MIN_S = 2.0
STAND_BY_S = 0.5  # so often one who waits looks again
POLL_S = 0.1
PAUSE_S = 0.01
RELEASE_S = 3.0
CLOSE_S = 5.0  # for the last note; closing may take as long as the brokers are away
WHO_S = 5.0  # how long we look for who put us out: its note comes a moment after

_log = logging.getLogger(__name__)


def boottime_s() -> float:
    """Runs on while the process is stopped, and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def outage_s(session_s: float) -> float:
    """So long an output may wait for brokers that are away: below the session by what a renewal may take."""
    return session_s - max(MARGIN_MIN_S, session_s / 9)


class Deployment:
    """The right to work for a deployment. `await_turn`, then `join`; `check` before each send; `release` at the end."""

    def __init__(
        self,
        group: Group,
        state_dir: Path,
        session_s: float = SESSION_S,
        *,
        wait: bool = False,
        clock_s: Callable[[], float] = boottime_s,
    ) -> None:
        """`wait`: stand by while another engine holds the deployment."""
        self.outage_s = outage_s(session_s)
        self._renew_s = (session_s - self.outage_s) / 5
        self._group = group
        self._state_dir = state_dir
        self._session_s = session_s
        self._wait = wait
        self._clock_s = clock_s
        self._me = Holder.here(state_dir)
        self._member: Member | None = None
        self._before: Holder | None = None  # who was there when we looked
        self._until_s = self._send_until_s = -1.0
        self._not_before_s = 0.0  # another's right may last until then
        self._sent_s: float | None = None  # when the commit that is on its way was sent
        self._due_s = 0.0
        self._error: Exception | None = None
        self._releasing = False
        self._warned = False  # that we stand by
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="recallflow-deployment")

    # ------------------------------------------------------------ for others

    @property
    def held(self) -> bool:
        """Whether nobody else can be at work."""
        return self.seconds_left() > 0

    def seconds_left(self) -> float:
        """How long that stays so without news from the broker."""
        return max(0.0, self._until_s - self._clock_s())

    def failure(self) -> Exception | None:
        """Why we may not go on."""
        return self._error

    def check(self, patience: Callable[[], Patience]) -> None:
        """Returns when something may be sent; waits for a renewal where that is not known. Raises DeploymentLost where
        another engine took over, SinkError where `patience` with brokers that are away has ended."""
        if self._clock_s() < self._send_until_s:
            return
        waiting = patience()
        while self._clock_s() >= self._send_until_s:
            self._raise_failure()
            if waiting.ended():
                raise SinkError(
                    f"deployment {self._group.name} could not be renewed {waiting}: are the brokers away? Outputs that "
                    "were not sent are sent after the next start"
                )
            time.sleep(PAUSE_S)

    # ---------------------------------------------------------- for the flow

    def await_turn(self) -> None:
        """Returns once no other directory holds the deployment. Raises DeploymentHeld unless we stand by.

        A member of the group without a note is waited for: an engine that is starting commits one soon, and one that is
        gone, whose note went with its topic, loses its membership with its session."""
        without_note_until_s = self._clock_s() + self._session_s + MARGIN_MIN_S
        while (holder := self._other_holder()) is not None:
            if not self._wait and (isinstance(holder, Holder) or self._clock_s() >= without_note_until_s):
                raise DeploymentHeld(
                    f"deployment {self._group.name} is held by {holder}. Stop that engine, or stand by with --wait; "
                    "one that was killed is forgotten when its session runs out; engines apart need --deployment NAME"
                )
            self.stand_by(f"deployment {self._group.name} is held by {holder}")

    def stand_by(self, why: object) -> None:
        """Waits a moment, and says so the first time."""
        if not self._warned:
            _log.warning("standing by: %s", why)
            self._warned = True
        time.sleep(STAND_BY_S)

    def _other_holder(self) -> "Holder | str | None":
        seen = self._group.look()
        self._before = Holder.parse(seen.note)
        if seen.member is None:
            return None
        if self._before is None:
            return "an engine that does not say who it is: just starting, or gone and its memory topic made anew"
        # Whoever wrote our own directory's name is dead: we are about to lock that directory, or have done so.
        ours = self._before.directory_id == directory_id(self._state_dir) != ""
        return None if self._before.released or ours else self._before

    def join(self) -> None:
        """Returns once we hold the deployment; renews it from then on. The directory's lock is ours by now."""
        self.enter()
        self._thread.start()
        while not self.held:
            self._raise_failure()
            time.sleep(PAUSE_S)

    def enter(self) -> None:
        """Joins the group, which puts out whoever is in it."""
        self._me = Holder.here(self._state_dir)
        try:
            self._member = self._group.join()
            found = Holder.parse(self._member.note())
        except Fenced:
            raise self._lost(self._successor()) from None
        except KafkaException as error:
            raise self._unusable(error) from error
        if found in (None, self._before) or found.released or found.directory_id == self._me.directory_id:
            return
        # It was renewed after we looked: two started at once, and it is out now, but may not know yet.
        self._not_before_s = self._clock_s() + self._session_s
        _log.warning("deployment %s: waiting until the right of %s has run out", self._group.name, found)

    def release(self) -> None:
        """Commits that we are through, so that any other engine can start at once. Nothing may be on its way any
        more."""
        self._releasing = True
        self.close()

    def close(self) -> None:
        """Ends without a note: another engine waits until our session has run out."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    # -------------------------------------------------------- on the thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.step()
            # With the brokers away it would take long.
            if self._releasing and self._member is not None and self._clock_s() < self._send_until_s:
                self._commit(self._member, released=True)
                until_s = self._clock_s() + RELEASE_S
                while self._member.committed(POLL_S) is None and self._clock_s() < until_s:
                    pass
        except Fenced:
            self._error = self._lost(self._successor())
        except Exception as error:  # noqa: BLE001 - it is raised where it stops the flow
            self._error = error
        finally:
            if self._member is not None:
                with contextlib.suppress(KafkaException):  # who was put out may fail at closing as well
                    self._member.close()

    def step(self) -> None:
        """Renews when it is time, and reads what came of it. Raises Fenced or RecallflowError."""
        member = self._member
        if member is None or member.lost:
            self._rejoin()
            return
        if self._sent_s is None and self._clock_s() >= self._due_s:
            self._renew(member)
        accepted = member.committed(POLL_S)
        if accepted is not None and self._sent_s is not None:
            sent_s, self._sent_s = self._sent_s, None
            if accepted and self._clock_s() >= self._not_before_s:
                self._until_s = sent_s + self._session_s
                self._send_until_s = self._until_s - self.outage_s

    def _renew(self, member: Member) -> None:
        self._due_s = self._clock_s() + self._renew_s
        try:
            found = Holder.parse(member.note())
        except KafkaException as error:
            if not passes(error.args[0]):
                raise self._unusable(error) from error
            return
        if self._me.renewals and found is not None and found.run != self._me.run:
            raise self._lost(found)
        self._commit(member)

    def _commit(self, member: Member, released: bool = False) -> None:
        self._me = replace(self._me, renewals=self._me.renewals + 1, released=released)
        self._sent_s = self._clock_s()
        member.commit(self._me.encode())

    def _rejoin(self) -> None:
        """The group gave our membership up, or may have: we were away for longer than a session."""
        self._sent_s = None
        try:
            seen = self._group.look()
        except SourceError:  # the brokers are still away; what is wrong for good stops the readers, too
            return
        found = Holder.parse(seen.note)
        if found is None or found.run != self._me.run:
            raise self._lost(found)
        if seen.member is None or (self._member is not None and seen.member == self._member.name):
            if self._member is not None:
                self._member.close()
            self._member = self._group.join()
            _log.warning("deployment %s: back in the consumer group; nobody came meanwhile", self._group.name)

    def _successor(self) -> Holder | None:
        """Who put us out: its note comes a moment after."""
        until_s = self._clock_s() + WHO_S
        while self._clock_s() < until_s:
            with contextlib.suppress(SourceError):
                found = Holder.parse(self._group.look().note)
                if found is not None and found.run != self._me.run:
                    return found
            time.sleep(POLL_S)
        return None

    def _lost(self, other: Holder | None) -> DeploymentLost:
        away_s = self._clock_s() - (self._until_s - self._session_s)
        since = "had not begun" if self._until_s < 0 else f"was cut off for {away_s:.0f} s"
        return DeploymentLost(
            f"another engine took over deployment {self._group.name}: {other or 'one that does not say who it is'}; "
            f"this one {since}. Let one of them run, or give each a --deployment of its own"
        )

    def _unusable(self, error: KafkaException) -> SourceError:
        return SourceError(f"deployment {self._group.name}: its consumer group cannot be used: {error.args[0].str()}")

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error
