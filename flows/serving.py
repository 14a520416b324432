"""What the flows against Kafka share: the deployment's name, the routing of outputs, and the end on signals."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from recallflow.connectors.kafka.delivery import ToSend
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.flows.config import Config
from recallflow.flows.journeys import Journeys
from recallflow.flows.router import Router
from recallflow.outputs import Done, Marked
from recallflow.records import Position
from recallflow.signal_log import log_at_once


def deployment_name(config: Config, topic: str) -> str:
    """`topic`: the one that a deployment is named after, where it has no name of its own."""
    return config.run.deployment or f"recallflow-{topic}"


def routing(
    router: Router, source: OwnedSource, observe: Callable[[Any], None], journeys: Journeys
) -> Callable[[list[tuple[str, Any]]], Iterator[ToSend | Marked]]:
    """Return the step from outputs to records to send; marks stay behind the outputs before them. It reports to the
    source which records are through, and ends their journeys."""

    def route(batch: list[tuple[str, Any]]) -> Iterator[ToSend | Marked]:
        late: list[Position] = []
        for _, made in batch:
            if isinstance(made, Marked):
                yield made
                continue
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
                sent = router.route(output)
                yield sent._replace(outgoing=replace(sent.outgoing, delivered=journeys.handed(output)))
        journeys.end_late(late)

    return route


def stop_on_signals(source: OwnedSource) -> None:
    """SIGTERM and SIGINT end the flow after the batch at hand; a second one ends the process."""

    def stop(number: int, _: object) -> None:
        if source.stopping.is_set():
            os._exit(128 + number)
        source.stopping.set()
        log_at_once(__name__, "stopping: the batch at hand is finished; a second signal stops at once")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
