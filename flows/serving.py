"""What the flows against Kafka are made of beside their steps: the right to work, the sink, and an end on signals."""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.deployment import Deployment
from recallflow.connectors.kafka.group import Group
from recallflow.connectors.kafka.outgoing import Outgoing
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.sink import KafkaSink
from recallflow.connectors.kafka.source import KafkaSource
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import StateInUse
from recallflow.flows.begin import Begin
from recallflow.flows.config import Config
from recallflow.flows.journeys import Journeys
from recallflow.flows.known import KnownTopics
from recallflow.flows.router import Router
from recallflow.flows.topic_checks import ask_sizes
from recallflow.outputs import Done
from recallflow.records import Position
from recallflow.signal_log import log_at_once
from recallflow.state.directory import hold


def deployment_name(config: Config, topic: str) -> str:
    """`topic`: the one that a deployment is named after, where it has no name of its own."""
    return config.run.deployment or f"recallflow-{topic}"


def deployment_of(config: Config, topic: str) -> Deployment:
    """The deployment of a flow whose log is `topic`."""
    chosen = config.run
    group = Group(config.kafka, deployment_name(config, topic), topic, chosen.session_timeout_s)
    return Deployment(group, config.named_state_dir(), chosen.session_timeout_s, wait=chosen.wait)


def hold_in_turn(state_dir: Path, deployment: Deployment, *, wait: bool) -> ExitStack:
    """The directory's lock. Who stands by waits for it as well: the directory may be the other engine's own."""
    while True:
        if wait or not state_dir.exists():  # it may come with our turn; who is refused makes none
            deployment.await_turn()
        with ExitStack() as held:
            try:
                held.enter_context(hold(state_dir, create=True))
                return held.pop_all()
            except StateInUse as error:
                if not wait:
                    raise
                deployment.stand_by(error)


def sink_of(
    options: KafkaOptions,
    begin: Begin,
    known: KnownTopics,
    deployment: Deployment,
    stopping: threading.Event,
    parts: Closing,
    *,
    inputs: Iterable[str],
    written: Iterable[str],
    judged: bool = False,
) -> KafkaSink:
    """The sink for what comes of the records of `inputs` and goes to the topics `written`. `judged`: records count by
    the credentials that held when they came."""
    return KafkaSink(
        options,
        partitions=known.latest(),
        begin={part: at for part, at in begin.outputs.items() if part.rpartition(":")[0] not in known.anew},
        ids=known.ids,
        most_bytes=ask_sizes(options, inputs, written, judged=judged),
        sources=inputs,
        permit=deployment.check,
        outage_s=deployment.outage_s,
        stopping=stopping,
        closing=parts,
    )


def routing(
    router: Router, source: KafkaSource | OwnedSource, observe: Callable[[Any], None], journeys: Journeys
) -> Callable[[list[tuple[str, Any]]], Iterable[tuple[str, Outgoing]]]:
    """The step from outputs to the records to send; it says to the source what is through, and ends the records'
    journeys."""

    def route(batch: list[tuple[str, Any]]) -> Iterable[tuple[str, Outgoing]]:
        late: list[Position] = []
        for _, made in batch:
            output = router.fitted(made)
            observe(output)
            if isinstance(output, Done):
                topic, _, partition = output.source.rpartition(":")
                source.progress.done(topic, len(output.offsets))
                source.catch_up.done(output.source, output.offsets)
                journeys.done(Position(topic, int(partition), offset) for offset in output.offsets)
            else:
                if journeys.is_late(output.position):
                    late.append(output.position)
                part, outgoing = router.route(output)
                yield part, replace(outgoing, delivered=journeys.handed(output))
        journeys.end_late(late)

    return route


def source_ends(options: KafkaOptions, topics: tuple[str, ...]) -> dict[str, int]:
    """`topic:partition` → where it ends now."""
    with TopicReader(options) as reader:
        return {f"{topic}:{number}": end for (topic, number), (_, end) in reader.spans(topics).items()}


def stop_on_signals(source: KafkaSource | OwnedSource) -> None:
    """SIGTERM and SIGINT end the flow after the batch at hand; a second one ends the process."""

    def stop(number: int, _: object) -> None:
        if source.stopping.is_set():
            os._exit(128 + number)
        source.stopping.set()
        log_at_once(__name__, "stopping: the batch at hand is finished; a second signal stops at once")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
