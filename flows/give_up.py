"""`recallflow state rebuild --give-up-unanswered`: going on where it is not known, or not there any more, what queries
asked.

A recovery store that was lost took with it which queries were answered; retention may remove queries while the engine
is down. Both end only by somebody's word: what is given up is counted, and the next run reads queries on behind it.
"""

from dataclasses import dataclass
from pathlib import Path

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.partitions import part_name
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import UsageError
from recallflow.flows.begin import Begin, ends
from recallflow.flows.dataflow import recovery_store
from recallflow.flows.rebuild import began, positions
from recallflow.flows.recovery import has_store
from recallflow.state.directory import REWIND, hold


@dataclass(frozen=True, slots=True)
class GivenUp:
    """`queries`: per `topic:partition`, the offset of the first query that is given up, and how many may be."""

    store: bool
    queries: dict[str, tuple[int, int]]


def give_up_unanswered(state_dir: Path, options: KafkaOptions, query_topic: str) -> GivenUp:
    """Raises UsageError where there is nothing to give up."""
    with hold(state_dir):
        begin = began(state_dir)
        if not has_store(state_dir):
            return _without_store(state_dir, begin, options, query_topic)
        next_offsets = _next_offsets(state_dir, begin, query_topic)
        with TopicReader(options) as reader:
            first = {part_name(*part): low for part, (low, _) in reader.spans((query_topic,)).items()}
        lost = {part: (at, first[part] - at) for part, at in next_offsets.items() if at < first.get(part, at)}
        if not lost:
            raise UsageError(
                f"there is nothing to give up: {state_dir} has its recovery store, and {query_topic} still holds every "
                "query that was not answered"
            )
        given_up = begin.given_up | {part: first[part] for part in lost}
        begin._replace(given_up=given_up).write(state_dir)
        return GivenUp(store=False, queries=lost)


def _without_store(state_dir: Path, begin: Begin, options: KafkaOptions, query_topic: str) -> GivenUp:
    """The next run reads memories from the beginning, passing over those that were applied, and queries from where
    their topic ends now."""
    now = ends(options, (query_topic,))
    outputs = _still_held(options, begin)
    lost = {part: (at, now[part] - at) for part, at in begin.queries.items() if at < now.get(part, at)}
    (state_dir / REWIND).unlink(missing_ok=True)  # offsets of the store that is gone
    begin._replace(outputs=outputs, queries=begin.queries | now, given_up={}).write(state_dir)
    recovery_store(state_dir)
    return GivenUp(store=True, queries=lost)


def _still_held(options: KafkaOptions, begin: Begin) -> dict[str, int]:
    """Where the next run begins to look for what was sent: nobody knows about what is gone."""
    with TopicReader(options) as reader:
        held = dict(begin.outputs)
        for part, at in begin.outputs.items():
            topic, _, number = part.rpartition(":")
            held[part] = max(at, reader.span(topic, int(number))[0])
        return held


def _next_offsets(state_dir: Path, begin: Begin, query_topic: str) -> dict[str, int]:
    """By part, the next query that the next run would read."""
    read = {}
    for source, offset in positions(state_dir).items():
        topic, _, number = source.rpartition(":")
        if topic == query_topic:
            read[part_name(topic, int(number))] = offset
    began_at = {part: at for part, at in begin.queries.items() if part.rpartition(":")[0] == query_topic}
    if not read and not began_at:
        raise UsageError(f"{state_dir} reads no queries from {query_topic}: name the topic as for recallflow run")
    next_offsets = began_at | read
    return {part: max(at, begin.given_up.get(part, at)) for part, at in next_offsets.items()}
