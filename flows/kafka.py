"""The main dataflow against Kafka."""

import logging
import sys
from collections.abc import MutableMapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig

from recallflow.connectors.kafka.admin import TopicAsker
from recallflow.connectors.kafka.catch_up import CatchUp
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.connection import Connection
from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.kafka.decide import Decide
from recallflow.connectors.kafka.deployment import Deployment
from recallflow.connectors.kafka.misplaced import Misplaced
from recallflow.connectors.kafka.patience import Patience
from recallflow.connectors.kafka.sink import KafkaSink
from recallflow.connectors.kafka.source import KafkaSource
from recallflow.connectors.kafka.watch import Watch
from recallflow.connectors.probes import Probes
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.errors import UsageError
from recallflow.flows.begin import Begin
from recallflow.flows.behind import check_not_behind, check_store
from recallflow.flows.config import Config
from recallflow.flows.dataflow import recovery_store, run_dataflow
from recallflow.flows.embedding import open_embedder
from recallflow.flows.encryption import open_at_rest
from recallflow.flows.engine import build
from recallflow.flows.journeys import Journeys
from recallflow.flows.known import KnownTopics
from recallflow.flows.metrics import Metrics, Running
from recallflow.flows.question_models import SPENDING, open_question_models
from recallflow.flows.rebuild import rebuild
from recallflow.flows.recovery import FLOW_ID
from recallflow.flows.repeats import check_repeats
from recallflow.flows.router import Router
from recallflow.flows.serving import (
    SWITCH_S,
    deployment_name,
    deployment_of,
    hold_in_turn,
    routing,
    sink_of,
    source_ends,
    stop_on_signals,
)
from recallflow.flows.stages import Stages
from recallflow.flows.tally import Tally
from recallflow.flows.token_keys import TokenKeys, key_source
from recallflow.flows.topic_checks import check_control, judged_by_senders, stamped_by_log
from recallflow.flows.trust import trust_of
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call.source import WithCompletions
from recallflow.operators.authorise import Authoriser
from recallflow.operators.decode import decode
from recallflow.operators.events import Item, Refused
from recallflow.operators.quotas import Rates
from recallflow.records import Record
from recallflow.state.directory import REWIND, StateDirectory
from recallflow.state.fingerprint import Fingerprint

_log = logging.getLogger(__name__)


