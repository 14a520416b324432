"""The enrichment flow against Kafka: requests in, what models say of them out."""

import logging
import sys
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig

from recallflow.connectors.kafka.admin import TopicAsker
from recallflow.connectors.kafka.catch_up import CatchUp
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.connection import Connection
from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.kafka.deployment import Deployment
from recallflow.connectors.kafka.hub import Ways
from recallflow.connectors.kafka.source import KafkaSource
from recallflow.connectors.kafka.watch import Watch
from recallflow.connectors.probes import Probes
from recallflow.errors import StateError, UsageError
from recallflow.flows.begin import Begin
from recallflow.flows.config import Config
from recallflow.flows.cycles import SWITCH_S
from recallflow.flows.dataflow import recovery_store, run_dataflow
from recallflow.flows.enrich_begin import begin_enrichment, is_answered, read_again
from recallflow.flows.enrich_metrics import EnrichmentMetrics, EnrichmentRunning, EnrichmentTally
from recallflow.flows.enrich_models import EnrichmentModels, open_models
from recallflow.flows.enrich_steps import FLOW_ID, Reader, UnderWay, build
from recallflow.flows.journeys import Journeys
from recallflow.flows.known import KnownTopics
from recallflow.flows.recovery import committed, has_store
from recallflow.flows.repeats import check_results
from recallflow.flows.router import Router
from recallflow.flows.serving import (
    deployment_name,
    deployment_of,
    hold_in_turn,
    routing,
    sink_of,
    source_ends,
    stop_on_signals,
)
from recallflow.flows.stages import Stages
from recallflow.operators.async_call import Completions, Runtime
from recallflow.records import Position
from recallflow.state.directory import DESCRIPTION

PENDING_TO_CAPACITY = 4  # requests that are read and not answered, for each call that may be under way
NEW_DIRECTORY = "start with another --state-dir, which goes on with what is left"
BATCHES_STEP, CALLS_STEP, SINK_STEP = (f"{FLOW_ID}.{step}" for step in ("batches.batch", "ask.call", "records"))

_log = logging.getLogger(__name__)


