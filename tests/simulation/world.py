"""A scheduler of simulated threads under one virtual clock, and stand-ins for the modules that the product waits with.

Every simulated thread is a greenlet of one operating-system thread. It runs until it waits, and at some other calls
until the scheduler prefers another one. The scheduler chooses with a seeded generator, and the clock advances only
where nothing can run. One seed therefore reproduces one schedule.
"""

import contextlib
import heapq
import itertools
import random
import sys
import time as real_time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import greenlet

EPOCH_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z, where virtual time starts
STEP_S = 0.00002  # the duration of one step
PREEMPTED = 0.1  # probability of a switch where a thread could go on
STALLED = 0.004  # probability of a long pause of one thread at such a point
STALL_MAX_S = 0.4
LOOK_ROUNDS = 15  # a mask: every 16th step


class Killed(BaseException):
    """The end of a thread whose simulated process was killed."""


class Process:
    """A simulated process. Its threads stop at once when it is killed, and rest while it is paused."""

    def __init__(self, world: "World", name: str, skew_s: float = 0.0) -> None:
        self.world, self.name, self.skew_s = world, name, skew_s
        self.is_dead = self.is_paused = False
        self.member: Any = None
        self.is_cut_off = False  # no broker can be reached from it
        self.tasks: dict[Task, None] = {}
        self.parked: list[Callable[[], None]] = []

    def spawn(self, run: Callable[[], None], name: str) -> "Task":
        task = Task(self, run, name)
        self.tasks[task] = None
        self.world.ready.append(task)
        return task

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after a time, unless the process is dead by then; a paused process calls when it resumes."""
        self.world.later(delay_s, partial(self._call, call))

    def _call(self, call: Callable[[], None]) -> None:
        if self.is_paused:
            self.parked.append(partial(self._call, call))
        elif not self.is_dead:
            call()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        parked, self.parked = self.parked, []
        for call in parked:
            call()

    def kill(self) -> None:
        """End all threads; their `finally` clauses have no effect because every simulated call raises."""
        self.is_dead, self.is_paused = True, False
        for task in [*self.tasks]:
            task.kill()
        self.parked.clear()


class Task:
    def __init__(self, process: Process, run: Callable[[], None], name: str) -> None:
        self.process, self.name = process, name
        self.world = process.world
        self.ident = next(self.world.numbers)
        self.woken = False
        self.waiting: object = None  # the token of the wait under way
        self.ended = False
        self.joining: list[Task] = []
        self.locals: dict[object, dict[str, Any]] = {}
        self._run = run
        self.greenlet = greenlet.greenlet(self._begin, self.world.main)

    def _begin(self) -> None:
        try:
            self._run()
        except Killed as killed:
            _forget_frames(killed)
        except Exception as error:  # noqa: BLE001 - an error that no handler of the product took
            self.world.failures.append(f"{self.process.name}/{self.name}: {error!r}")
            self.world.is_over = True
        finally:
            self.ended = True
            self.process.tasks.pop(self, None)
            for task in self.joining:
                self.world.wake(task)
            del self._run
            self.joining.clear()
            self.locals.clear()

    def kill(self) -> None:
        if self.greenlet.gr_frame is None and not self.greenlet:  # it never ran
            self.ended = True
            self.process.tasks.pop(self, None)
            return
        for _ in range(20):
            if self.ended:
                return
            self.world.current = self
            self.greenlet.throw(Killed)
            self.world.current = None
        raise RuntimeError(f"thread {self.name} survives its process")


def _forget_frames(error: BaseException | None) -> None:
    """Free the frames that an error passed through now: each is in a cycle, which a collection finds slowly."""
    while error is not None:
        error.__traceback__ = None
        error.__context__, error = None, error.__context__


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.main = greenlet.getcurrent()
        self.now_s = 0.0
        self.numbers = itertools.count(1)
        self.ready: list[Task] = []
        self.timers: list[tuple[float, int, Any, object]] = []
        self.current: Task | None = None
        self.processes: list[Process] = []
        self.failures: list[str] = []
        self.trace = 0  # a hash of all decisions
        self.is_over = False
        self._ids = itertools.count()

    def process(self, name: str, skew_s: float = 0.0) -> Process:
        made = Process(self, name, skew_s)
        self.processes.append(made)
        return made

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.member = None
        self.timers.clear()
        self.ready.clear()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (self.now_s + delay_s, next(self.numbers), call, None))

    def run(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Run until `done`, which is asked every few steps, or `is_over`, or for so long. Return whether it is done."""
        until_s = self.now_s + limit_s
        ready, timers = self.ready, self.timers
        draw = self.random.random
        rounds = 0
        while True:
            if self.is_over or (rounds & LOOK_ROUNDS == 0 and done()):
                return True
            rounds += 1
            if timers and (timers[0][0] <= self.now_s or not ready):
                at_s, _, target, token = heapq.heappop(timers)
                if at_s > until_s:
                    heapq.heappush(timers, (at_s, next(self.numbers), target, token))
                    self.now_s = until_s
                    return False
                self.now_s = max(self.now_s, at_s)
                if token is None:
                    target()
                elif target.waiting is token:
                    target.waiting = None
                    target.woken = False
                    ready.append(target)
                continue
            if not ready or self.now_s > until_s:
                return False
            place = int(draw() * len(ready)) if len(ready) > 1 else 0
            task = ready[place]
            ready[place] = ready[-1]
            ready.pop()
            if task.process.is_paused:
                task.process.parked.append(lambda task=task: ready.append(task))  # type: ignore[misc]
                continue
            if task.process.is_dead or task.ended:
                continue
            self.now_s += STEP_S
            self.trace = hash((self.trace, task.ident, self.now_s))
            self.current = task
            task.greenlet.switch()
            self.current = None

    def block(self, waiters: "list[Task] | None", timeout_s: float | None) -> bool:
        """Wait to be woken, at most for a time. Return whether it was woken."""
        task = self.current
        if task is None:
            raise RuntimeError("only a simulated thread may wait")
        if task.process.is_dead:
            raise Killed
        task.waiting = token = object()
        if timeout_s is not None:
            heapq.heappush(self.timers, (self.now_s + max(0.0, timeout_s), next(self.numbers), task, token))
        if waiters is not None:
            waiters.append(task)
        try:
            self.main.switch()
        finally:
            task.waiting = None
            if waiters is not None and task in waiters:
                waiters.remove(task)
        if task.process.is_dead:
            raise Killed
        return task.woken

    def wake(self, task: Task) -> None:
        if task.waiting is not None:
            task.waiting = None
            task.woken = True
            self.ready.append(task)

    def wake_all(self, waiters: list[Task]) -> None:
        waiting, waiters[:] = waiters[:], []
        for task in waiting:
            self.wake(task)

    def sleep(self, duration_s: float) -> None:
        self.block(None, duration_s)

    def preempt(self) -> None:
        """Let the scheduler prefer another thread, now and then."""
        task = self.current
        if task is None or task.process.is_dead:
            return
        draw = self.random.random()
        if draw < STALLED:
            self.block(None, self.random.random() * STALL_MAX_S)
        elif draw < PREEMPTED and self.ready:
            self.block(None, 0.0)

    def new_id(self) -> str:
        """A unique identifier that depends on the seed alone."""
        return f"{next(self._ids):032x}"