class KafkaFlow:
    """A deployment of the main flow: where Kafka is, which topics, where the state is."""

    def __init__(self, config: Config) -> None:
        """Raises UsageError where no state directory is named."""
        self.config = config
        self.options, self.topics, self.settings = config.kafka, config.topics, config.engine
        self.models = config.models
        self.enrichment = config.enrichment
        self.state_dir, self.skips, self.chosen = config.named_state_dir(), config.skips, config.run

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT: the batch at hand is finished, the state is synced, and everything is closed. A
        second signal ends the process at once. Raises what stopped the flow otherwise."""
        with ExitStack() as stack:
            metrics = Metrics(self.chosen.serve_while_catching_up)
            if (port := self.chosen.metrics_port) is not None:
                stack.enter_context(Probes(self.chosen.metrics_host, port, metrics.registry, metrics.obstacle))
            decisions = History()
            embedder = stack.enter_context(
                open_embedder(self.settings, self.models.embedding, "question", decisions, self.state_dir)
            )
            written = self.topics.written(enriches=self.enrichment.wanted(embedder) is not None)
            deployment = stack.enter_context(closing(deployment_of(self.config, self.topics.memory)))
            directory, rewind = self._open_directory(stack, deployment, self.settings.fingerprint(embedder))
            # Before anything else is read: each record is judged by what was decided up to then.
            secrets: dict[str, bytes] = {}  # which the first look at signing keys fills
            authoriser = Authoriser(decisions, trust_of(self.config.auth, secrets))
            secret = self.config.auth.control_secret
            read = ControlTable(self.options, self.topics.control, history=decisions, secret=secret)
            table = stack.enter_context(closing(read))
            journeys = Journeys(Stages((self.topics.memory, self.topics.queries)), waits=self.topics.queries)
            opened = open_question_models(
                self.settings, self.models, embedder, table.history, self.state_dir / SPENDING, journeys.within
            )
            models, meters = stack.enter_context(opened)
            begin, recovery = self._begin(written)
            deployment.join()  # it puts out whoever worked here before: the directory is ours
            _log.info("deployment %s is ours", deployment_name(self.config, self.topics.memory))
            check_control(self.options, self.topics.control)
            token_keys = self._token_keys(deployment, decisions, secrets)
            parts = Closing()
            running, known, stamped = self._running(
                stack, deployment, directory, authoriser, table, begin, rewind, parts, models, written, journeys
            )
            metrics.watch(running, meters)
            sink = sink_of(
                self.options,
                begin,
                known,
                deployment,
                running.source.stopping,
                parts,
                inputs=running.source.topics,
                written=written,
                judged=authoriser.asks(),
            )
            flow = self._flow(running, sink, known, embedder, table.history, models, stamped)
            stop_on_signals(running.source)
            stack.enter_context(running.watch.running())
            if token_keys is not None:
                running.watch.call(token_keys.check)
                stack.enter_context(token_keys.running())
            sys.setswitchinterval(SWITCH_S)
            _log.warning(authoriser.describe())
            authoriser.warn()
            run_dataflow(flow, self.settings, self.chosen.workers, recovery)
            parts.check()
            (self.state_dir / REWIND).unlink(missing_ok=True)
            deployment.release()

    def _open_directory(
        self, stack: ExitStack, deployment: Deployment, fingerprint: Fingerprint
    ) -> tuple[StateDirectory, dict[str, int]]:
        """The state directory, once it and the deployment are free, and from where its log is to be read again."""
        # Before anything in the directory is read or written, and until everything is closed.
        stack.enter_context(hold_in_turn(self.state_dir, deployment, wait=self.chosen.wait))
        deployment.await_turn()
        KnownTopics.check_names(self.state_dir, self.topics.read_for())  # before anything is made in it
        # Found anew at each start: offsets from before a kill may not reach what was lost since.
        at_rest = open_at_rest(self.config.encryption)
        rewind = rebuild(self.state_dir, at_rest)[1] if (self.state_dir / REWIND).exists() else {}
        opened = StateDirectory.open(self.state_dir, fingerprint, self.settings.cache_bytes, at_rest=at_rest)
        directory = stack.enter_context(opened)
        directory.rebuilding = bool(rewind)
        directory.existing_partitions()
        if not rewind:
            check_not_behind(directory)
        held = directory.counts
        _log.info("state directory %s holds %d memories of %d owners", self.state_dir, held.memories, held.owners)
        return directory, rewind

    def _running(
        self,
        stack: ExitStack,
        deployment: Deployment,
        directory: StateDirectory,
        authoriser: Authoriser,
        table: ControlTable,
        begin: Begin,
        rewind: dict[str, int],
        parts: Closing,
        models: Models | None,
        written: tuple[str, ...],
        journeys: Journeys,
    ) -> tuple[Running, KnownTopics, frozenset[str]]:
        """The source with all that watches over it, what is known of the topics, and those that the log stamps."""
        ask = TopicAsker(self.options, [*dict.fromkeys((*self.topics.read(), *written))])
        found = ask.first()
        if unknown := [str(skip) for skip in self.skips if skip.partition >= found[skip.topic].partitions]:
            raise UsageError(f"--skip {', '.join(unknown)}: there is no such partition")
        inputs = (self.topics.memory, self.topics.queries)
        ends = partial(source_ends, self.options, inputs)
        known = KnownTopics.open(self.state_dir, found, self.topics.read_for(), written, ends)
        catch_up, watch, misplaced = CatchUp(), Watch(ask, found), Misplaced()
        stamped = stamped_by_log(self.options, inputs)
        unstamped = [topic for topic in inputs if topic not in stamped]

        def failure() -> Exception | None:
            if unstamped and authoriser.asks():  # the first key may come at any time
                return judged_by_senders(unstamped)
            return deployment.failure() or table.failure() or watch.failure()

        connection = stack.enter_context(closing(Connection(self.options, self.topics.memory, catch_up)))
        source = KafkaSource(
            self.options,
            self.topics.memory,
            self.topics.queries,
            parts=known.parts,
            begin=begin.queries,
            sent=begin.sent,
            rewind=rewind,
            given_up=begin.given_up,
            catch_up=catch_up,
            failure=failure,
            closing=parts,
            wake=None if models is None else models.runtime.completions.wake,
            in_turn=True,
            counts=lambda: table.history.began_ms(("quota",)) is not None,
        )
        stack.callback(source.close)
        misplaced.learn(found)
        watch.call(known.check, table.grow, source.grow, misplaced.learn)
        tally = Tally(self.topics.queries, source.first_offsets, source.given_before, journeys.trace_id)
        running = Running(
            source=source,
            directory=directory,
            tally=tally,
            deployment=deployment,
            watch=watch,
            connection=connection,
            misplaced=misplaced,
            authoriser=authoriser,
            table=table,
            journeys=journeys,
        )
        return running, known, stamped

    def _flow(
        self,
        running: Running,
        sink: KafkaSink,
        known: KnownTopics,
        embedder: Embedder,
        decisions: History,
        models: Models | None,
        stamped: frozenset[str],
    ) -> Dataflow:
        replies = {topic: sink.partitions[topic] for topic in (self.topics.responses, *self.topics.replies)}
        rules = self.settings.rules(embedder, self.topics.queries, replies, input_ends=False, decisions=decisions)
        rules = replace(rules, skips=self.skips, wanted=self.enrichment.wanted(embedder))
        rules = replace(rules, audited=self.topics.audit is not None)
        journeys = running.journeys
        router = Router(self.topics, known.partitions, sink.most_bytes, self.config.auth, journeys.headers)
        route = routing(router, running.source, running.tally.observe, journeys)
        flow = Dataflow(FLOW_ID)
        rates = Rates(decisions, self.topics.queries, stamped)

        def decoded(record: Record) -> Item:
            item = rates.judge(running.authoriser.authorise(decode(record, self.skips)))
            if not isinstance(item, Refused) and not record.silent:
                running.misplaced.check(record, item.owner.record_key)
            return item

        behind = running.source.catch_up.describe
        source = running.source if models is None else WithCompletions(running.source, models.runtime.completions)
        outputs = build(
            flow,
            source,
            running.directory,
            embedder,
            rules,
            decode=decoded,
            behind=behind,
            models=models,
            journeys=journeys,
        )
        op.output("outputs", op.flat_map_batch("route", outputs, route), sink)
        return flow

    def _token_keys(
        self, deployment: Deployment, decisions: History, secrets: MutableMapping[str, bytes]
    ) -> TokenKeys | None:
        """What announces signing keys, after its first look; None where there is none to announce."""
        auth = self.config.auth
        if auth.mode == "off" or (auth.jwks is None and auth.secret is None):
            return None
        permit = partial(deployment.check, Patience)
        announce = Decide(self.options, self.topics.control, auth.control_secret, permit)
        token_keys = TokenKeys(auth, key_source(auth), decisions, secrets, announce)
        token_keys.begin()
        return token_keys

    def _begin(self, written: tuple[str, ...]) -> tuple[Begin, RecoveryConfig]:
        """Where the topics ended when the state directory was new, and the recovery store. The store is there first: a
        first start that is killed between them is a first start again."""
        begin = Begin.read(self.state_dir)
        if begin is not None:
            check_store(self.state_dir)
            if not self.chosen.accept_repeats:
                check_repeats(self.state_dir, self.options, self.topics, written, begin)
        recovery = recovery_store(self.state_dir)
        if begin is None:
            begin = Begin.now(self.options, self.topics, written)
            begin.write(self.state_dir)
        return begin, recovery
