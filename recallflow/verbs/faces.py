"""The two faces of the verbs: one waits for each call's outcome, the other awaits it."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from recallflow.queries import Filters
from recallflow.responses import ListedMemory
from recallflow.verbs.arguments import called, explained
from recallflow.verbs.verbs import Verbs

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Verbs)

PAGE = 1_000


def waited(call: Callable[Concatenate[V, P], "Future[T]"]) -> Callable[Concatenate["Waits", P], T]:
    """A call that returns its outcome."""

    @functools.wraps(call)
    def wait(self: "Waits", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return called(self, call, (self._verbs, *args), kwargs).result()

    return _giving_its_outcome(wait, call)


def awaited(
    call: Callable[Concatenate[V, P], "Future[T]"],
) -> Callable[Concatenate["Awaits", P], Coroutine[Any, Any, T]]:
    """A call whose outcome is awaited."""

    @functools.wraps(call)
    async def wait(self: "Awaits", /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._opened()
        return await asyncio.wrap_future(called(self, call, (self._verbs, *args), kwargs))

    return _giving_its_outcome(wait, call)


def _giving_its_outcome(wait: T, call: Callable[..., Any]) -> T:
    """The same, and `help` shows what it gives: a call's own signature says it is a Future of that."""
    shown = inspect.signature(call)
    outcome = str(shown.return_annotation).removeprefix("Future[").removesuffix("]")
    wait.__signature__ = shown.replace(return_annotation=outcome)  # type: ignore[attr-defined]
    return wait


class Waits:
    """Every call waits for its outcome. For use from any number of threads."""

    _verbs: Verbs

    add = waited(Verbs.add)
    search = waited(Verbs.search)
    get = waited(Verbs.get)
    all = waited(Verbs.all)
    update = waited(Verbs.update)
    forget = waited(Verbs.forget)
    history = waited(Verbs.history)
    episodes = waited(Verbs.episodes)
    facts = waited(Verbs.facts)
    stats = waited(Verbs.stats)
    erase = waited(Verbs.erase)
    send = waited(Verbs.send)
    ask = waited(Verbs.ask)

    @explained
    def each(
        self, *, user: str, filters: Mapping[str, Any] | Filters | None = None, **fields: Any
    ) -> Iterator[ListedMemory]:
        """All memories of a user, newest first, whatever number of pages they take. Arguments as of `all`."""
        page = self.all(user=user, filters=filters, **{"limit": PAGE} | fields)
        yield from page
        while page.after is not None:
            page = self.all(user=user, filters=filters, **{"limit": PAGE} | fields | {"after": page.after})
            yield from page

    def close(self) -> None:
        """Sees what was sent to its end. A second call does nothing."""
        self._verbs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Awaits:
    """Every call is awaited. For use from one event loop, or several."""

    _verbs: Verbs

    add = awaited(Verbs.add)
    search = awaited(Verbs.search)
    get = awaited(Verbs.get)
    all = awaited(Verbs.all)
    update = awaited(Verbs.update)
    forget = awaited(Verbs.forget)
    history = awaited(Verbs.history)
    episodes = awaited(Verbs.episodes)
    facts = awaited(Verbs.facts)
    stats = awaited(Verbs.stats)
    erase = awaited(Verbs.erase)
    send = awaited(Verbs.send)
    ask = awaited(Verbs.ask)

    @explained
    async def each(
        self, *, user: str, filters: Mapping[str, Any] | Filters | None = None, **fields: Any
    ) -> AsyncIterator[ListedMemory]:
        """All memories of a user, newest first, whatever number of pages they take. Arguments as of `all`."""
        after: str | None = None
        while True:
            given = {"limit": PAGE} | fields | ({} if after is None else {"after": after})
            page = await self.all(user=user, filters=filters, **given)
            for memory in page:
                yield memory
            if (after := page.after) is None:
                return

    async def _opened(self) -> None:
        """Returns once calls can be made. Raises why none can."""

    async def close(self) -> None:
        """Sees what was sent to its end. A second call does nothing."""
        await asyncio.to_thread(self._verbs.close)

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
