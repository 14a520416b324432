"""Waits, caches, breakers, garbage collection, descriptors and defects of a process."""

import fcntl
import gc
import logging
import os
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from recallflow import process
from recallflow.caching import BoundedCache
from recallflow.connectors.local_inputs import BATCH_RECORDS
from recallflow.errors import TRACE_EVERY_S, DefectLog, SinkError
from recallflow.flows.gc_policy import collect_due_garbage, garbage_collection_between_batches
from recallflow.llm import FAILURES, OPEN_S, Breaker
from recallflow.process import STEP_MAX_S, STOP_S, CloseErrors, TimeLimit
from tests.unit.connectors.clock import Clock
from tests.unit.operators.harness import make_event, run_flow
from tests.unit.state.member import open_partition

SUPERVISOR_S = 10.0  # so soon a flow that is told to stop has to end


@pytest.mark.parametrize(
    ("limit_s", "waits_s", "last_s"),
    [(40.0, [1.99] * 20, 0.3), (10.0, [3_600.0], STEP_MAX_S)],
    ids=["outage", "pause of the process"],
)
def test_outage_is_waited_for_up_to_its_limit(limit_s: float, waits_s: list[float], last_s: float) -> None:
    clock = Clock()
    patience = TimeLimit(limit_s, threading.Event(), clock)
    for wait_s in waits_s:
        clock.now_s += wait_s
        assert not patience.poll_expired()
    clock.now_s += last_s
    assert patience.poll_expired()
    assert str(patience) == f"within {limit_s:.0f} s"


def test_a_signal_cuts_it_short_whenever_it_comes() -> None:
    stopping, clock = threading.Event(), Clock()
    patience = TimeLimit(40.0, stopping, clock)
    clock.now_s += 20
    assert not patience.poll_expired()
    stopping.set()
    assert not patience.poll_expired()
    clock.now_s += STOP_S
    assert patience.poll_expired()
    assert str(patience) == "within 4 s of the signal to stop"
    assert 2 * STOP_S < SUPERVISOR_S  # a snapshot's outputs, and what comes at the end


def test_the_first_failure_is_kept_and_raised_from_one_place() -> None:
    closing = CloseErrors()
    closing.check()

    def fail(error: BaseException) -> None:
        raise error

    closing(lambda: fail(SinkError("first")))
    closing(lambda: fail(KeyboardInterrupt()))
    with pytest.raises(SinkError, match="first"):
        closing.check()


def test_cached_value_is_not_made_again() -> None:
    made: list[str] = []

    def make(text: str) -> str:
        made.append(text)
        return text.upper()

    kept = BoundedCache(make, 100_000)
    assert ([kept["tea"], kept["tea"], kept["oat"]], made) == (["TEA", "TEA", "OAT"], ["tea", "oat"])


def test_cache_stays_within_its_budget() -> None:
    kept: BoundedCache[str, str] = BoundedCache(str.upper, 64_000)
    kept["tea"]
    assert (kept["x" * 10_000], list(kept)) == ("X" * 10_000, ["tea"])  # a value of most of the budget is not kept
    for number in range(5_000):
        kept[f"word{number}"]
        assert kept.size_bytes <= 64_000
    assert 0 < len(kept) < 1_000


def test_open_breaker_lets_one_call_try() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(FAILURES):
        assert (breaker.begin(), breaker.is_open) == (0, False)
        breaker.failed()
    assert (breaker.begin(), breaker.is_open) == (OPEN_S, True)
    clock.now_s += OPEN_S
    assert (breaker.begin(), breaker.begin()) == (0, OPEN_S)
    clock.now_s += 1
    breaker.failed()
    assert breaker.begin() == OPEN_S
    clock.now_s += OPEN_S
    assert breaker.begin() == 0
    breaker.succeeded()
    assert (breaker.begin(), breaker.begin(), breaker.is_open) == (0, 0, False)


def test_a_service_may_ask_to_be_left_alone_for_longer() -> None:
    breaker = Breaker(Clock())
    for _ in range(FAILURES):
        breaker.failed(retry_after_s=60)
    assert breaker.begin() == 60


def fail(kind: type[Exception]) -> Exception:
    with pytest.raises(kind) as caught:
        raise kind
    return caught.value


