"""pydantic-ai: tools with which a model searches, adds and forgets memories of a user.

    agent = Agent(model, deps_type=User, toolsets=[memory_toolset(client, lambda user: user.id)])

The user comes from the run's dependencies; the model cannot choose it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from recallflow.errors import InvalidRecord
from recallflow.integrations import await_applied, extra
from recallflow.verbs.verbs import AsyncCalls

with extra("pydantic-ai"):
    from pydantic_ai import FunctionToolset, ModelRetry, RunContext

D = TypeVar("D")


@dataclass(frozen=True)
class SearchedMemory:
    """A memory as the model sees it."""

    id: str
    content: str
    created_at: str


def memory_toolset(client: AsyncCalls, user_of: Callable[[D], str], *, k: int = 5) -> FunctionToolset[D]:
    """Return three tools for the memory of the user of the run's dependencies. `k` limits a search."""

    async def search_memory(context: RunContext[D], query: str) -> list[SearchedMemory]:
        """Searches what is remembered of the user; the best memories come first.

        Args:
            query: What to look for: a question or some words."""
        user_id = user_of(context.deps)
        with _report_to_model():
            found = await client.search(query, user=user_id, k=k)
        return [SearchedMemory(id=one.id, content=one.content, created_at=one.created_at) for one in found]

    async def add_memory(context: RunContext[D], content: str) -> str:
        """Remembers something about the user for later conversations.

        Args:
            content: What to remember: a sentence that can be understood by itself."""
        user_id = user_of(context.deps)
        with _report_to_model():
            await await_applied(client, user_id, (await client.add(content, user=user_id)).position)
        return "stored"

    async def forget_memory(context: RunContext[D], memory_id: str) -> str:
        """Forgets a memory of the user, for good.

        Args:
            memory_id: The id of the memory, as search_memory gave it."""
        user_id = user_of(context.deps)
        with _report_to_model():
            await await_applied(client, user_id, await client.forget(memory_id, user=user_id))
        return "nothing is remembered under this id any more"

    return FunctionToolset([search_memory, add_memory, forget_memory])


@contextmanager
def _report_to_model() -> Iterator[None]:
    """Report an error of a tool's arguments to the model, which can correct them."""
    try:
        yield
    except InvalidRecord as error:
        raise ModelRetry(str(error)) from error
