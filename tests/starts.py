"""A fork server: processes for commands that need no new interpreter, forked from one that has imported everything.

python starts.py SOCKET      the server: a request names script, arguments and environment
"""

import atexit
import functools
import gc
import os
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import orjson

MESSAGE_BYTES = 1 << 20
COMMAND = "import sys; from recallflow.cli import main; sys.exit(main())"
FILLING = ("enrich", "mcp", "pipe", "remember", "replay", "run", "serve")  # take --create


def creating(words: list[str]) -> list[str]:
    """Add `--create` to a command that fills a state directory."""
    return [*words, "--create"] if words and words[0] in FILLING and "--create" not in words else words


class Started(subprocess.Popen[Any]):
    """A process that the fork server forked, with pipes as its streams. A watching process writes its id and then its
    exit code to `status`."""

    def __init__(self, args: list[str], streams: tuple[int, int, int], status: int, *, text: bool = False) -> None:
        self.args, self._status = args, os.fdopen(status, "rb", buffering=0)
        kind = "" if text else "b"
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(stream, mode + kind) for stream, mode in zip(streams, ("w", "r", "r"), strict=True)
        )
        self.returncode = None
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002
        """Write `input`, close standard input, and return all output once the process has ended.

        Kill a process that has not ended after `timeout` seconds, and raise TimeoutExpired.
        """
        with ThreadPoolExecutor(3) as pool:
            fed = pool.submit(self._feed, input)
            open_streams = [one if one and not one.closed else None for one in (self.stdout, self.stderr)]
            read = [pool.submit(stream.read) if stream else None for stream in open_streams]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            fed.result()
            out, err = (one.result() if one else None for one in read)
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        return out, err

    def _feed(self, data: Any) -> None:
        assert self.stdin is not None
        try:
            if data:
                self.stdin.write(data)
            self.stdin.close()
        except (BrokenPipeError, ValueError):  # it is gone, or the test has closed it
            pass


class Starts:
    """The client of a fork server, which ends when the client is closed."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(
        self, script: str, arguments: list[str], environment: dict[str, str] | None = None, *, text: bool = False,
        output: int | None = None,
    ) -> Started:  # fmt: skip
        """Run a Python script with these arguments in a new process. `environment`: None is this process's. `output`: a
        descriptor for both output streams in place of pipes."""
        (stdin, to_it), (from_it, stdout), (errors, stderr), (status, told) = (os.pipe() for _ in range(4))
        request = {
            "script": script, "words": ["-c", *arguments],
            "environment": dict(os.environ) if environment is None else environment, "folder": str(Path.cwd()),
        }  # fmt: skip
        theirs = [stdin, stdout, stderr, told]
        given = theirs if output is None else [stdin, output, output, told]
        socket.send_fds(self._requests, [orjson.dumps(request)], given)
        for one in theirs:
            os.close(one)
        started = Started(arguments, (to_it, from_it, errors), status, text=text)
        if output is not None:
            for stream in (started.stdin, started.stdout, started.stderr):
                assert stream is not None
                stream.close()
        return started

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


@functools.cache
def fork_server() -> Starts:
    """Return the fork server of this process, which ends with the process."""
    server = Starts()
    atexit.register(server.close)
    return server


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork a process for each request. Only the forked processes return, each with its request."""
    while True:
        data, streams, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 4)
        if not data:
            os._exit(0)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.fork()
            if child:
                watch(child, streams)
            break
        for stream in streams:
            os.close(stream)
    # As from a terminal: a shell has what it runs in the background ignore the keyboard, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - the one before holds what it was to be positioned in
    request: dict[str, Any] = orjson.loads(data)
    return request


def watch(child: int, streams: list[int]) -> NoReturn:
    *theirs, status = streams
    for stream in theirs:
        os.close(stream)
    os.write(status, b"%d\n" % child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.write(status, b"%d\n" % code)
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import openai  # noqa: F401

    import recallflow.cli.commands
    import recallflow.cli.erase_steps
    import recallflow.flows.doctor
    import recallflow.flows.embedded
    import recallflow.flows.enrich
    import recallflow.flows.kafka  # noqa: F401

    gc.freeze()  # without it the end of each fork walks, and thereby copies, all that was imported
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv[:] = asked["words"]
    exec(compile(asked["script"], "<string>", "exec"))  # in this module: what it pickles is found in __main__
