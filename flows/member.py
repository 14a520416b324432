"""The base of both flows on Kafka: a member of a consumer group, and the loop that joins the group again."""

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from threading import Event
from types import MappingProxyType

from confluent_kafka.admin import AdminClient
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from recallflow.connectors.kafka.admin import describe_required_topics, describe_topics
from recallflow.connectors.kafka.cluster import EndOffsetPoller, OutageMonitor, TopicWatcher, polling
from recallflow.connectors.kafka.control import LEFT_OUT, ControlTable
from recallflow.connectors.kafka.input_scheduler import REMEDIES, MemoryEnds, Remedies
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.partition import PartitionProgress
from recallflow.connectors.kafka.sender import DeliverySink, EarlierOutputs, OutputSender
from recallflow.connectors.kafka.topic_reader import await_brokers
from recallflow.connectors.probes import Probes
from recallflow.control import ControlHistory
from recallflow.errors import MembershipLost, StorageError
from recallflow.flows.config import Config
from recallflow.flows.engine_metrics import (
    availability_metrics,
    counter,
    gauge,
    labelled_gauge,
    queued_records,
    registry_of,
)
from recallflow.flows.gc_policy import SWITCH_INTERVAL_S, engine_process
from recallflow.flows.ownership import Ownership
from recallflow.flows.partition_copies import Restore
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.router import deployment_name, stop_on_signals
from recallflow.flows.runner import Recipe, run_loop
from recallflow.flows.topic_checks import TopicRegistry, check_configs
from recallflow.operators.async_call import Completions
from recallflow.owner import ranges_of
from recallflow.process import CloseErrors, backoffs_s
from recallflow.state.description import hold
from recallflow.state.directory import StateDirectory
from recallflow.state.files import is_temporary

REJOIN_PAUSE_S, REJOIN_PAUSE_MAX_S = 1.0, 60.0  # after I/O errors

_log = logging.getLogger(__name__)


def run(recipe: Recipe) -> None:
    """Execute a recipe until its source ends, on Bytewax if it is installed. Raise the error that stopped it."""
    with engine_process():
        try:
            from recallflow.flows.on_bytewax import run_on_bytewax
        except ImportError as error:
            if (error.name or "bytewax").partition(".")[0] != "bytewax":
                raise
            if not isinstance(error, ModuleNotFoundError):
                _log.warning("Bytewax is installed but cannot be loaded (%s): running without it", error)
            run_loop(recipe)
        else:
            run_on_bytewax(recipe)


