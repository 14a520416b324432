"""Kills with calls under way, through the OpenAI client and a local server: each answer is written once.

This file is also the script of the process that is killed: it runs `child`.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import orjson
import pytest
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import KeyedStream
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from bytewax.testing import cluster_main
from openai import AsyncOpenAI

from recallflow.checked import Checked
from recallflow.flows.dataflow import recovery_store
from recallflow.operators.async_call import Completed, Completions, Failed, Runtime
from recallflow.operators.async_call.steps import async_call, async_input
from tests.starts import Starts

CAPACITY = 100
KEYS = 8
EPOCH = timedelta(milliseconds=10)
GIVE_UP_S = 60  # a process that says nothing for so long hangs: it is killed, and the test that waits for it fails

# ── the process that is killed ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Place(Checked):
    """How far a part was: the next number, or the bytes written."""

    reached: int


class Questions(FixedPartitionedSource[tuple[str, int], Place]):
    """The numbers up to `count`; then the end once all is written, or nothing for ever. Prints the progress every
    epoch: only sources are snapshotted in an epoch in which nothing happens."""

    def __init__(self, count: int, lines: "Lines", ends: bool, progress: Callable[[], str]) -> None:
        self.count = count
        self.lines = lines
        self.ends = ends
        self.progress = progress

    def list_parts(self) -> list[str]:
        return ["questions"]

    def build_part(self, step_id: str, for_part: str, resume_state: Place | None) -> "QuestionsPart":  # noqa: ARG002
        return QuestionsPart(self, resume_state.reached if resume_state else 0)


class QuestionsPart(StatefulSourcePartition[tuple[str, int], Place]):
    def __init__(self, source: Questions, first: int) -> None:
        self._source = source
        self._next = first

    def next_batch(self) -> list[tuple[str, int]]:
        if self._source.ends and self._source.lines.written == self._source.count:
            raise StopIteration
        first, self._next = self._next, min(self._next + 10, self._source.count)
        return [(f"key{number % KEYS}", number) for number in range(first, self._next)]

    def snapshot(self) -> Place:
        print(self._source.progress(), flush=True)
        return Place(self._next)


class Lines(FixedPartitionedSink[str, Place]):
    """One file, cut back on resume to where the snapshot says it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0

    def list_parts(self) -> list[str]:
        return ["lines"]

    def build_part(self, step_id: str, for_part: str, resume_state: Place | None) -> "LinesPart":  # noqa: ARG002
        return LinesPart(self, resume_state.reached if resume_state else 0)


class LinesPart(StatefulSinkPartition[str, Place]):
    def __init__(self, lines: Lines, size_bytes: int) -> None:
        self._lines = lines
        self._file = lines.path.open("ab")
        self._file.truncate(size_bytes)
        lines.written = lines.path.read_bytes().count(b"\n")

    def write_batch(self, values: list[str]) -> None:
        self._file.write("".join(f"{line}\n" for line in values).encode())
        self._file.flush()
        self._lines.written += len(values)

    def snapshot(self) -> Place:
        return Place(self._file.seek(0, os.SEEK_END))

    def close(self) -> None:
        self._file.close()


def line(result: Completed[int, str] | Failed[int]) -> str:
    return f"{result.item} {result.value if isinstance(result, Completed) else result.error}"


def child(url: str, folder: Path, count: int, ends: bool, workers: int) -> None:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)

    async def ask(number: int) -> str:
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(number)}])
        return answer.choices[0].message.content or ""

    with Runtime(Completions(), capacity=CAPACITY) as runtime:
        flow = Dataflow("ask")
        lines = Lines(folder / "lines")
        questions = Questions(count, lines, ends, lambda: f"{lines.written}")
        read = async_input("read", flow, questions, runtime.completions)
        called = async_call("ask", read.items, read.finished, ask, runtime)
        written: KeyedStream[str] = op.map("line", called, lambda keyed: ("", line(keyed[1])))
        op.output("out", written, lines)
        recovery = recovery_store(folder)
        cluster_main(flow, [], 0, worker_count_per_proc=workers, epoch_interval=EPOCH, recovery_config=recovery)
        runtime.run(client.close())


