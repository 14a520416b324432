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
from recallflow.flows.behind import STATE_STEP
from recallflow.flows.rebuild import positions
from recallflow.flows.recovery import FLOW_ID, committed, snapshot_time
from recallflow.flows.topics import Topics

SINK_STEP = f"{FLOW_ID}.outputs"
ACCEPT = "--accept-repeats"


@dataclass(frozen=True, slots=True)
class _Gone:
    """What is gone of an output partition: `at` is where the last snapshot ended; `oldest_ms`: of what is left."""

    topic: str
    number: int
    at: int
    low: int
    oldest_ms: int | None


def check_repeats(
    state_dir: Path, options: KafkaOptions, topics: Topics, written: tuple[str, ...], begin: Begin
) -> None:
    """Raises OutputsGone where outputs since the last snapshot are gone from their topic, and something was to be done
    since then."""
    snapshot_at = snapshot_time(state_dir)
    with TopicReader(options) as reader:
        outputs = [one for one in written if one != topics.control]
        gone = _gone(reader, outputs, _resumed(state_dir, SINK_STEP, begin), snapshot_at)
        if not gone or not _anything_to_do(reader, state_dir, topics, begin):
            return
    first, count = gone[0], sum(one.low - one.at for one in gone)
    holds = "holds nothing now" if first.oldest_ms is None else f"its oldest record is of {_time(first.oldest_ms)}"
    raise OutputsGone(
        f"{first.topic}:{first.number} lacks outputs from after the last snapshot ({snapshot_at}): {holds}. Up "
        f"to {count} outputs in {len(gone)} partitions would be sent again: restore a newer checkpoint, or let them "
        f"come twice (recallflow run {ACCEPT})"
    )


def check_results(state_dir: Path, options: KafkaOptions, topic: str, sink_step: str, begin: Begin) -> None:
    """Raises OutputsGone where results of enrichment since the last snapshot are gone from their topic: what they
    answered would be asked again."""
    snapshot_at = snapshot_time(state_dir)
    with TopicReader(options) as reader:
        gone = _gone(reader, (topic,), _resumed(state_dir, sink_step, begin), snapshot_at)
    if gone:
        raise OutputsGone(
            f"{topic}:{gone[0].number} lacks results from after the last snapshot ({snapshot_at}): their "
            "requests would be asked again. Start with another --state-dir, which finds what was answered"
        )


def _resumed(state_dir: Path, sink_step: str, begin: Begin) -> dict[str, int]:
    """By part, up to where what was sent is known."""
    snapshots = {part: delivered.offset for part, delivered in committed(state_dir, sink_step).items()}
    return begin.outputs | snapshots


def _gone(reader: TopicReader, topics: Sequence[str], resumed: dict[str, int], snapshot_at: str) -> list[_Gone]:
    """Where outputs of ours from after the last snapshot may be gone. The main flow and the enrichment flow share
    topics: what begins with a record from before the snapshot lost only the other's."""
    found = []
    snapshot_ms = datetime.fromisoformat(snapshot_at).timestamp() * 1000
    for (topic, number), (low, _) in reader.spans(topics).items():
        at = resumed.get(part_name(topic, number), low)
        if at < low:
            oldest = next(reader.read_to_end(topic, number, low), None)
            oldest_ms = None if oldest is None else oldest.timestamp()[1]
            if oldest_ms is None or oldest_ms >= snapshot_ms:
                found.append(_Gone(topic, number, at, low, oldest_ms))
    return found


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
