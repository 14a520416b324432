"""When a supervisor starts a member again, and when it ends all: members that a test makes up, and no real waiting."""

import asyncio
from typing import Any, cast

import pytest

from recallflow.members import BACKOFF_MAX_S, EXIT_USAGE, STEADY_S, MemberProcess, Supervisor

FIRST_S = 0.5


class FakeMember:
    """A member whose lives end with these codes; without one left it lives until it is stopped."""

    def __init__(self, *codes: int | OSError, lives_s: float = 0.0) -> None:
        self.name, self.restarts, self.code, self.exit_code = "member", 0, 0, 0
        self.left, self._lives_s = [*codes], lives_s
        self._stopped = asyncio.Event()

    async def run(self) -> int:
        clock = cast(Clock, asyncio.get_running_loop())
        clock.now_s += self._lives_s
        if not self.left:
            await self._stopped.wait()
            return 0
        code = self.left.pop(0)
        if isinstance(code, OSError):
            raise code
        self.exit_code = code
        return code

    def stop(self) -> None:
        self._stopped.set()


class Clock(asyncio.SelectorEventLoop):
    now_s = 0.0

    def time(self) -> float:
        return self.now_s


def supervise(monkeypatch: pytest.MonkeyPatch, *members: FakeMember) -> tuple[int, list[float]]:
    """Run a supervisor until no member has an end left; return its exit code and the waits before restarts."""
    supervisor = Supervisor(cast(list[MemberProcess], members), FIRST_S)
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    async def stop_when_all_live() -> None:
        while any(member.left for member in members) and not supervisor._stopping.is_set():
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        supervisor._stop()

    async def both() -> int:
        code, _ = await asyncio.gather(supervisor.run(), stop_when_all_live())
        return code

    monkeypatch.setattr(supervisor, "_wait", wait)
    with asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(both()), waits


@pytest.mark.parametrize("ends", [1, -9, OSError(11, "no more processes")], ids=["error", "signal", "no process"])
def test_ended_member_starts_again(monkeypatch: pytest.MonkeyPatch, ends: Any) -> None:
    member, other = FakeMember(ends), FakeMember()
    _, waits = supervise(monkeypatch, member, other)
    assert (waits, member.restarts, other.restarts) == ([FIRST_S], 1, 0)


def test_repeated_ends_double_the_wait_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    _, waits = supervise(monkeypatch, FakeMember(*[1] * 8))
    assert waits == [min(FIRST_S * 2**number, BACKOFF_MAX_S) for number in range(8)]


def test_steady_life_resets_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    _, waits = supervise(monkeypatch, FakeMember(1, 1, lives_s=STEADY_S))
    assert waits == [FIRST_S, FIRST_S]


def test_usage_error_ends_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, other = FakeMember(EXIT_USAGE, 1), FakeMember()
    code, waits = supervise(monkeypatch, wrong, other)
    assert (code, waits, wrong.left) == (EXIT_USAGE, [], [1])


def test_exit_code_is_that_of_the_worst_member(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supervise(monkeypatch, FakeMember(), FakeMember(7))[0] == 7