def test_repeated_place_has_one_traceback_in_its_time(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    defects = DefectLog(logging.getLogger("defects"), lambda: now_s)
    for number, (kind, at_s) in enumerate(
        [(KeyError, 0), (KeyError, 1), (TypeError, 1), (KeyError, TRACE_EVERY_S - 1), (KeyError, TRACE_EVERY_S)]
    ):
        now_s = at_s
        defects.report(f"e{number}", "a test", fail(kind))
    assert [record.__dict__["error_id"] for record in caplog.records] == ["e0", "e1", "e2", "e3", "e4"]
    assert ["raise kind" in record.getMessage() for record in caplog.records] == [True, False, True, False, True]
    assert all("e0" in record.getMessage() for record in (caplog.records[1], caplog.records[3]))


def limited(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    found = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: found.append(limits))
    return found


@pytest.mark.parametrize("limit", [256, 1_024, 4_096, 20_000, 1_048_576])
@pytest.mark.parametrize("partitions", [1, 4, 16])
def test_shares_leave_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch, limit: int, partitions: int) -> None:
    limited(monkeypatch, limit, limit)
    state = partitions * process.max_database_files(partitions)
    used = process.max_connections() + process.max_backlog() + state
    assert used <= limit * 7 / 8 or not process.descriptors_suffice(partitions)


def test_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = limited(monkeypatch, 1_024, 4_096)
    process.raise_descriptor_limit()
    process.raise_descriptor_limit()
    assert found == [(1_024, 4_096), (4_096, 4_096)]


def test_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed")

    limited(monkeypatch, 256, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "setrlimit", refuse)
    process.raise_descriptor_limit()
    assert process.descriptor_limit() == 256


def test_database_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "descriptor_limit", lambda: 1_024)
    with open_partition(tmp_path, files_of=8):
        (options,) = (tmp_path / "p000").glob("OPTIONS-*")
        assert "max_open_files=64\n" in options.read_text()


GIVE_UP_S = 60.0
FULL_BYTES = 60_000  # of a pipe that nobody reads: another line may not fit in

FLOW = """
import logging, threading
from types import SimpleNamespace
from recallflow.telemetry import set_up_logging
from recallflow.flows.router import stop_on_signals

set_up_logging("text")
source = SimpleNamespace(stopping=threading.Event())
stop_on_signals(source)
for _ in range(1_000):
    logging.getLogger("recallflow").warning("long " * 20)
source.stopping.wait()
print("stopping", flush=True)
threading.Event().wait()
"""


@pytest.mark.processes
def test_second_signal_ends_the_process() -> None:
    with ExitStack() as stack:
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        words = [sys.executable, "-c", FLOW]
        flow = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered)
        stack.enter_context(flow)
        stack.callback(flow.kill)
        assert flow.stdout is not None
        assert flow.stderr is not None
        waiting = TimeLimit(GIVE_UP_S)
        while struct.unpack("i", fcntl.ioctl(flow.stderr, termios.FIONREAD, bytes(4)))[0] < FULL_BYTES:
            assert flow.poll() is None
            assert not waiting.poll_expired()
        flow.send_signal(signal.SIGTERM)
        said = stack.enter_context(ThreadPoolExecutor(1)).submit(flow.stderr.read)
        assert flow.stdout.readline() == b"stopping\n"
        flow.send_signal(signal.SIGTERM)
        assert flow.wait(GIVE_UP_S) == 128 + signal.SIGTERM
        text = said.result().decode()
    assert "a second signal stops at once" in text
    assert "Traceback" not in text


MANY = 10_000
BATCHES = 2
MEANWHILE = 4  # of other threads and of the dataflow's own making


class Cycle:
    """Garbage as soon as it is made."""

    def __init__(self) -> None:
        self.itself = self


def left(count: int) -> "weakref.WeakSet[Cycle]":
    return weakref.WeakSet(Cycle() for _ in range(count))


@contextmanager
def looks() -> Iterator[list[int]]:
    """The generation of each look that Python takes."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield seen
    finally:
        gc.callbacks.remove(note)


@pytest.fixture(autouse=True)
def _nothing_before() -> Iterator[None]:
    """Freeze objects of earlier tests, which take a second to traverse."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_a_run_collects_at_most_once_a_batch() -> None:
    lines = [make_event("message", n, content=f"Tea, cup {n}", session_id="s") for n in range(BATCHES * BATCH_RECORDS)]
    with looks() as seen:
        assert not run_flow(lines).rejected
    assert 1 <= len(seen) <= BATCHES + MEANWHILE


def test_garbage_of_a_batch_is_collected_behind_it() -> None:
    with garbage_collection_between_batches():
        garbage = left(MANY)
        assert len(garbage) == MANY
        collect_due_garbage()
        assert not garbage


def test_very_much_garbage_is_collected_within_a_batch() -> None:
    with garbage_collection_between_batches():
        assert len(left(25 * MANY)) < 25 * MANY


def test_after_a_run_that_failed_python_looks_as_before() -> None:
    usual = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), garbage_collection_between_batches():
        1 / 0  # noqa: B018
    assert (gc.get_threshold(), gc.get_freeze_count()) == (usual, 0)
