"""Whether a start would send again what was sent: it knows what it sent since its last snapshot from the output topics,
and from nowhere else. After a checkpoint was restored that is long ago, and retention may have removed it since."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.partitions import part_name
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import OutputsGone
from recallflow.flows.begin import Begin
from recallflow.flows.engine import FLOW_ID
from recallflow.flows.rebuild import STATE_STEP, positions
from recallflow.flows.recovery import committed, snapshot_time
from recallflow.flows.topics import Topics

SINK_STEP = f"{FLOW_ID}.outputs"
ACCEPT = "--accept-repeats"


@dataclass(frozen=True, slots=True)
class _Gone:
    """What is gone of an output partition: `at` is where the last snapshot ended."""

    topic: str
    number: int
    at: int
    low: int


def check_repeats(
    state_dir: Path, options: KafkaOptions, topics: Topics, written: tuple[str, ...], begin: Begin
) -> None:
    """Raises OutputsGone where outputs since the last snapshot are gone from their topic, and something was to be done
    since then."""
    with TopicReader(options) as reader:
        gone = _gone(reader, [one for one in written if one != topics.control], _resumed(state_dir, SINK_STEP, begin))
        if not gone or not _anything_to_do(reader, state_dir, topics, begin):
            return
        first = gone[0]
        oldest = next(reader.read_to_end(first.topic, first.number, first.low), None)
    holds = "holds nothing now" if oldest is None else f"its oldest record is of {_time(oldest.timestamp()[1])}"
    snapshot_at, count = snapshot_time(state_dir), sum(one.low - one.at for one in gone)
    raise OutputsGone(
        f"{first.topic}:{first.number} lacks outputs from after the last snapshot ({snapshot_at}): {holds}. Up "
        f"to {count} outputs in {len(gone)} partitions would be sent again: restore a newer checkpoint, or let them "
        f"come twice (recallflow run {ACCEPT})"
    )


def check_results(state_dir: Path, options: KafkaOptions, topic: str, sink_step: str, begin: Begin) -> None:
    """Raises OutputsGone where results of enrichment since the last snapshot are gone from their topic: what they
    answered would be asked again."""
    with TopicReader(options) as reader:
        gone = _gone(reader, (topic,), _resumed(state_dir, sink_step, begin))
    if gone:
        raise OutputsGone(
            f"{topic}:{gone[0].number} lacks results from after the last snapshot ({snapshot_time(state_dir)}): their "
            "requests would be asked again. Start with another --state-dir, which finds what was answered"
        )


def _resumed(state_dir: Path, sink_step: str, begin: Begin) -> dict[str, int]:
    """By part, up to where what was sent is known. Nobody else writes there."""
    snapshots = {part: delivered.offset for part, delivered in committed(state_dir, sink_step).items()}
    return begin.outputs | snapshots


def _gone(reader: TopicReader, topics: Sequence[str], resumed: dict[str, int]) -> list[_Gone]:
    spans = reader.spans(topics)
    held = [(part, resumed[part_name(*part)], low) for part, (low, _) in spans.items() if part_name(*part) in resumed]
    return [_Gone(*part, at, low) for part, at, low in held if at < low]


def _anything_to_do(reader: TopicReader, state_dir: Path, topics: Topics, begin: Begin) -> bool:
    """Whether any record came since the last snapshot, or a query waited in it."""
    if any(snapshot.waiting or snapshot.held for snapshot in committed(state_dir, STATE_STEP).values()):
        return True
    read = positions(state_dir)
    return any(
        read.get(f"{topic}:{number}", begin.queries.get(part_name(topic, number), 0)) < end
        for (topic, number), (_, end) in reader.spans((topics.memory, topics.queries)).items()
    )


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
