"""The two faces of the one implementation: one waits for each call's outcome, the other awaits it."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from recallflow.brokers.options import KafkaOptions
from recallflow.client.core import Core, Topics, checked_replies
from recallflow.client.credentials import Credentials, Token
from recallflow.client.scope import Scope
from recallflow.client.sendable import checked_text
from recallflow.errors import UsageError

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

P = ParamSpec("P")
T = TypeVar("T")


class _Face:
    def __init__(
        self,
        bootstrap_servers: str,
        tenant_id: str,
        *,
        environment: str = "prod",
        memory_topic: str = "memory.events",
        query_topic: str = "query.events",
        response_topic: str = "recall.responses",
        control_topic: str = "control.events",
        options: Mapping[str, str] = NO_OPTIONS,
        timeout_s: float = 10.0,
        api_key: str | None = None,
        token: Token | None = None,
        end_user: str | None = None,
        control_secret: str | None = None,
        reply_topic: str | None = None,
        reply_partition: int | None = None,
    ) -> None:
        """`options`: any of librdkafka's (`security.protocol`, `sasl.*`, `ssl.*`, …). `timeout_s`: for a record to be
        acknowledged, and for a response to come. Does not wait for Kafka. Raises UsageError and InvalidRecord for
        arguments that no call could succeed with.

        Where the engine asks for credentials: `api_key`, or `token`, a JWT or a function that gives one, asked before
        each record. `end_user`: the one user that everything is done for. `control_secret`: what decisions are signed
        with, where the engine believes signed ones only.

        `reply_topic`: where answers go in place of the response topic, one that the engine's settings let be named;
        then only one partition is read, `reply_partition` or any. A refusal of credentials is not told there: such a
        query runs out of time."""
        checked_text("bootstrap_servers", bootstrap_servers)
        if not isinstance(options, Mapping):
            raise UsageError(f"options must map librdkafka's names to values, not {options!r}")
        topics = Topics(memory_topic, query_topic, response_topic, control_topic)
        kafka, scope = KafkaOptions(bootstrap_servers, options), Scope(tenant_id, environment)
        credentials = Credentials(api_key, token, end_user)
        replies = checked_replies(reply_topic, reply_partition)
        self._core = Core(kafka, scope, topics, timeout_s, credentials, control_secret, replies)


def _waited(call: Callable[Concatenate[Core, P], "Future[T]"]) -> Callable[Concatenate["RecallClient", P], T]:
    @functools.wraps(call)
    def wait(self: "RecallClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return call(self._core, *args, **kwargs).result()

    return wait


def _awaited(
    call: Callable[Concatenate[Core, P], "Future[T]"],
) -> Callable[Concatenate["AsyncRecallClient", P], Coroutine[Any, Any, T]]:
    @functools.wraps(call)
    async def wait(self: "AsyncRecallClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(call(self._core, *args, **kwargs))

    return wait


class RecallClient(_Face):
    """Every call waits for its outcome. For use from any number of threads."""

    remember = _waited(Core.remember)
    message = _waited(Core.message)
    update = _waited(Core.update)
    forget = _waited(Core.forget)
    send = _waited(Core.send)
    recall = _waited(Core.recall)
    memories = _waited(Core.memories)
    facts = _waited(Core.facts)
    graph_status = _waited(Core.graph_status)
    graph_trace = _waited(Core.graph_trace)
    graph_rollout = _waited(Core.graph_rollout)
    graph_gate = _waited(Core.graph_gate)
    category = _waited(Core.category)
    create_key = _waited(Core.create_key)
    revoke_key = _waited(Core.revoke_key)
    quota = _waited(Core.quota)
    ask = _waited(Core.ask)

    def close(self) -> None:
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncRecallClient(_Face):
    """Every call is awaited. For use from one event loop, or several."""

    remember = _awaited(Core.remember)
    message = _awaited(Core.message)
    update = _awaited(Core.update)
    forget = _awaited(Core.forget)
    send = _awaited(Core.send)
    recall = _awaited(Core.recall)
    memories = _awaited(Core.memories)
    facts = _awaited(Core.facts)
    graph_status = _awaited(Core.graph_status)
    graph_trace = _awaited(Core.graph_trace)
    graph_rollout = _awaited(Core.graph_rollout)
    graph_gate = _awaited(Core.graph_gate)
    category = _awaited(Core.category)
    create_key = _awaited(Core.create_key)
    revoke_key = _awaited(Core.revoke_key)
    quota = _awaited(Core.quota)
    ask = _awaited(Core.ask)

    async def close(self) -> None:
        await asyncio.to_thread(self._core.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
