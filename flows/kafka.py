"""The main dataflow on Kafka: one member of a deployment, for the partitions that it currently owns.

    memory topic ──┐
                   ├─► decode ─► authorise ─► prepare ─► state ────────► route ─► output topics
    query topic ───┘                 ▲                   by partition
    control topic ─► decisions ──────┘

`MainKafkaFlow` is the flow of a process, and joins the group again after it lost its membership. For the time of one
membership, `MainFlowMember` opens the components that the steps of `MainFlow` need."""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.connectors.kafka.cluster import EndOffsetReader
from recallflow.connectors.kafka.control import send_decisions
from recallflow.connectors.kafka.lease import Holder, holders
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.llm.policy import Meter
from recallflow.control import ControlHistory
from recallflow.embedder import Embedder
from recallflow.errors import UsageError
from recallflow.flows.admission import follow_token_keys, trust_of
from recallflow.flows.config import Config, read_config
from recallflow.flows.embedded import state_opener
from recallflow.flows.engine_metrics import (
    OutputCounter,
    Stages,
    counter,
    gauge,
    model_metrics,
    output_metrics,
    state_metrics,
)
from recallflow.flows.gc_policy import collect_due_garbage, engine_process
from recallflow.flows.initial_progress import initial_progress
from recallflow.flows.member import GroupMember, KafkaFlow
from recallflow.flows.models import SPENDING, open_embedder, open_question_models
from recallflow.flows.partition_copies import RESULTS, Checkpoints, ReleasedPartitions, Standby
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.router import MISROUTED_REASONS, OwningPartitions, Router, routing
from recallflow.flows.runner import BatchStep, KeyedStep, Recipe, RecipeSink, RecipeSource
from recallflow.flows.settings import open_at_rest
from recallflow.flows.topic_checks import (
    TopicRegistry,
    check_control,
    choose_partition_count,
    producer_time_error,
    topics_with_append_time,
)
from recallflow.operators.async_call import CallCompletion
from recallflow.operators.authorise import Authoriser
from recallflow.operators.events import Batch, Item, Misrouted, by_partition, decode, key_of_partition
from recallflow.operators.prepare import prepare
from recallflow.operators.quotas import Rates
from recallflow.operators.rules import Rules
from recallflow.operators.step import PartitionLogic, StateStep
from recallflow.outputs import Output, OutputBarrier
from recallflow.records import Record, Signal
from recallflow.state.directory import StateDirectory

if TYPE_CHECKING:
    from bytewax.dataflow import Dataflow

FLOW_ID = "recallflow"

Read = Record | CallCompletion | Signal
ToState = Batch | CallCompletion | Signal

_log = logging.getLogger(__name__)


@dataclass
class MainFlow:
    """The steps of the main dataflow, in the order of `recipe`."""

    decode_record: Callable[[Record], Item]
    authorise_item: Callable[[Item], Item]
    embedder: Embedder
    open_state: Callable[[int], StateStep]
    route_outputs: Callable[[list[tuple[str, Output | OutputBarrier]]], Iterable[object]]
    spans: RecordSpans
    began_s: float = 0.0  # the start of the current batch

    def recipe(self, source: RecipeSource, sink: RecipeSink) -> Recipe:
        steps: list[BatchStep | KeyedStep] = [
            BatchStep("decode", self.decode),
            BatchStep("authorise", self.authorise),
            BatchStep("prepare", self.prepare),
            KeyedStep("state", lambda: PartitionLogic(self.open_state)),
            BatchStep("route", self.route_outputs),
        ]
        return Recipe(FLOW_ID, source, steps, sink)

    def decode(self, batch: list[Read]) -> list[Item | CallCompletion | Signal]:
        """Parse records, and detect misrouted ones."""
        collect_due_garbage()  # between batches, when few objects are alive
        self.began_s = time.perf_counter()
        return [self.decode_record(one) if isinstance(one, Record) else one for one in batch]

    def authorise(self, batch: list[Item | CallCompletion | Signal]) -> list[Item | CallCompletion | Signal]:
        """Refuse items whose sender lacks the rights for them, or exceeds a quota."""
        return [one if isinstance(one, CallCompletion | Signal) else self.authorise_item(one) for one in batch]

    def prepare(self, batch: list[Item | CallCompletion | Signal]) -> list[tuple[str, ToState]]:
        """Analyse and embed texts. Return, in this order: completed calls, signals before the first item, one batch of
        items per state partition, and all other signals."""
        completions: list[tuple[str, ToState]] = []
        signals_before: list[tuple[str, ToState]] = []
        signals_after: list[tuple[str, ToState]] = []
        items: list[Item] = []
        for one in batch:
            if isinstance(one, CallCompletion):
                completions.append((one.key, one))
            elif isinstance(one, Signal):
                (signals_after if items else signals_before).append((key_of_partition(one.partition), one))
            else:
                items.append(one)
        prepared = prepare(self.embedder, items)
        self.spans.begin(prepared, self.began_s)
        batches = by_partition(prepared, lambda item: item.record.position.partition)
        return [*completions, *signals_before, *batches, *signals_after]


