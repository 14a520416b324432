"""Synchronous and asynchronous forms of the API's calls."""

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
    """Return the synchronous form of a call."""

    @functools.wraps(call)
    def wait(self: "Waits", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return called(self, call, (self._verbs, *args), kwargs).result()

    return _giving_its_outcome(wait, call)


def awaited(
    call: Callable[Concatenate[V, P], "Future[T]"],
) -> Callable[Concatenate["Awaits", P], Coroutine[Any, Any, T]]:
    """Return the asynchronous form of a call."""

    @functools.wraps(call)
    async def wait(self: "Awaits", /, *args: P.args, **kwargs: P.kwargs) -> T:
        await self._opened()
        return await asyncio.wrap_future(called(self, call, (self._verbs, *args), kwargs))

    return _giving_its_outcome(wait, call)


def _giving_its_outcome(wait: T, call: Callable[..., Any]) -> T:
    """Return a wrapper with the outcome as its return type in `help`, in place of a Future."""
    shown = inspect.signature(call)
    outcome = str(shown.return_annotation).removeprefix("Future[").removesuffix("]")
    wait.__signature__ = shown.replace(return_annotation=outcome)  # type: ignore[attr-defined]
    return wait


class Waits:
    """Synchronous client; every call waits for its outcome. For use from any number of threads."""

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
        """Yield all memories of a user, newest first, page by page. Arguments as of `all`."""
        page = self.all(user=user, filters=filters, **{"limit": PAGE} | fields)
        yield from page
        while page.after is not None:
            page = self.all(user=user, filters=filters, **{"limit": PAGE} | fields | {"after": page.after})
            yield from page

    def close(self) -> None:
        """Wait for calls in flight, and close. A second call has no effect."""
        self._verbs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Awaits:
    """Asynchronous client; every call is awaited. For use from one or several event loops."""

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
        """Yield all memories of a user, newest first, page by page. Arguments as of `all`."""
        after: str | None = None
        while True:
            given = {"limit": PAGE} | fields | ({} if after is None else {"after": after})
            page = await self.all(user=user, filters=filters, **given)
            for memory in page:
                yield memory
            if (after := page.after) is None:
                return

    async def _opened(self) -> None:
        """Return once calls can be made. Raise the reason if they never can."""

    async def close(self) -> None:
        """Wait for calls in flight, and close. A second call has no effect."""
        await asyncio.to_thread(self._verbs.close)

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
