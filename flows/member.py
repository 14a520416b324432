"""Parts that members of both Kafka flows share: control table, topics, source, membership, and sink."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from threading import Event
from types import MappingProxyType

from recallflow.connectors.kafka.admin import TopicDescriber
from recallflow.connectors.kafka.cluster import BrokerConnection, CatchUp, Ends, Watch
from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.kafka.hub import WAYS, MemoryEnds, Remedies
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.partition import PartitionProgress
from recallflow.connectors.kafka.sender import DeliverySink, EarlierOutputs, OutputSender
from recallflow.control import ControlHistory
from recallflow.flows.config import Config
from recallflow.flows.ownership import Ownership, StateFolders
from recallflow.flows.partition_copies import Restore
from recallflow.flows.router import deployment_name
from recallflow.flows.topic_checks import TopicRegistry, ask_sizes
from recallflow.operators.async_call import Completions
from recallflow.process import Closing


class GroupMember:
    """The parts of one group membership, in the order of their creation. The stack closes them in reverse order."""

    ways: Remedies = WAYS  # remedies for deleted records, in messages

    def __init__(
        self, config: Config, stack: ExitStack, stopping: Event, inputs: tuple[str, str], named_after: str
    ) -> None:
        self.config, self.options, self.topics, self.chosen = config, config.kafka, config.topics, config.run
        self.state_dir, self.name = config.named_state_dir(), deployment_name(config, named_after)
        self.inputs, self.stopping, self.closing, self._stack = inputs, stopping, Closing(), stack
        self.sent = EarlierOutputs()

    def failures(self) -> tuple[Callable[[], Exception | None], ...]:
        """Return the checks of all parts that the dataflow needs."""
        return (self.table.failure, self.watch.failure, self.ownership.failure, self.membership.failure)

    def failure(self) -> Exception | None:
        """Return the first error of a part that the dataflow needs."""
        return next((error for check in self.failures() if (error := check()) is not None), None)

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

    # ------------------------------------------------------------------ the parts

    def _open_table(self, decisions: ControlHistory) -> None:
        secret = self.config.auth.control_secret
        table = ControlTable(self.options, self.topics.control, history=decisions, secret=secret)
        self.table = self._stack.enter_context(closing(table))

    def _follow_topics(self, read: Mapping[str, str], outputs: Sequence[str]) -> None:
        """Look up the topics (`read`: by flag), compare their ids with earlier runs, and track the ends of outputs."""
        self.outputs = [*dict.fromkeys(outputs)]
        ask = TopicDescriber(self.options, [*dict.fromkeys((*read.values(), *self.outputs))])
        there = ask.first()
        self.counts = {topic: described.partitions for topic, described in there.items()}
        self.watch = Watch(ask, there)
        self.watch.call(TopicRegistry.open(self.state_dir, there, read).check, self.table.grow)
        self.ends = Ends(self.options, {topic: self.counts[topic] for topic in self.outputs})
        self.ends.ask()
        self._stack.enter_context(self.ends.running())

    def _open_source(
        self,
        completions: Completions | None,
        memory_ends: MemoryEnds | None = None,
        queries_in_flight_max: int | None = None,
    ) -> None:
        """Open the source, and the connection that counts the records to catch up with after an outage."""
        catch_up = CatchUp()
        self.source = OwnedSource(
            self.options,
            *self.inputs,
            sync_s=self.config.engine.sync_ms / 1000,
            tails=self.ends.latest,
            catch_up=catch_up,
            finished=list if completions is None else completions.pop_all,
            wake=None if completions is None else completions.wake,
            failure=self.failure,
            stopping=self.stopping,
            closing=self.closing,
            queries_in_flight_max=queries_in_flight_max,
            ways=self.ways,
            memory_ends=memory_ends,
            settle=lambda: self.sink.settle(),
        )
        self._stack.callback(self.source.close)
        self.connection = BrokerConnection(
            self.options, self.inputs[0], catch_up, lambda: bool(self.source.partitions())
        )
        self._stack.callback(self.connection.close)

    def _own_partitions(
        self,
        folders: StateFolders | None,
        first_places: Callable[[Collection[int]], dict[int, PartitionProgress]],
        *,
        restore: Restore | None = None,
        by_tenants: bool = True,
        counts: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ownership = Ownership(
            self.options,
            self.inputs,
            folders,
            self.source,
            self.sent,
            self.ends,
            lambda places: self.membership.commit(places),
            lambda numbers: self.membership.is_committed(numbers),
            first_places=first_places,
            deployment=self.name,
            restore=restore,
            ways=self.ways,
            by_tenants=by_tenants,
            counts=counts,
            give_up_unanswered=self.chosen.give_up_unanswered,
            accept_repeats=self.chosen.accept_repeats,
        )

    def _open_membership(
        self,
        instance_id: str | None = None,
        own: frozenset[int] | None = None,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.membership = Membership(
            self.options,
            self.name,
            self.inputs,
            self.ownership,
            self.state_dir,
            self.chosen.session_timeout_s,
            instance_id=instance_id,
            own=own,
            begun=self.ownership.begun,
            settings=settings,
        )
        self._stack.callback(self.membership.close)

    def _open_sink(self, *, judged: bool = False) -> None:
        self.most_bytes = ask_sizes(self.options, self.inputs, self.outputs, judged=judged)
        membership = self.membership
        sender = OutputSender(self.options, self.most_bytes, membership.check, membership.outage_s, self.stopping)
        self.sink = DeliverySink(sender, self.sent, self.ownership.marked, self.closing)
