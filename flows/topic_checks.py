"""What brokers say of the topics of a deployment: how large a record each takes, and whose times are in it."""

import logging
from collections.abc import Iterable

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import KEEPS_ALL, ask_configs
from recallflow.errors import UsageError

LEAST_BYTES = 16 * 1024  # room for every key, header and error there may be

_log = logging.getLogger(__name__)


def stamped_by_log(options: KafkaOptions, topics: Iterable[str]) -> frozenset[str]:
    """Those of the topics whose records carry the time of the log."""
    return frozenset(topic for topic, found in ask_configs(options, topics).items() if found.stamped_by_log)


def judged_by_senders(topics: Iterable[str]) -> UsageError:
    """Why records of topics cannot be judged as of a time that their producers choose."""
    return UsageError(
        f"{', '.join(topics)}: records carry their producers' times (CreateTime), by which credentials would be "
        "judged: set message.timestamp.type=LogAppendTime"
    )


def ask_sizes(
    options: KafkaOptions, inputs: Iterable[str], written: Iterable[str], *, judged: bool = False
) -> dict[str, int]:
    """Asks the brokers how large a record each written topic takes; a log line where the clocks of producers stamp what
    is read. Raises UsageError where that is next to nothing, and where records are `judged` as of a time that their
    producers choose: an expired token would hold, and a revoked key."""
    found = ask_configs(options, (*inputs, *written))
    if own := [topic for topic in inputs if not found[topic].stamped_by_log]:
        if judged:
            raise judged_by_senders(own)
        _log.warning(
            "%s: records carry their producers' times (CreateTime): clocks that differ mix up what was known when; "
            "set message.timestamp.type=LogAppendTime",
            ", ".join(own),
        )
    most_bytes = {topic: found[topic].most_bytes for topic in written}
    if small := [topic for topic, most in most_bytes.items() if most < LEAST_BYTES]:
        raise UsageError(f"{', '.join(small)}: max.message.bytes is too small; set it to {LEAST_BYTES} or more")
    return most_bytes


def check_control(options: KafkaOptions, topic: str) -> None:
    """A log line where decisions may be lost, or claim to be of another time than they are."""
    found = ask_configs(options, [topic])[topic]
    if not found.keeps_all:
        wanted = ", ".join(f"{name}={value}" for name, value in KEEPS_ALL.items())
        _log.warning(
            "%s does not keep everything: records are judged by what was decided when they came, and a rebuild would "
            "judge them otherwise; set %s",
            topic,
            wanted,
        )
    if not found.stamped_by_log:
        _log.warning(
            "%s: decisions carry their senders' times (CreateTime), and can be backdated; set "
            "message.timestamp.type=LogAppendTime",
            topic,
        )