class MainFlowMember(GroupMember):
    meters: Sequence[Meter]  # of paid models

    def __init__(
        self, config: Config, stack: ExitStack, stopping: threading.Event, store: CheckpointStore | None
    ) -> None:
        memory = config.topics.memory
        super().__init__(config, stack, stopping, (memory, config.topics.queries), memory)
        self._open_state()
        self._open_control()
        self._open_models()
        self._check_topics()
        self._open_source(
            None if self.models is None else self.models.runtime.completions,
            memory_ends=EndOffsetReader(self.options, self.topics.memory),
        )
        self._join(store)
        self._follow_other_members()
        outputs_from, done_before = self.source.outputs_from, self.source.done_before
        self.output_counter = OutputCounter(self.topics.queries, outputs_from, done_before, self.spans.trace_id)

    def start(self) -> None:
        super().start()
        auth = self.config.auth
        announce = partial(send_decisions, self.options, self.topics.control, auth.control_secret)
        following = follow_token_keys(auth, self.decisions, self._secrets, announce)
        if (token_keys := self._stack.enter_context(following)) is not None:
            self.watch.add_listeners(token_keys.check)
        _log.warning(self.authoriser.describe())
        self.authoriser.warn()

    def recipe(self) -> Recipe:
        router = Router(
            self.topics, self.counts, self.max_bytes, self.config.auth, self.spans.headers,
            self.run_settings.response_format, self.config.response_schema_id(),
        )  # fmt: skip
        rates = Rates(self.decisions, self.topics.queries, self.log_time_topics)

        def authorise(item: Item) -> Item:
            return item if isinstance(item, Misrouted) else rates.judge(self.authoriser.authorise(item))

        def describe_missing(number: int) -> str:
            return self.source.catch_up.describe(f"{self.topics.memory}:{number}")

        steps = MainFlow(
            decode_record=lambda record: self.owning_partitions.judge(decode(record, self.config.skips)),
            authorise_item=authorise,
            embedder=self.embedder,
            open_state=state_opener(self.directory, self.embedder, self._rules(), self.models, describe_missing),
            route_outputs=routing(router, self.source, self.output_counter.observe, self.spans),
            spans=self.spans,
        )
        return steps.recipe(self.source, self.sink)

    def failure_checks(self) -> tuple[Callable[[], Exception | None], ...]:
        table, watch, *others = super().failure_checks()
        return (table, watch, lambda: self.directory.storage_failure, self._timestamp_error, *others)

    def obstacle(self) -> str:
        missing = self.source.catch_up.describe()
        is_obstacle = missing and not self.run_settings.serve_while_catching_up
        return super().obstacle() or (f"catching up, {missing}" if is_obstacle else "")

    def metrics(self) -> Iterator[Metric]:
        yield from super().metrics()
        yield from output_metrics(self.output_counter, self.authoriser)
        remaining = self.source.catch_up.remaining() or 0
        yield gauge("catching_up_records", "Records left to apply since the start or the last outage", remaining)
        help_text = "Records outside of their owner's partition, which were forwarded to it"
        yield counter("misrouted_records", help_text, "reason", self.owning_partitions.counts, MISROUTED_REASONS)
        results = {} if self.checkpoints is None else self.checkpoints.results
        yield counter("checkpoints", "Checkpoints of partitions by result", "result", results, RESULTS)
        yield from state_metrics(self.directory)
        yield from model_metrics(self.meters)

    def _open_state(self) -> None:
        config, self.decisions = self.config, ControlHistory()
        embedder = open_embedder(config.engine, config.models.embedding, "question", self.decisions, self.state_dir)
        self.embedder = self._stack.enter_context(embedder)
        TopicRegistry.check_names(self.state_dir, self.topics.read_topics_by_flag())  # before files are created
        self._shared_settings = config.engine.shared_settings(self.embedder)
        partitions = choose_partition_count(self.options, self.name, self.topics, self.state_dir, self._shared_settings)
        self.settings = replace(config.engine, partitions=partitions)
        self.owning_partitions = OwningPartitions(partitions)
        fingerprint, at_rest = self.settings.fingerprint(self.embedder), open_at_rest(config.encryption)
        directory = StateDirectory.open(self.state_dir, fingerprint, self.settings.cache_bytes, at_rest=at_rest)
        self.directory = self._stack.enter_context(directory)

    def _open_control(self) -> None:
        self._secrets: dict[str, bytes] = {}  # of token keys, by fingerprint; `follow_token_keys` adds them
        self.authoriser = Authoriser(self.decisions, trust_of(self.config.auth, self._secrets))
        self._open_table(self.decisions)

    def _open_models(self) -> None:
        """Open the models for queries. Traces show a call within the span of its query."""
        self.spans = RecordSpans(Stages(self.inputs), parked_topic=self.topics.queries)
        models = open_question_models(
            self.settings, self.config.models, self.embedder, self.decisions, self.state_dir / SPENDING,
            self.spans.within,
        )  # fmt: skip
        self.models, self.meters = self._stack.enter_context(models)

    def _check_topics(self) -> None:
        check_control(self.options, self.topics.control)
        written = self.topics.written_topics(enriches=self.config.enrichment.requested_tasks(self.embedder) is not None)
        # The input topics count as outputs too, because misrouted records are forwarded within them.
        self._follow_topics(self.topics.read_topics_by_flag(), (*written, *self.inputs))
        if unknown := [str(skip) for skip in self.config.skips if skip.partition >= self.counts[skip.topic]]:
            raise UsageError(f"--skip {', '.join(unknown)}: the partition does not exist")
        self.log_time_topics = topics_with_append_time(self.options, self.inputs)

    def _join(self, store: CheckpointStore | None) -> None:
        self.checkpoints = None
        if store is not None:
            self.checkpoints = Checkpoints(
                store,
                self.directory,
                self.topics.memory,
                self.name,
                interval_s=60 * self.run_settings.checkpoint_minutes,
                generations=self.run_settings.checkpoint_keep,
                open_partitions=self.source.partitions,
            )
            self._stack.enter_context(self.checkpoints.running())
        self._restore = None if self.checkpoints is None else self.checkpoints.restore
        self._join_group(
            self.directory,
            partial(initial_progress, self.options, self.topics, self.ends, self.directory, self.name),
            restore=self._restore,
            needs_rate_history=lambda: self.decisions.first_decision_ms(("quota",)) is not None,
            instance_id=self.run_settings.instance_id,
            own=self.run_settings.owned(),
            settings=self._shared_settings,
            checks_credentials=self.authoriser.needs_credentials(),
        )

    def _follow_other_members(self) -> None:
        if self.run_settings.standby:
            standby = Standby(
                self.options, self.name, self.topics.memory, self.directory, self.source, self.membership,
                self.run_settings.standby, restore=self._restore,
            )  # fmt: skip
            self._stack.enter_context(standby.running())
        reader = self._stack.enter_context(TopicReader(self.options, {"group.id": self.name}))
        own, memory = Holder.here(self.state_dir), self.topics.memory

        def others() -> frozenset[int]:
            found = holders(reader, self.topics.queries, self.directory.existing_numbers()).items()
            # A holder with our directory is an earlier process of this member.
            theirs = ((number, one) for number, one in found if (one.host, one.directory) != (own.host, own.directory))
            return frozenset(number for number, holder in theirs if not holder.released)

        released = ReleasedPartitions(
            self.directory,
            others=others,
            ours=lambda: self.membership.expected,
            standbys=self.source.standbys,
            is_recoverable=lambda number: self.checkpoints is not None or reader.span(memory, number)[0] == 0,
            stopping=self.stopping,
        )
        self._stack.enter_context(released.running())

    def _rules(self) -> Rules:
        replies = {topic: self.counts[topic] for topic in (self.topics.responses, *self.topics.replies)}
        rules = self.settings.rules(
            self.embedder, self.topics.queries, replies, input_ends=False, decisions=self.decisions
        )
        wanted, audited = self.config.enrichment.requested_tasks(self.embedder), self.topics.audit is not None
        return replace(rules, skips=self.config.skips, enrichment=wanted, audited=audited)

    def _timestamp_error(self) -> Exception | None:
        """Return an error if credentials are required, but producers choose timestamps. A check at the start is not
        enough, because the first API key may be created later."""
        topics = [topic for topic in self.inputs if topic not in self.log_time_topics]
        return producer_time_error(topics) if topics and self.authoriser.needs_credentials() else None