class EnrichFlow:
    """A deployment of the enrichment flow."""

    def __init__(self, config: Config) -> None:
        """Raises UsageError where no state directory is named, or nothing is to be asked."""
        self.config, self.topics, self.state_dir = config, config.topics, config.named_state_dir()

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT: what is under way then is asked again after the next start. A second signal
        ends the process at once. Raises what stopped the flow otherwise."""
        with ExitStack() as stack:
            metrics = EnrichmentMetrics()
            if (port := self.config.run.metrics_port) is not None:
                stack.enter_context(Probes(self.config.run.metrics_host, port, metrics.registry, metrics.obstacle))
            runtime = stack.enter_context(Runtime(Completions(), self.config.llm.capacity, timeout_s=None))
            deployment = stack.enter_context(closing(deployment_of(self.config, self.topics.enrichment)))
            stack.enter_context(hold_in_turn(self.state_dir, deployment, wait=self.config.run.wait))
            deployment.await_turn()
            if (self.state_dir / DESCRIPTION).exists():
                raise UsageError(f"{self.state_dir} holds memories: give the enrichment flow a --state-dir of its own")
            secret = self.config.auth.control_secret
            opened = ControlTable(self.config.kafka, self.topics.control, secret=secret)
            table = stack.enter_context(closing(opened))
            models = stack.enter_context(open_models(self.config, runtime, table.history))
            begin, recovery = self._begin()
            deployment.join()
            _log.info("deployment %s is ours", deployment_name(self.config, self.topics.enrichment))
            parts = Closing()
            running, known = self._running(stack, deployment, table, begin, runtime, models, parts)
            metrics.watch(running)
            flow = self._flow(running, known, begin, deployment, runtime, models, parts)
            stop_on_signals(running.source)
            stack.enter_context(running.watch.running())
            sys.setswitchinterval(SWITCH_S)
            run_dataflow(flow, self.config.engine, 1, recovery)
            parts.check()
            _log.info("%s", running.tally.describe())
            deployment.release()

    def _begin(self) -> tuple[Begin, RecoveryConfig]:
        """What was done when the state directory was new, and the recovery store."""
        begin = Begin.read(self.state_dir)
        if begin is not None and has_store(self.state_dir):
            check_results(self.state_dir, self.config.kafka, self.topics.results, SINK_STEP, begin)
        else:
            begin = None  # without its store a directory is a new one
        recovery = recovery_store(self.state_dir)
        if begin is None:
            begin = begin_enrichment(self.config.kafka, self.topics)
            begin.write(self.state_dir)
        return begin, recovery

    def _running(
        self,
        stack: ExitStack,
        deployment: Deployment,
        table: ControlTable,
        begin: Begin,
        runtime: Runtime,
        models: EnrichmentModels,
        parts: Closing,
    ) -> tuple[EnrichmentRunning, KnownTopics]:
        """The source with all that watches over it, and what is known of the topics."""
        options, topics = self.config.kafka, self.topics
        read_for = topics.enrichment_read_for()
        ask = TopicAsker(options, [*dict.fromkeys((*read_for.values(), *topics.enrichment_written()))])
        found = ask.first()
        ends = partial(source_ends, options, (topics.enrichment, topics.results))
        known = KnownTopics.open(self.state_dir, found, read_for, topics.enrichment_written(), ends)
        catch_up, watch = CatchUp(), Watch(ask, found)
        connection = stack.enter_context(closing(Connection(options, topics.enrichment, catch_up)))
        # Results come before requests, as queries do before memories: what is found out waits for nobody.
        source = KafkaSource(
            options,
            topics.enrichment,
            topics.results,
            parts=known.parts,
            sent=begin.sent,
            catch_up=catch_up,
            failure=lambda: deployment.failure() or table.failure() or watch.failure(),
            in_flight_max=PENDING_TO_CAPACITY * self.config.llm.capacity,
            ways=Ways(NEW_DIRECTORY, NEW_DIRECTORY),
            closing=parts,
            wake=runtime.completions.wake,
        )
        stack.callback(source.close)
        source.progress.gave(topics.enrichment, len(self._pending()))
        watch.call(known.check, table.grow, source.grow)
        tally = EnrichmentTally()
        journeys = Journeys(Stages((topics.enrichment, topics.results)))
        running = EnrichmentRunning(
            self.state_dir, source, tally, deployment, watch, connection, models, table, journeys
        )
        return running, known

    def _pending(self) -> list[Position]:
        """Requests that were read by an earlier run, and are asked again. Raises StateError where an earlier
        version kept what they say."""
        held = [one for held in committed(self.state_dir, BATCHES_STEP).values() for one in held.items]
        calls = committed(self.state_dir, CALLS_STEP).values()
        pending = [*held, *(one for call in calls for batch in call.pending for one in batch)]
        if not all(isinstance(one, UnderWay) for one in pending):
            raise StateError(f"{self.state_dir} holds requests of an earlier version, in the clear: {NEW_DIRECTORY}")
        return [one.position for one in pending]

    def _flow(
        self,
        running: EnrichmentRunning,
        known: KnownTopics,
        begin: Begin,
        deployment: Deployment,
        runtime: Runtime,
        models: EnrichmentModels,
        parts: Closing,
    ) -> Dataflow:
        inputs, written = running.source.topics, self.topics.enrichment_written()
        stopping = running.source.stopping
        sink = sink_of(self.config.kafka, begin, known, deployment, stopping, parts, inputs=inputs, written=written)
        journeys = running.journeys
        router = Router(self.topics, known.partitions, sink.most_bytes, self.config.auth, journeys.headers)
        reader = Reader(self.topics.enrichment, partial(is_answered, begin.answered), journeys)
        flow = Dataflow(FLOW_ID)
        resumed = read_again(self.config.kafka, self._pending())
        outputs = build(
            flow, running.source, runtime, models.enrich, self.config.enrichment, reader, running.tally, resumed
        )
        route = routing(router, running.source, running.tally.observe, journeys)
        routed: Any = op.flat_map_batch("route", outputs, route)
        op.output("records", routed, sink)
        return flow
