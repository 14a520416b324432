"""One process that starts others of the same deployment, keeps them running, and ends when they have."""

import asyncio
import logging
import os
import signal
from collections.abc import Sequence

from recallflow.members.member import Member

USAGE = 2  # what is wrong with the command or its settings stays wrong
BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0  # who ran for so long had no trouble with its start

_log = logging.getLogger(__name__)


class Supervisor:
    """Passes signals on, starts again who ended without being told to, and has all end where one says that the command
    itself is wrong. It decides nothing about the work: who has which partition is between the members and Kafka."""

    def __init__(self, members: Sequence[Member], backoff_s: float) -> None:
        self._members = members
        self._backoff_s = backoff_s
        self._stopping = asyncio.Event()

    def run(self) -> int:
        """Runs until all have ended, and returns the exit code of the worst."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        async with asyncio.TaskGroup() as tasks:
            for member in self._members:
                tasks.create_task(self._keep(member))
        return max(member.exit_code for member in self._members)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            for member in self._members:
                member.kill()
            os._exit(128 + number)
        _log.warning("stopping: members finish the batch at hand; a second signal stops at once")
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        for member in self._members:
            member.stop()

    async def _keep(self, member: Member) -> None:
        """Has a member run until all are to end."""
        loop, waits_s = asyncio.get_running_loop(), self._backoff_s
        while not self._stopping.is_set():
            began_s = loop.time()
            try:
                code = await member.run()
            except OSError as error:  # too many processes, no memory
                _log.warning("%s cannot be started: %s", member.name, error.strerror)
                code = member.code = 1
            if self._stopping.is_set():
                return
            if code == USAGE:
                _log.error("%s ended with %d: what it was given is wrong for all, so all end", member.name, code)
                self._stop()
                return
            if loop.time() - began_s >= STEADY_S:
                waits_s = self._backoff_s
            _log.warning("%s %s: it starts again in %g s", member.name, _ended(code), waits_s)
            await self._wait(waits_s)
            waits_s = min(2 * waits_s, BACKOFF_MAX_S)
            member.restarts += 1

    async def _wait(self, seconds: float) -> None:
        """Waits, or until all are to end."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


def _ended(code: int) -> str:
    return f"ended with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