class MainKafkaFlow(KafkaFlow):
    _store: CheckpointStore | None = None

    def _prepare(self) -> None:
        # Opened only once, so that an outage of the store does not prevent the member from joining again.
        if (url := self._config.run.checkpoint_to) is not None:
            self._store = CheckpointStore.open(url, self._stopping, create=True)

    def _open_member(self, stack: ExitStack) -> MainFlowMember:
        return MainFlowMember(self._config, stack, self._stopping, self._store)


def get_flow(config_file: str) -> "Dataflow":
    """Return the main dataflow for `python -m bytewax.run 'recallflow.flows.kafka:get_flow("recallflow.toml")'`.

    The member joins the group in this call, and leaves it at interpreter exit. If it loses its membership, the process
    ends, and a supervisor must restart it."""
    from recallflow.flows.on_bytewax import dataflow

    config, _ = read_config({}, os.environ, Path(config_file))
    stack = ExitStack()
    stack.enter_context(engine_process())
    recipe = stack.enter_context(MainKafkaFlow(config).joined())

    def leave() -> None:
        error: BaseException | None = getattr(sys, "last_value", None)  # a failed run must not hand over partitions
        stack.__exit__(None if error is None else type(error), error, None)

    atexit.register(leave)
    return dataflow(recipe)
