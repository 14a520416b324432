"""Whether a start of the enrichment flow would ask again what is answered: it knows what it sent since its last
snapshot from the topic of results, and from nowhere else. Where the directory was copied back that is long ago, and
retention may have removed it since."""

from datetime import datetime
from pathlib import Path

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.messages import time_ms
from recallflow.connectors.kafka.partitions import part_name
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import OutputsGone
from recallflow.flows.begin import Begin
from recallflow.flows.recovery import committed, snapshot_time


def check_results(state_dir: Path, options: KafkaOptions, topic: str, sink_step: str, begin: Begin) -> None:
    """Raises OutputsGone where results of enrichment since the last snapshot are gone from their topic: what they
    answered would be asked again."""
    snapshot_at = snapshot_time(state_dir)
    snapshot_ms = datetime.fromisoformat(snapshot_at).timestamp() * 1000
    sent = begin.outputs | {part: one.offset for part, one in committed(state_dir, sink_step).items()}
    with TopicReader(options) as reader:
        for (_, number), (low, _) in reader.spans((topic,)).items():
            if sent.get(part_name(topic, number), low) >= low:
                continue
            oldest = next(reader.read_to_end(topic, number, low), None)
            # What begins with a record from before the snapshot lost only older ones.
            if oldest is None or time_ms(oldest) >= snapshot_ms:
                raise OutputsGone(
                    f"{topic}:{number} lacks results from after the last snapshot ({snapshot_at}): their requests "
                    "would be asked again. Start with another --state-dir, which finds what was answered"
                )
