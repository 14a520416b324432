"""The main dataflow against Kafka: one member of a deployment, for the partitions that it has at the time."""

import logging
import sys
import threading
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from recallflow.background import exponential
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.connectors.kafka.admin import TopicAsker
from recallflow.connectors.kafka.catch_up import CatchUp
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.connection import Connection
from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.kafka.decide import Decide
from recallflow.connectors.kafka.delivery import DeliverySink, Sent, ToSend
from recallflow.connectors.kafka.holder import Holder
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.newcomer import holders
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.tails import EndOffsets, Ends
from recallflow.connectors.kafka.topic_reader import TopicReader, await_brokers
from recallflow.connectors.kafka.watch import Watch
from recallflow.connectors.probes import Probes
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.errors import MembershipLost, StorageError, UsageError
from recallflow.flows.checkpointing import Checkpoints
from recallflow.flows.config import Config
from recallflow.flows.cycles import SWITCH_S
from recallflow.flows.deployed import deployed
from recallflow.flows.elsewhere import Elsewhere
from recallflow.flows.embedding import open_embedder
from recallflow.flows.encryption import open_at_rest
from recallflow.flows.homes import Homes
from recallflow.flows.journeys import Journeys
from recallflow.flows.known import KnownTopics
from recallflow.flows.metrics import Metrics, Running
from recallflow.flows.order import opener
from recallflow.flows.ownership import Ownership
from recallflow.flows.question_models import SPENDING, open_question_models
from recallflow.flows.recipe import MainFlow
from recallflow.flows.router import Router
from recallflow.flows.runner import Recipe, run
from recallflow.flows.serving import deployment_name, routing, source_ends, stop_on_signals
from recallflow.flows.stages import Stages
from recallflow.flows.standby import Standby
from recallflow.flows.tally import Tally
from recallflow.flows.token_keys import TokenKeys, key_source
from recallflow.flows.topic_checks import ask_sizes, check_control, judged_by_senders, stamped_by_log
from recallflow.flows.trust import trust_of
from recallflow.operators.answers.models import Models
from recallflow.operators.authorise import Authoriser
from recallflow.operators.decode import decode
from recallflow.operators.events import Item, Misplaced
from recallflow.operators.quotas import Rates
from recallflow.state.directory import StateDirectory, hold
from recallflow.state.files import is_passing

REJOIN_S, REJOIN_MOST_S = 1.0, 60.0  # pauses after I/O errors

_log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    """What questions are answered with, and records judged by."""

    embedder: Embedder
    models: Models | None
    authoriser: Authoriser
    table: ControlTable
    journeys: Journeys