class GroupMember:
    """One membership in a consumer group, with its components. A subclass creates these in the order of their
    dependencies, and the stack closes them in reverse order."""

    remedies: Remedies = REMEDIES  # remedies for deleted records, in messages
    spans: RecordSpans

    def __init__(self, config: Config, stack: ExitStack, stopping: Event, inputs: tuple[str, str], topic: str) -> None:
        """Start without components. The first of the `inputs` is read in order, the second in any order. The deployment
        is named after `topic`, unless its name is configured."""
        self.config, self.options, self.topics, self.run_settings = config, config.kafka, config.topics, config.run
        self.state_dir, self.name = config.named_state_dir(), deployment_name(config, topic)
        self.inputs, self.stopping, self.closing, self._stack = inputs, stopping, CloseErrors(), stack
        self.earlier_outputs = EarlierOutputs()

    def failure_checks(self) -> tuple[Callable[[], Exception | None], ...]:
        return (self.table.failure, self.watch.failure, self.ownership.failure, self.membership.failure)

    def failure(self) -> Exception | None:
        return next((error for check in self.failure_checks() if (error := check()) is not None), None)

    def recipe(self) -> Recipe:
        raise NotImplementedError

    def start(self) -> None:
        stop_on_signals(self.source)
        self._stack.enter_context(polling(self.watch, self.ends))
        sys.setswitchinterval(SWITCH_INTERVAL_S)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Join the group, and leave it after the dataflow has ended without an error."""
        self.membership.start()
        try:
            yield
        finally:
            self.ownership.end()
        self.closing.check()
        self.membership.release()

    def obstacle(self) -> str:
        """Return why the member is not ready; empty if it is."""
        if not self.source.ready():
            return "stopping" if self.source.stopping.is_set() else "starting"
        if not self.outage_monitor.connected:
            return "Kafka is unavailable"
        if self.membership.member_id is None:
            return "not a member of the deployment yet"
        opening = self.membership.expected - self.source.partitions()
        return f"partitions {ranges_of(opening)} are being opened" if opening else ""

    def metrics(self) -> Iterator[Metric]:
        yield from input_metrics(self.source)
        yield from self.spans.stages.collect()
        added, left_out = self.watch.added, self.table.left_out
        yield counter("added_partitions", "Partitions added to topics since the start", "topic", added, added)
        yield gauge("connected", "1 while the brokers can be reached", int(self.outage_monitor.connected))
        yield counter("control_events_left_out", "Ignored control events", "reason", left_out, LEFT_OUT)

    def _open_table(self, decisions: ControlHistory) -> None:
        secret = self.config.auth.control_secret
        table = ControlTable(self.options, self.topics.control, history=decisions, secret=secret)
        self.table = self._stack.enter_context(closing(table))

    def _follow_topics(self, read: Mapping[str, str], outputs: Sequence[str]) -> None:
        """Look up topics, compare their ids with earlier runs, and track the end offsets of outputs. `read` has the
        topics to read by command-line flag."""
        self.outputs = [*dict.fromkeys(outputs)]
        topics = [*dict.fromkeys((*read.values(), *self.outputs))]
        found = describe_required_topics(self.options, topics)
        self.counts = {topic: description.partitions for topic, description in found.items()}
        self.watch = TopicWatcher(partial(describe_topics, AdminClient(self.options.admin()), topics), found)
        self.watch.add_listeners(TopicRegistry.open(self.state_dir, found, read).check, self.table.grow)
        self.ends = EndOffsetPoller(self.options, {topic: self.counts[topic] for topic in self.outputs})
        self.ends.ask()

    def _open_source(
        self,
        completions: Completions | None,
        memory_ends: MemoryEnds | None = None,
        queries_in_flight_max: int | None = None,
    ) -> None:
        """Open the source, and the monitor that counts the unapplied records after an outage."""
        self.source = OwnedSource(
            self.options,
            *self.inputs,
            sync_s=self.config.engine.sync_ms / 1000,
            tails=self.ends.latest,
            completions=list if completions is None else completions.pop_all,
            wake=None if completions is None else completions.wake,
            failure=self.failure,
            stopping=self.stopping,
            closing=self.closing,
            queries_in_flight_max=queries_in_flight_max,
            remedies=self.remedies,
            memory_ends=memory_ends,
            settle=lambda: self.sink.settle(),
        )
        self._stack.callback(self.source.close)
        catch_up, has_begun = self.source.catch_up, lambda: bool(self.source.partitions())
        self.outage_monitor = OutageMonitor(self.options, self.inputs[0], catch_up, has_begun)
        self._stack.callback(self.outage_monitor.close)

    def _join_group(
        self,
        directory: StateDirectory | None,
        initial_progress: Callable[[Collection[int]], dict[int, PartitionProgress]],
        *,
        restore: Restore | None = None,
        round_robin_by_tenant: bool = True,
        needs_rate_history: Callable[[], bool] = lambda: False,
        instance_id: str | None = None,
        own: frozenset[int] | None = None,
        settings: Mapping[str, object] = MappingProxyType({}),
        checks_credentials: bool = False,
    ) -> None:
        """Open ownership, membership and sink. Arguments: see `Ownership`, `Membership` and `check_configs`."""
        self.ownership = Ownership(
            self.options,
            self.inputs,
            directory,
            self.source,
            self.earlier_outputs,
            self.ends,
            lambda progress: self.membership.commit(progress),
            lambda numbers: self.membership.is_committed(numbers),
            initial_progress=initial_progress,
            deployment=self.name,
            restore=restore,
            remedies=self.remedies,
            round_robin_by_tenant=round_robin_by_tenant,
            needs_rate_history=needs_rate_history,
            give_up_unanswered=self.run_settings.give_up_unanswered,
            accept_repeats=self.run_settings.accept_repeats,
        )
        self.membership = Membership(
            self.options,
            self.name,
            self.inputs,
            self.ownership,
            self.state_dir,
            self.run_settings.session_timeout_s,
            instance_id=instance_id,
            own=own,
            initial_commit=self.ownership.initial_commit,
            settings=settings,
        )
        self._stack.callback(self.membership.close)
        self.max_bytes = check_configs(self.options, self.inputs, self.outputs, checks_credentials=checks_credentials)
        outage_s, check_lease = self.membership.outage_s, self.membership.check
        sender = OutputSender(self.options, self.max_bytes, check_lease, outage_s, self.stopping)
        self.sink = DeliverySink(sender, self.earlier_outputs, self.ownership.commit_barriers, self.closing)


def input_metrics(source: OwnedSource) -> Iterator[Metric]:
    yield counter("records", "Records read from the input topics", "topic", source.counters.emitted, source.topics)
    yield gauge("in_flight_records", "Records read and not completed", source.counters.in_flight())
    readers = source.readers()
    lag = {(topic, str(number)): records for reader in readers for (topic, number), records in reader.lag().items()}
    help_text = "Records between the reader and the end of the partition"
    yield labelled_gauge("consumer_lag_records", help_text, "topic partition", lag)
    queued = dict.fromkeys(source.topics, 0)
    for reader in readers:
        for (topic, _), lane in reader.lanes.items():
            queued[topic] += len(lane.queue)
    yield queued_records(queued)
    retried = sum(reader.retried for reader in readers)
    yield CounterMetricFamily("recallflow_retried_reads", "Failed reads that were retried", retried)
    help_text = "Time of the last barrier of the partition that is furthest behind"
    yield gauge("snapshot_timestamp_seconds", help_text, source.oldest_barrier_s())


class FlowMetrics(Collector):
    """A collector of the metrics of a flow's current member. Without one there are only a few."""

    def __init__(self) -> None:
        self.member: GroupMember | None = None
        self.registry = registry_of(self)

    def obstacle(self) -> str:
        """Return why the flow is not ready; empty if it is."""
        return "starting" if self.member is None else self.member.obstacle()

    def collect(self) -> Iterator[Metric]:
        yield from availability_metrics(self.obstacle())
        if self.member is not None:
            yield from self.member.metrics()


