"""Creating topics, and asking what they are."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.metadata import Metadata
from recallflow.errors import SourceError

CREATE_S = 30.0
DESCRIBE_S = 2.0


@dataclass(frozen=True, slots=True)
class Described:
    """A topic as it is now. The id is given to it when it is made: another one is another topic."""

    id: str
    partitions: int


class TopicAsker:
    """Asks the brokers about some topics, again and again over one connection."""

    def __init__(self, options: KafkaOptions, topics: Sequence[str]) -> None:
        self.topics = topics
        self._admin = AdminClient(options.admin())

    def __call__(self) -> dict[str, Described]:
        """Raises KafkaException."""
        self._admin.poll(0)
        futures = self._admin.describe_topics(TopicCollection([*self.topics]), request_timeout=DESCRIBE_S)
        found = {topic: future.result() for topic, future in futures.items()}
        return {topic: Described(str(told.topic_id), len(told.partitions)) for topic, told in found.items()}


def described(ask: TopicAsker, options: KafkaOptions) -> dict[str, Described]:
    """The first answer. Raises SourceError where brokers cannot be reached, refuse us, or a topic is missing."""
    with Metadata.open(options) as metadata:
        metadata.partitions(ask.topics)
    try:
        return ask()
    except KafkaException as error:
        raise SourceError(f"cannot ask {options.bootstrap_servers} about topics: {error.args[0].str()}") from error


def create_topics(
    options: KafkaOptions, partitions: Mapping[str, int], config: Mapping[str, Mapping[str, str]], replication: int
) -> dict[str, bool]:
    """Creates topics of so many partitions each. Returns which were made; the others were there. Raises SourceError."""
    with Metadata.open(options) as metadata:
        metadata.partitions([])  # says soon whether the brokers can be reached, and let us in
    admin = AdminClient(options.admin())
    wanted = [
        NewTopic(topic, count, replication, config=dict(config.get(topic, {}))) for topic, count in partitions.items()
    ]
    try:
        futures = admin.create_topics(wanted, operation_timeout=CREATE_S)
        return {topic: _made(future) for topic, future in futures.items()}
    except KafkaException as error:
        raise SourceError(f"cannot create topics at {options.bootstrap_servers}: {error.args[0].str()}") from error


def _made(future: "Future[None]") -> bool:
    try:
        future.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True
