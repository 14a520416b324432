"""A service before an engine that is reached over Kafka, and what is decided meanwhile."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from recallflow.brokers.reader import Inbox
from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.kafka.service import KafkaService, ServiceTopics
from recallflow.decisions import History
from recallflow.flows.admission import Failure
from recallflow.flows.config import Config
from recallflow.flows.gc_policy import SWITCH_S


class BehindKafka(NamedTuple):
    """The service, and why what is decided from here on goes unseen, if it does."""

    service: KafkaService
    failure: Failure


@contextmanager
def open_behind_kafka(config: Config, decisions: History) -> Iterator[BehindKafka]:
    """The service, once all that was decided up to now is in `decisions`, which goes on growing. Raises SourceError
    where Kafka cannot be reached, refuses us, or has no such topics."""
    sys.setswitchinterval(SWITCH_S)
    table = ControlTable(config.kafka, config.topics.control, history=decisions, secret=config.auth.control_secret)
    named, timeout_s = service_topics(config), config.serve.timeout_s
    with closing(table), closing(KafkaService(config.kafka, named, timeout_s, table.failure)) as service:
        yield BehindKafka(service, table.failure)


def service_topics(config: Config) -> ServiceTopics:
    topics, chosen = config.topics, config.serve
    replies = Inbox(chosen.reply_topic, True, chosen.reply_partition) if chosen.reply_topic is not None else None
    return ServiceTopics(topics.memory, topics.queries, topics.responses, topics.receipts, topics.dead_letters, replies)
