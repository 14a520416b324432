"""What is known of a deployment before this process is part of it: what its consumer group and our directory keep."""

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.group import agree, holders
from recallflow.connectors.kafka.place import Place
from recallflow.connectors.kafka.topic_reader import ASK_S, TopicReader
from recallflow.errors import UsageError
from recallflow.flows.topics import Topics
from recallflow.parsing import asks
from recallflow.state.directory import describe
from recallflow.state.sources import reads_topics


def deployed(options: KafkaOptions, name: str, topics: Topics, state_dir: Path, settings: Mapping[str, object]) -> int:
    """How many partitions the deployment's state has, for ever: as its group says, or where Kafka has forgotten that, a
    directory that was of it; a new deployment takes what the topics have now. Raises SourceError, StateError, and
    UsageError where topics do not go together, or members have committed other settings."""
    with TopicReader(options, {"group.id": name}) as reader:
        counts = {topic: len(numbers) for topic, numbers in reader.partitions((topics.memory, topics.queries)).items()}
        memory, queries = counts[topics.memory], counts[topics.queries]
        if queries != memory:
            raise UsageError(
                f"{topics.memory} has {memory} partitions and {topics.queries} {queries}: a user's memories and "
                "queries are read by one process, so give both as many (kafka-topics.sh --alter --partitions)"
            )
        agree(name, settings, reader.ask(lambda: holders(reader, topics.queries, range(queries))).values())
        kept = kept_partitions(reader, topics.memory, memory)
        if kept is None:
            _check_memories(reader, topics.memory)
    if kept is not None:
        return kept
    return describe(state_dir).fingerprint.partitions if reads_topics(state_dir) else memory


def kept_partitions(reader: TopicReader, topic: str, count: int) -> int | None:
    """How many partitions the state of the reader's group has, by what stands beside its offsets; None where nothing
    does."""
    wanted = [TopicPartition(topic, number) for number in range(count)]
    kept = reader.ask(lambda: reader.consumer.committed(wanted, timeout=ASK_S))
    places = (Place.found(one.metadata) for one in kept)
    return next((place.partitions for place in places if place is not None), None)


def _check_memories(reader: TopicReader, topic: str) -> None:
    """A topic of queries that is read as one of memories would have all of them answered a second time."""
    values = [first.value() or b"" for first in reader.firsts(reader.spans((topic,))).values()]
    if values and all(map(asks, values)):
        raise UsageError(
            f"{topic} begins with queries in each partition, and is given as --memory-topic: give the topic of memory "
            "events there, and that of queries as --query-topic"
        )