class KafkaFlow:
    """A flow on Kafka in this process: one member of a deployment at a time."""

    def __init__(self, config: Config) -> None:
        """Raise UsageError without a state directory."""
        self._config, self._metrics = config, FlowMetrics()
        self._state_dir, self._stopping = config.named_state_dir(), Event()
        self._has_begun = False

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. Then finish the current batch, sync the state, and release the partitions. A
        second signal ends the process at once. A member joins again after its session expired, or after a transient I/O
        error of its state. Raise any other error that stopped the flow."""
        pauses_s = backoffs_s(REJOIN_PAUSE_S, REJOIN_PAUSE_MAX_S)
        with self._process():
            while not self._stopping.is_set():
                try:
                    self._run()
                except MembershipLost as error:
                    _log.warning("%s; joining again", error)
                    await_brokers(self._config.kafka, self._stopping)
                except (StorageError, OSError) as error:
                    if not (self._has_begun and is_temporary(error)):
                        raise
                    pause_s = next(pauses_s)
                    _log.error("%s; joining again in %g s", error, pause_s)
                    self._stopping.wait(pause_s)
                else:
                    return

    @contextmanager
    def joined(self) -> Iterator[Recipe]:
        """Join once, and yield the recipe to execute."""
        with self._process(), self._joined() as recipe:
            yield recipe

    def _run(self) -> None:
        with self._joined() as recipe:
            run(recipe)

    @contextmanager
    def _process(self) -> Iterator[None]:
        """Serve metrics and lock the state directory within the block, across memberships."""
        settings, metrics = self._config.run, self._metrics
        with ExitStack() as stack:
            if (port := settings.metrics_port) is not None:
                stack.enter_context(Probes(settings.metrics_host, port, metrics.registry, metrics.obstacle))
            stack.enter_context(hold(self._state_dir, create=True))
            self._prepare()
            yield

    @contextmanager
    def _joined(self) -> Iterator[Recipe]:
        with ExitStack() as stack:
            member = self._open_member(stack)
            self._metrics.member = member
            recipe = member.recipe()
            member.start()
            with member.joined():
                self._has_begun = True
                yield recipe

    def _prepare(self) -> None:
        """Prepare the process, after it locked the state directory."""
        raise NotImplementedError

    def _open_member(self, stack: ExitStack) -> GroupMember:
        raise NotImplementedError