_worlds: list[World] = []


def world() -> World:
    return _worlds[-1]


class Event:
    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[Task] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        here = world()
        if self._waiters:
            here.wake_all(self._waiters)
        here.preempt()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            world().block(self._waiters, timeout)
        return self._is_set


class RLock:
    is_reentrant = True

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._depth = 0
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = world()
        me = here.current
        if self._owner is not None and not (self.is_reentrant and self._owner is me):
            if not blocking:
                return False
            until_s = None if timeout < 0 else here.now_s + timeout
            while self._owner is not None and not self._owner.ended:
                left_s = None if until_s is None else until_s - here.now_s
                if left_s is not None and left_s <= 0:
                    return False
                here.block(self._waiters, left_s)
            self._depth = 0
        self._owner = me or _OUTSIDE
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._owner = None
            if self._waiters:
                world().wake_all(self._waiters)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Lock(RLock):
    is_reentrant = False


class _Outside:
    ended = False


_OUTSIDE: Any = _Outside()


class Condition:
    def __init__(self, lock: RLock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiters: list[Task] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        try:
            return world().block(self._waiters, timeout)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until_s = None if timeout is None else world().now_s + timeout
        while not predicate():
            left_s = None if until_s is None else until_s - world().now_s
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify_all(self) -> None:
        world().wake_all(self._waiters)

    notify = notify_all


class Thread:
    def __init__(
        self,
        group: None = None,  # noqa: ARG002 - it is the first parameter of `threading.Thread`
        target: Callable[..., None] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._arguments, self._named = target, tuple(args), kwargs or {}
        self.name, self.daemon = name or "thread", daemon
        self._task: Task | None = None
        self.ident: int | None = None

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._arguments, **self._named)

    def start(self) -> None:
        here = world().current
        if here is None:
            raise RuntimeError("only a simulated thread starts others")
        if here.process.is_dead:
            raise Killed
        self._task = here.process.spawn(self.run, self.name)
        self.ident = id(self)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.ended

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None and not self._task.ended:
            world().block(self._task.joining, timeout)


class Local:
    def _fields(self) -> dict[str, Any]:
        task = world().current
        return {} if task is None else task.locals.setdefault(self, {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._fields()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._fields()[name] = value


def get_ident() -> int:
    task = world().current
    return 0 if task is None else task.ident


THREADING = SimpleNamespace(
    Event=Event, Lock=Lock, RLock=RLock, Condition=Condition, Thread=Thread, local=Local, get_ident=get_ident
)


def monotonic() -> float:
    return world().now_s


def wall_s() -> float:
    here = world()
    skew_s = here.current.process.skew_s if here.current is not None else 0.0
    return EPOCH_S + here.now_s + skew_s


def time_ns() -> int:
    return int(wall_s() * 1_000_000) * 1_000


def sleep(duration_s: float) -> None:
    world().sleep(duration_s)


TIME = SimpleNamespace(
    monotonic=monotonic,
    perf_counter=monotonic,
    time=wall_s,
    time_ns=time_ns,
    sleep=sleep,
    clock_gettime=lambda _: monotonic(),
    CLOCK_BOOTTIME=real_time.CLOCK_BOOTTIME,
    strftime=real_time.strftime,
    localtime=real_time.localtime,
    gmtime=real_time.gmtime,
)


class Future:
    def __init__(self) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = Event()

    def __class_getitem__(cls, _: object) -> type:
        return cls

    def done(self) -> bool:
        return self._done.is_set()

    def cancel(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        self._result = result
        self._done.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def result(self, timeout: float | None = None) -> Any:
        if not self._done.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result


class ThreadPoolExecutor:
    def __init__(self, max_workers: int = 1, thread_name_prefix: str = "pool") -> None:
        self._most, self._name = max_workers, thread_name_prefix
        self._work: deque[tuple[Future, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._threads: dict[Thread, None] = {}
        self._is_shut = False

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = Future()
        self._work.append((future, call, arguments))
        if len(self._threads) < self._most:
            thread = Thread(target=self._drain, name=self._name)
            self._threads[thread] = None
            thread.start()
        return future

    def map(self, call: Callable[..., Any], items: Iterable[Any]) -> Iterator[Any]:
        futures = [self.submit(call, item) for item in items]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        if cancel_futures:
            self._work.clear()
        for thread in [*self._threads] if wait else ():
            thread.join()

    def _drain(self) -> None:
        while self._work:
            future, call, arguments = self._work.popleft()
            try:
                result = call(*arguments)
            except Exception as error:  # noqa: BLE001 - `result` raises it
                future.set_exception(error)
            else:
                future.set_result(result)
        self._threads.pop(next(one for one in self._threads if one._task is world().current))

    def __enter__(self) -> "ThreadPoolExecutor":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def wait_for_all(futures: Iterable[Future]) -> None:
    for future in futures:
        future._done.wait()


UUID = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=world().new_id()))


class Patches:
    """Names of the product's modules, and defaults of its functions, that a simulation replaces."""

    def __init__(self, replaced: dict[Any, Any]) -> None:
        """`replaced`: real object → the simulated one."""
        self._by_id = {id(real): simulated for real, simulated in replaced.items()}
        self._undo: list[Callable[[], None]] = []

    def apply(self) -> None:
        modules = [module for name, module in [*sys.modules.items()] if name.startswith("recallflow.")]
        seen: set[int] = set()
        for module in modules:
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                self._patch(module, seen)

    def undo(self) -> None:
        for step in reversed(self._undo):
            step()
        self._undo.clear()

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace one attribute until `undo`."""
        before = getattr(owner, name)
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def _patch(self, module: ModuleType, seen: set[int]) -> None:
        for name, value in [*vars(module).items()]:
            if (simulated := self._by_id.get(id(value))) is not None:
                self.replace(module, name, simulated)
            elif isinstance(value, FunctionType):
                self._patch_defaults(value, seen)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for member in [*vars(value).values()]:
                    function = getattr(member, "__func__", member)
                    if isinstance(function, FunctionType):
                        self._patch_defaults(function, seen)

    def _patch_defaults(self, function: FunctionType, seen: set[int]) -> None:
        if id(function) in seen:
            return
        seen.add(id(function))
        if any(id(one) in self._by_id for one in function.__defaults__ or ()):
            changed = tuple(self._by_id.get(id(one), one) for one in function.__defaults__ or ())
            self.replace(function, "__defaults__", changed)
        if any(id(one) in self._by_id for one in (function.__kwdefaults__ or {}).values()):
            named = {name: self._by_id.get(id(one), one) for name, one in (function.__kwdefaults__ or {}).items()}
            self.replace(function, "__kwdefaults__", named)


@contextlib.contextmanager
def running(seed: int) -> Iterator[World]:
    """A world that the replaced functions call."""
    made = World(seed)
    _worlds.append(made)
    try:
        yield made
    finally:
        made.end()
        _worlds.pop()