# ── the server ────────────────────────────────────────────────────────────────────────────────────────────────────


class Server(ThreadingHTTPServer):
    """Answers a number with its double: so many at once, the others when they are released."""

    request_queue_size = 4 * CAPACITY
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[int] = Counter()
        self.at_once: float = float("inf")
        self.held: set[int] = set()
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def admit(self, number: int) -> None:
        with self.changed:
            self.asked[number] += 1
            if self.asked.total() > self.at_once:
                self.held.add(number)
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.at_once == float("inf"))

    def wait_for_held(self, count: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.held) == count, GIVE_UP_S)

    def release(self) -> None:
        with self.changed:
            self.at_once = float("inf")
            self.changed.notify_all()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not body:  # whoever asked was killed
            return
        question = orjson.loads(body)
        number = int(question["messages"][0]["content"])
        self.server.admit(number)
        message = {"role": "assistant", "content": str(2 * number)}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        body = orjson.dumps({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": choices})
        with contextlib.suppress(ConnectionError):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 http.server's name
        """Tests are quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.release()
        made.shutdown()
        thread.join()


# ── tests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Start = Callable[[int, bool], subprocess.Popen[bytes]]


@pytest.fixture(params=[1, 2], ids=["one worker", "two workers"])
def start(request: pytest.FixtureRequest, server: Server, starts: Starts, tmp_path: Path) -> Iterator[Start]:
    workers = request.param
    with contextlib.ExitStack() as stack:

        def begin(count: int, ends: bool) -> subprocess.Popen[bytes]:
            arguments = [server.url, tmp_path, count, int(ends), workers]
            script = Path(__file__).read_text()
            process = stack.enter_context(starts.start(script, [*map(str, arguments)], dict(os.environ)))
            watchdog = threading.Timer(GIVE_UP_S, process.kill)
            watchdog.start()
            stack.callback(process.kill)
            stack.callback(watchdog.cancel)
            return process

        yield begin


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def come_to(process: subprocess.Popen[bytes], lines: int, epochs: int = 1) -> None:
    """Returns once so many lines were written at the end of so many epochs."""
    assert process.stdout is not None
    for said in process.stdout:
        epochs -= int(said) >= lines
        if epochs == 0:
            return
    pytest.fail("the process ended too early")


def answers(folder: Path) -> list[tuple[int, str]]:
    lines = [line.split(" ", 1) for line in (folder / "lines").read_text().splitlines()]
    return sorted((int(number), value) for number, value in lines)


def test_what_was_pending_is_asked_again_and_every_answer_written_once(
    start: Start, server: Server, tmp_path: Path
) -> None:
    """50 of 150 are answered and 100 are under way when the process dies."""
    server.at_once = 50
    process = start(150, False)
    assert server.wait_for_held(CAPACITY)
    come_to(process, lines=50, epochs=5)  # the second is surely committed when the fifth ends
    kill(process)
    assert set(server.asked) == set(range(150))

    server.asked.clear()
    server.release()
    assert start(150, True).wait() == 0
    assert answers(tmp_path) == [(number, str(2 * number)) for number in range(150)]
    assert server.asked == Counter(server.held)


def test_kills_at_any_moment_lose_and_double_nothing(start: Start, server: Server, tmp_path: Path) -> None:
    draw = random.Random(7)
    for lines in sorted(draw.sample(range(1, 270), 3)):
        process = start(300, False)
        come_to(process, lines)
        kill(process)
    assert start(300, True).wait() == 0
    assert answers(tmp_path) == [(number, str(2 * number)) for number in range(300)]
    assert server.asked.total() >= 300


if __name__ == "__main__":
    _, address, place, *chosen = sys.argv
    how_many, at_end, worker_count = map(int, chosen)
    child(address, Path(place), how_many, bool(at_end), worker_count)
