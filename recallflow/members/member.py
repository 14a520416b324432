"""One process of several, as the one that started it sees it."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from recallflow.members.lines import relay

CONFIG = "--config"


@dataclass(eq=False)
class Member:
    """`settings`: its configuration, as a file has it. It goes through a pipe: it may hold secrets, which neither a
    command line nor a disk is to show. `probes`: a socket that is listened at before the process is there, and stays
    through all its lives, so that nobody has to learn another address."""

    name: str
    command: Sequence[str]
    settings: str
    environment: Mapping[str, str]
    probes: socket.socket | None = None
    as_json: bool = False
    restarts: int = 0
    code: int | None = None  # how its last process ended; negative: by which signal
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)

    @property
    def runs(self) -> bool:
        return self._process is not None

    async def run(self) -> int:
        """Starts its process, and returns how that ended. Raises OSError where none can be started."""
        read, write = os.pipe()
        try:
            with os.fdopen(read, "rb", 0) as theirs, os.fdopen(write, "wb", 0) as filled:
                self._process = process = await self._started(theirs.fileno())
                theirs.close()
                if self._stopping:  # the signal came while it was being started
                    self.stop()
                await asyncio.to_thread(_fill, filled, self.settings.encode())
            if process.stderr is not None:
                await relay(process.stderr, self.name, as_json=self.as_json)
            self.code = await process.wait()
        finally:
            self._process = None
        return self.code

    def stop(self) -> None:
        """Has its process finish what it does, and end."""
        self._stopping = True
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends its process at once."""
        self._send(signal.SIGKILL)

    @property
    def exit_code(self) -> int:
        """How it ended, as shells have it. One that the end reached before it knew what to do with it did as it was
        told."""
        if self.code is None or (self._stopping and self.code == -signal.SIGTERM):
            return 0
        return self.code if self.code >= 0 else 128 - self.code

    async def _started(self, settings: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.command,
            CONFIG,
            f"/dev/fd/{settings}",
            stdin=asyncio.subprocess.PIPE,  # which ends with us: `end_with_supervisor` waits for that
            stderr=asyncio.subprocess.PIPE,
            pass_fds=[settings] if self.probes is None else [settings, self.probes.fileno()],
            env=dict(self.environment),
            process_group=0,  # what a terminal sends to all is ours to pass on, once
        )

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def _fill(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # it ended before it had read its settings, and says why
        while data:
            data = data[pipe.write(data) :]
    pipe.close()