class KafkaFlow:
    """A member of a deployment of the main flow: where Kafka is, which topics, where the state is."""

    def __init__(self, config: Config) -> None:
        """Raises UsageError where no state directory is named."""
        self.config = config
        self.options, self.topics, self.settings = config.kafka, config.topics, config.engine
        self.models = config.models
        self.enrichment = config.enrichment
        self.state_dir, self.skips, self.chosen = config.named_state_dir(), config.skips, config.run
        self._written: tuple[str, ...] = ()
        self._stopping = threading.Event()
        self._store: CheckpointStore | None = None
        self._has_begun = False

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT: the batch at hand is finished, the state is synced, partitions are handed over,
        and everything is closed. A second signal ends the process at once. A member that was away for longer than its
        session joins anew, and so does one that has begun and whose state met an I/O error that may pass. Raises what
        stopped the flow otherwise."""
        pauses_s = exponential(REJOIN_S, REJOIN_MOST_S)
        with ExitStack() as stack:
            metrics = Metrics(self.chosen.serve_while_catching_up)
            if (port := self.chosen.metrics_port) is not None:
                stack.enter_context(Probes(self.chosen.metrics_host, port, metrics.registry, metrics.obstacle))
            stack.enter_context(hold(self.state_dir, create=True))
            while not self._stopping.is_set():
                try:
                    self._run(metrics)
                except MembershipLost as error:
                    _log.warning("%s; joining anew", error)
                    await_brokers(self.options, self._stopping)
                except (StorageError, OSError) as error:
                    if not (self._has_begun and is_passing(error)):
                        raise
                    pause_s = next(pauses_s)
                    _log.error("%s; joining anew in %g s", error, pause_s)
                    self._stopping.wait(pause_s)
                else:
                    return

    def _run(self, metrics: Metrics) -> None:
        with ExitStack() as stack:
            decisions = History()
            embedder = stack.enter_context(
                open_embedder(self.settings, self.models.embedding, "question", decisions, self.state_dir)
            )
            self._written = self.topics.written(enriches=self.enrichment.wanted(embedder) is not None)
            KnownTopics.check_names(self.state_dir, self.topics.read_for())  # before anything is made in it
            name = deployment_name(self.config, self.topics.memory)
            partitions = deployed(self.options, name, self.topics, self.state_dir)
            self.settings = replace(self.settings, partitions=partitions)
            directory = self._open_directory(stack, embedder)
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
            check_control(self.options, self.topics.control)
            asked = _Asked(embedder, models, authoriser, table, journeys)
            parts = Closing()
            running, sink, membership, ownership = self._running(stack, directory, asked, parts, partitions)
            metrics.watch(running, meters)
            recipe = self._recipe(running, sink, asked)
            stop_on_signals(running.source)
            stack.enter_context(running.watch.running())
            token_keys = self._token_keys(decisions, secrets)
            if token_keys is not None:
                running.watch.call(token_keys.check)
                stack.enter_context(token_keys.running())
            sys.setswitchinterval(SWITCH_S)
            _log.warning(authoriser.describe())
            authoriser.warn()
            membership.start()
            self._has_begun = True
            try:
                run(recipe)
            finally:
                ownership.end()
            parts.check()
            membership.release()

    def _open_directory(self, stack: ExitStack, embedder: Embedder) -> StateDirectory:
        at_rest = open_at_rest(self.config.encryption)
        fingerprint = self.settings.fingerprint(embedder)
        opened = StateDirectory.open(self.state_dir, fingerprint, self.settings.cache_bytes, at_rest=at_rest)
        return stack.enter_context(opened)

    def _running(
        self, stack: ExitStack, directory: StateDirectory, asked: _Asked, parts: Closing, partitions: int
    ) -> tuple[Running, DeliverySink, Membership, Ownership]:
        """The source with all that watches over it, where its outputs go, and whose it is."""
        inputs = (self.topics.memory, self.topics.queries)
        outputs = [*dict.fromkeys((*self._written, *inputs))]  # what is misplaced goes to its home
        ask = TopicAsker(self.options, [*dict.fromkeys((*self.topics.read(), *outputs))])
        there = ask.first()
        if unknown := [str(skip) for skip in self.skips if skip.partition >= there[skip.topic].partitions]:
            raise UsageError(f"--skip {', '.join(unknown)}: there is no such partition")
        known = KnownTopics.open(
            self.state_dir, there, self.topics.read_for(), self._written, partial(source_ends, self.options, inputs)
        )
        catch_up, watch, homes = CatchUp(), Watch(ask, there), Homes(partitions)
        stamped = stamped_by_log(self.options, inputs)
        ends, sent = Ends(self.options, {topic: there[topic].partitions for topic in outputs}), Sent()
        ends.ask()
        stack.enter_context(ends.running())
        failures: list[Callable[[], Exception | None]] = [asked.table.failure, watch.failure]
        completions = None if asked.models is None else asked.models.runtime.completions
        source = OwnedSource(
            self.options,
            *inputs,
            mark_s=self.settings.epoch_ms / 1000,
            tails=ends.latest,
            catch_up=catch_up,
            finished=list if completions is None else completions.pop_all,
            wake=None if completions is None else completions.wake,
            failure=partial(_first, failures),
            stopping=self._stopping,
            closing=parts,
            memory_ends=EndOffsets(self.options, self.topics.memory),
            settle=lambda: sink.settle(),
        )
        stack.callback(source.close)
        connection = Connection(self.options, self.topics.memory, catch_up, lambda: bool(source.partitions()))
        stack.callback(connection.close)
        membership: Membership
        checkpoints = self._checkpoints(stack, directory, source)
        restore = None if checkpoints is None else checkpoints.restore
        ownership = Ownership(
            self.options,
            self.topics,
            directory,
            source,
            sent,
            ends,
            lambda places: membership.commit(places),
            lambda numbers: membership.is_committed(numbers),
            restore=restore,
            writer=str(self.state_dir),
            counts=lambda: asked.table.history.began_ms(("quota",)) is not None,
            give_up_unanswered=self.chosen.give_up_unanswered,
            accept_repeats=self.chosen.accept_repeats,
        )
        membership = Membership(
            self.options,
            deployment_name(self.config, self.topics.memory),
            *inputs,
            ownership,
            self.state_dir,
            self.chosen.session_timeout_s,
            instance_id=self.chosen.instance_id,
            own=self.chosen.owned(),
            begun=ownership.begun,
        )
        stack.callback(membership.close)
        if self.chosen.standby:
            standby = Standby(
                self.options,
                membership.name,
                self.topics.memory,
                directory,
                source,
                lambda: membership.member_id,
                self.chosen.standby,
                restore=restore,
                expected=lambda: membership.expected,
            )
            stack.enter_context(standby.running())
        stack.enter_context(self._elsewhere(stack, directory, source, membership).running())
        unstamped = [topic for topic in inputs if topic not in stamped]

        def unjudged() -> Exception | None:
            # The first key may come at any time.
            return judged_by_senders(unstamped) if unstamped and asked.authoriser.asks() else None

        failures += [lambda: directory.broken, unjudged, ownership.failure, membership.failure]
        watch.call(known.check, asked.table.grow)
        sink = DeliverySink(
            self.options,
            most_bytes=ask_sizes(self.options, inputs, outputs, judged=asked.authoriser.asks()),
            sent=sent,
            marked=ownership.marked,
            permit=membership.check,
            outage_s=membership.outage_s,
            stopping=source.stopping,
            closing=parts,
        )
        tally = Tally(self.topics.queries, source.first_offsets, source.given_before, asked.journeys.trace_id)
        running = Running(
            source=source,
            directory=directory,
            tally=tally,
            deployment=membership,
            watch=watch,
            connection=connection,
            homes=homes,
            authoriser=asked.authoriser,
            table=asked.table,
            journeys=asked.journeys,
            counts={topic: described.partitions for topic, described in there.items()},
            stamped=stamped,
            checkpoints=checkpoints,
        )
        return running, sink, membership, ownership

    def _elsewhere(
        self, stack: ExitStack, directory: StateDirectory, source: OwnedSource, membership: Membership
    ) -> Elsewhere:
        """What sees to folders of partitions that other members have."""
        reader = stack.enter_context(TopicReader(self.options, {"group.id": membership.name}))
        me = Holder.here(self.state_dir)

        def others() -> frozenset[int]:
            found = holders(reader, self.topics.queries, directory.existing_numbers())
            return frozenset(number for number, holder in found.items() if not (holder.released or holder.is_at(me)))

        def can_come_again(number: int) -> bool:
            return self.chosen.checkpoint_to is not None or reader.span(self.topics.memory, number)[0] == 0

        return Elsewhere(
            directory,
            others=others,
            ours=lambda: membership.expected,
            warm=source.kept_warm,
            can_come_again=can_come_again,
            stopping=source.stopping,
        )

    def _checkpoints(self, stack: ExitStack, directory: StateDirectory, source: OwnedSource) -> Checkpoints | None:
        """Start to keep checkpoints, if a store is named. A store that is away when the member joins anew does not end
        the process: it is opened once."""
        if (url := self.chosen.checkpoint_to) is None:
            return None
        self._store = self._store or CheckpointStore.open(url, self._stopping, create=True)
        checkpoints = Checkpoints(
            self._store,
            directory,
            self.topics.memory,
            deployment_name(self.config, self.topics.memory),
            every_s=60 * self.chosen.checkpoint_minutes,
            keep=self.chosen.checkpoint_keep,
            owned=source.partitions,
        )
        stack.enter_context(checkpoints.running())
        return checkpoints

    def _recipe(self, running: Running, sink: DeliverySink, asked: _Asked) -> Recipe:
        replies = {topic: running.counts[topic] for topic in (self.topics.responses, *self.topics.replies)}
        decisions = asked.table.history
        rules = self.settings.rules(asked.embedder, self.topics.queries, replies, input_ends=False, decisions=decisions)
        rules = replace(rules, skips=self.skips, wanted=self.enrichment.wanted(asked.embedder))
        rules = replace(rules, audited=self.topics.audit is not None)
        journeys = running.journeys
        router = Router(
            self.topics, lambda topic, _: running.counts[topic], sink.most_bytes, self.config.auth, journeys.headers
        )
        route = routing(router, running.source, running.tally.observe, journeys)
        rates = Rates(decisions, self.topics.queries, running.stamped)

        def authorise(item: Item) -> Item:
            return item if isinstance(item, Misplaced) else rates.judge(running.authoriser.authorise(item))

        def missing(number: int) -> str:
            return running.source.catch_up.describe(f"{self.topics.memory}:{number}")

        steps = MainFlow(
            decode_record=lambda record: running.homes.judge(decode(record, self.skips)),
            authorise_item=authorise,
            embedder=asked.embedder,
            open_state=opener(running.directory, asked.embedder, rules, asked.models, missing),
            route_outputs=lambda outputs: map(_to_send, route(outputs)),
            journeys=journeys,
        )
        return steps.recipe(running.source, sink)

    def _token_keys(self, decisions: History, secrets: MutableMapping[str, bytes]) -> TokenKeys | None:
        """What announces signing keys, after its first look; None where there is none to announce."""
        auth = self.config.auth
        if auth.mode == "off" or (auth.jwks is None and auth.secret is None):
            return None
        announce = Decide(self.options, self.topics.control, auth.control_secret)
        token_keys = TokenKeys(auth, key_source(auth), decisions, secrets, announce)
        token_keys.begin()
        return token_keys


def _first(failures: Iterable[Callable[[], Exception | None]]) -> Exception | None:
    return next((error for failure in failures if (error := failure()) is not None), None)


def _to_send(routed: tuple[str, Any]) -> ToSend:
    part, outgoing = routed
    topic, _, number = part.rpartition(":")
    return ToSend(topic, int(number), outgoing)
