"""The main dataflow against Kafka: one member of a deployment, for the partitions that it owns at the time.

    memory topic ──┐
                   ├─► decode ─► authorise ─► prepare ─► state ────────► route ─► output topics
    query topic ───┘                 ▲                   by partition
    control topic ─► decisions ──────┘

`MainFlow` has the steps. `MainFlowMember` opens the parts that they need, for the time of one group membership.
`MainKafkaFlow` runs in the process, and joins again after a membership was lost."""

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
from recallflow.flows.embedded import opener
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
from recallflow.flows.member import FlowMetrics, GroupMember, KafkaFlow
from recallflow.flows.models import SPENDING, open_embedder, open_question_models
from recallflow.flows.partition_copies import RESULTS, Checkpoints, ReleasedPartitions, Standby
from recallflow.flows.recipe import BatchStep, KeyedStep, Recipe, RecipeSink, RecipeSource
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.router import REASONS, OwningPartitions, Router, routing
from recallflow.flows.settings import open_at_rest
from recallflow.flows.topic_checks import TopicRegistry, check_control, deployed, judged_by_senders, stamped_by_log
from recallflow.operators.async_call import CallCompletion
from recallflow.operators.authorise import VERDICT_KINDS, Authoriser
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
        """Parse records, and detect those outside of their owner's partition."""
        collect_due_garbage()  # between batches, when few objects are alive
        self.began_s = time.perf_counter()
        return [self.decode_record(one) if isinstance(one, Record) else one for one in batch]

    def authorise(self, batch: list[Item | CallCompletion | Signal]) -> list[Item | CallCompletion | Signal]:
        """Refuse items whose sender lacks the right or exceeds a quota."""
        return [one if isinstance(one, CallCompletion | Signal) else self.authorise_item(one) for one in batch]

    def prepare(self, batch: list[Item | CallCompletion | Signal]) -> list[tuple[str, ToState]]:
        """Analyse and embed texts. Return a batch of items per state partition. Signals stay before or after it."""
        finished: list[tuple[str, ToState]] = []
        before: list[tuple[str, ToState]] = []
        after: list[tuple[str, ToState]] = []
        items: list[Item] = []
        for one in batch:
            if isinstance(one, CallCompletion):
                finished.append((one.key, one))
            elif isinstance(one, Signal):
                (after if items else before).append((key_of_partition(one.partition), one))
            else:
                items.append(one)
        prepared = prepare(self.embedder, items)
        self.spans.begin(prepared, self.began_s)
        return [*finished, *before, *by_partition(prepared, lambda item: item.record.position.partition), *after]


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
        first, given = self.source.first_offsets, self.source.delivered_before
        self.output_counter = OutputCounter(self.topics.queries, first, given, self.spans.trace_id)

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
        chosen = self.config.auth, self.spans.headers, self.config.run.response_format, self.config.response_schema_id()
        router = Router(self.topics, self.counts, self.most_bytes, *chosen)
        rates = Rates(self.decisions, self.topics.queries, self.stamped)

        def authorise(item: Item) -> Item:
            return item if isinstance(item, Misrouted) else rates.judge(self.authoriser.authorise(item))

        def missing(number: int) -> str:
            return self.source.catch_up.describe(f"{self.topics.memory}:{number}")

        steps = MainFlow(
            decode_record=lambda record: self.owning_partitions.judge(decode(record, self.config.skips)),
            authorise_item=authorise,
            embedder=self.embedder,
            open_state=opener(self.directory, self.embedder, self._rules(), self.models, missing),
            route_outputs=routing(router, self.source, self.output_counter.observe, self.spans),
            spans=self.spans,
        )
        return steps.recipe(self.source, self.sink)

    def failures(self) -> tuple[Callable[[], Exception | None], ...]:
        table, watch, *others = super().failures()
        return (table, watch, lambda: self.directory.storage_failure, self._forgeable_times, *others)

    # ------------------------------------------------------------------ the parts

    def _open_state(self) -> None:
        config, self.decisions = self.config, ControlHistory()
        opened = open_embedder(config.engine, config.models.embedding, "question", self.decisions, self.state_dir)
        self.embedder = self._stack.enter_context(opened)
        TopicRegistry.check_names(self.state_dir, self.topics.read_for())  # before files are created
        self._shared = config.engine.shared_settings(self.embedder)
        partitions = deployed(self.options, self.name, self.topics, self.state_dir, self._shared)
        self.settings = replace(config.engine, partitions=partitions)
        self.owning_partitions = OwningPartitions(partitions)
        fingerprint, at_rest = self.settings.fingerprint(self.embedder), open_at_rest(config.encryption)
        directory = StateDirectory.open(self.state_dir, fingerprint, self.settings.cache_bytes, at_rest=at_rest)
        self.directory = self._stack.enter_context(directory)

    def _open_control(self) -> None:
        auth, self._secrets = self.config.auth, dict[str, bytes]()  # `follow_token_keys` fills it
        self.authoriser = Authoriser(self.decisions, trust_of(auth, self._secrets))
        self._open_table(self.decisions)

    def _open_models(self) -> None:
        """Open the models for queries. Their calls belong to the spans of records."""
        self.spans = RecordSpans(Stages(self.inputs), waits=self.topics.queries)
        spending_file, around = self.state_dir / SPENDING, self.spans.within
        models = self.config.models
        opened = open_question_models(self.settings, models, self.embedder, self.decisions, spending_file, around)
        self.models, self.meters = self._stack.enter_context(opened)

    def _check_topics(self) -> None:
        check_control(self.options, self.topics.control)
        written = self.topics.written(enriches=self.config.enrichment.wanted(self.embedder) is not None)
        # Misrouted records are written to the input topics again.
        self._follow_topics(self.topics.read_for(), (*written, *self.inputs))
        if unknown := [str(skip) for skip in self.config.skips if skip.partition >= self.counts[skip.topic]]:
            raise UsageError(f"--skip {', '.join(unknown)}: the partition does not exist")
        self.stamped = stamped_by_log(self.options, self.inputs)

    def _join(self, store: CheckpointStore | None) -> None:
        self.checkpoints = None
        if store is not None:
            self.checkpoints = Checkpoints(
                store,
                self.directory,
                self.topics.memory,
                self.name,
                every_s=60 * self.chosen.checkpoint_minutes,
                generations=self.chosen.checkpoint_keep,
                owned=self.source.partitions,
            )
            self._stack.enter_context(self.checkpoints.running())
        self._restore = None if self.checkpoints is None else self.checkpoints.restore
        self._join_group(
            self.directory,
            partial(initial_progress, self.options, self.topics, self.ends, self.directory, self.name),
            restore=self._restore,
            counts=lambda: self.decisions.first_decision_ms(("quota",)) is not None,
            instance_id=self.chosen.instance_id,
            own=self.chosen.owned(),
            settings=self._shared,
            judged=self.authoriser.needs_credentials(),
        )

    def _follow_other_members(self) -> None:
        if self.chosen.standby:
            standby = Standby(
                self.options,
                self.name,
                self.topics.memory,
                self.directory,
                self.source,
                self.membership,
                self.chosen.standby,
                restore=self._restore,
            )
            self._stack.enter_context(standby.running())
        reader = self._stack.enter_context(TopicReader(self.options, {"group.id": self.name}))
        me = Holder.here(self.state_dir)

        def others() -> frozenset[int]:
            found = holders(reader, self.topics.queries, self.directory.existing_numbers())
            own = me.host, me.directory  # processes of the same directory follow each other
            theirs = {number: at for number, at in found.items() if (at.host, at.directory) != own}
            return frozenset(number for number, holder in theirs.items() if not holder.released)

        def is_recoverable(number: int) -> bool:
            return self.checkpoints is not None or reader.span(self.topics.memory, number)[0] == 0

        released = ReleasedPartitions(
            self.directory,
            others=others,
            ours=lambda: self.membership.expected,
            standbys=self.source.standbys,
            is_recoverable=is_recoverable,
            stopping=self.stopping,
        )
        self._stack.enter_context(released.running())

    # ------------------------------------------------------------------ helpers

    def _rules(self) -> Rules:
        replies = {topic: self.counts[topic] for topic in (self.topics.responses, *self.topics.replies)}
        rules = self.settings.rules(
            self.embedder, self.topics.queries, replies, input_ends=False, decisions=self.decisions
        )
        wanted, audited = self.config.enrichment.wanted(self.embedder), self.topics.audit is not None
        return replace(rules, skips=self.config.skips, wanted=wanted, audited=audited)

    def _forgeable_times(self) -> Exception | None:
        """Return an error if credentials are required, and producers choose timestamps. A first key may come at any
        time."""
        unstamped = [topic for topic in self.inputs if topic not in self.stamped]
        return judged_by_senders(unstamped) if unstamped and self.authoriser.needs_credentials() else None


