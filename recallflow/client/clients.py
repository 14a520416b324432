"""Blocking and asyncio clients of an engine on Kafka."""

from collections.abc import Mapping
from types import MappingProxyType

from recallflow.brokers.options import KafkaOptions
from recallflow.client.kafka import ClientTopics, Credentials, KafkaVerbs, Token, checked_replies
from recallflow.errors import UsageError
from recallflow.verbs.arguments import ClientScope, checked_text, explained
from recallflow.verbs.faces import Awaits, Waits, awaited, waited
from recallflow.verbs.verbs import Verbs

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


class _Face:
    _verbs: Verbs

    @explained
    def __init__(
        self,
        bootstrap_servers: str,
        tenant: str = "default",
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
        """Create a client, without waiting for Kafka. Raise UsageError or InvalidRecord for invalid arguments.

        `options` are librdkafka's (`security.protocol`, `sasl.*`, `ssl.*`, …). `timeout_s` limits the acknowledgement
        of a record, and the wait for a response.

        An engine with authentication needs `api_key` or `token`, a JWT or a function that returns one for each record.
        `end_user` restricts the client to one user. `control_secret` signs tenant decisions, for an engine that accepts
        only signed ones.

        `reply_topic` replaces the response topic; the engine's settings must allow it. Then the client reads a single
        partition of it, `reply_partition` or any. Refused credentials get no response there: the query times out."""
        checked_text("bootstrap_servers", bootstrap_servers)
        if not isinstance(options, Mapping):
            raise UsageError(f"options must map librdkafka's names to values, not {options!r}")
        topics = ClientTopics(memory_topic, query_topic, response_topic, control_topic)
        kafka, scope = KafkaOptions(bootstrap_servers, options), ClientScope(tenant, environment)
        credentials = Credentials(api_key, token, end_user)
        replies = checked_replies(reply_topic, reply_partition)
        self._verbs = KafkaVerbs(kafka, scope, topics, timeout_s, credentials, control_secret, replies)


class RecallClient(_Face, Waits):
    """Every call waits for its outcome. For use from any number of threads."""

    graph_status = waited(KafkaVerbs.graph_status)
    graph_trace = waited(KafkaVerbs.graph_trace)
    graph_rollout = waited(KafkaVerbs.graph_rollout)
    graph_gate = waited(KafkaVerbs.graph_gate)
    category = waited(KafkaVerbs.category)
    create_key = waited(KafkaVerbs.create_key)
    revoke_key = waited(KafkaVerbs.revoke_key)
    map_owner = waited(KafkaVerbs.map_owner)
    quota = waited(KafkaVerbs.quota)


class AsyncRecallClient(_Face, Awaits):
    """Every call is awaited. For use from one event loop, or several."""

    graph_status = awaited(KafkaVerbs.graph_status)
    graph_trace = awaited(KafkaVerbs.graph_trace)
    graph_rollout = awaited(KafkaVerbs.graph_rollout)
    graph_gate = awaited(KafkaVerbs.graph_gate)
    category = awaited(KafkaVerbs.category)
    create_key = awaited(KafkaVerbs.create_key)
    revoke_key = awaited(KafkaVerbs.revoke_key)
    map_owner = awaited(KafkaVerbs.map_owner)
    quota = awaited(KafkaVerbs.quota)