class MainFlowMetrics(FlowMetrics[MainFlowMember]):
    def __init__(self, serve_while_catching_up: bool = False) -> None:
        super().__init__()
        self._serve_while_catching_up = serve_while_catching_up

    def _obstacle_of(self, member: MainFlowMember) -> str:
        if obstacle := super()._obstacle_of(member):
            return obstacle
        missing = member.source.catch_up.describe()
        return f"catching up, {missing}" if missing and not self._serve_while_catching_up else ""

    def _metrics_of(self, member: MainFlowMember) -> Iterator[Metric]:
        yield from output_metrics(member.output_counter)
        yield gauge("waiting_queries", "Parked queries of this run", member.output_counter.waiting)
        to_go = member.source.catch_up.remaining() or 0
        yield gauge("catching_up_records", "Records left to apply since the start or the last outage", to_go)
        misrouted = "Records outside of their owner's partition, which were forwarded to it"
        yield counter("misrouted_records", misrouted, "reason", member.owning_partitions.counts, REASONS)
        late = "Decisions that arrived after records they apply to"
        yield counter("late_decisions", late, "kind", member.authoriser.late, VERDICT_KINDS)
        results = {} if member.checkpoints is None else member.checkpoints.results
        yield counter("checkpoints", "Checkpoints of partitions by result", "result", results, RESULTS)
        yield from state_metrics(member.directory)
        yield from model_metrics(member.meters)


class MainKafkaFlow(KafkaFlow[MainFlowMember]):
    def __init__(self, config: Config) -> None:
        """Raise UsageError without a state directory."""
        super().__init__(config, MainFlowMetrics(config.run.serve_while_catching_up))
        self._store: CheckpointStore | None = None

    def _prepare(self) -> None:
        # The store is opened once, so that its outage does not prevent the member from joining again.
        if (url := self._config.run.checkpoint_to) is not None:
            self._store = CheckpointStore.open(url, self._stopping, create=True)

    def _open_member(self, stack: ExitStack) -> MainFlowMember:
        return MainFlowMember(self._config, stack, self._stopping, self._store)


def get_flow(config_file: str) -> "Dataflow":
    """Return the main dataflow for `python -m bytewax.run 'recallflow.flows.kafka:get_flow("recallflow.toml")'`.

    The member joins here and leaves at interpreter exit. It does not join again: a supervisor restarts it."""
    from recallflow.flows.on_bytewax import dataflow

    config, _ = read_config({}, os.environ, Path(config_file))
    stack = ExitStack()
    stack.enter_context(engine_process())
    recipe = stack.enter_context(MainKafkaFlow(config).joined())

    def leave() -> None:
        error: BaseException | None = getattr(sys, "last_value", None)  # after a failed run, nothing is handed over
        stack.__exit__(None if error is None else type(error), error, None)

    atexit.register(leave)
    return dataflow(recipe)
