"""Before a newcomer joins a group: whether its topics fit, and whether everybody who is in it can let it in."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from confluent_kafka import TopicPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.holder import Holder
from recallflow.connectors.kafka.lease import MARGIN_MIN_S, Lease
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import UsageError
from recallflow.ranges import ranges_of

ASK_S = 2.0
LOOK_RENEWALS = 2.5  # who has not renewed within so many times is silent

_log = logging.getLogger(__name__)


def check_topics(options: KafkaOptions, topics: tuple[str, str], own: Collection[int] | None) -> None:
    """Raises UsageError where the topics of memory and queries are not partitioned alike, or have not what we are to
    own, and SourceError where they are missing."""
    with TopicReader(options) as reader:
        found = {topic: len(numbers) for topic, numbers in reader.partitions(topics).items()}
    memory, queries = (found[topic] for topic in topics)
    if memory != queries:
        less, more = (topics[0], queries) if memory < queries else (topics[1], memory)
        raise UsageError(
            f"{topics[0]} has {memory} partitions and {topics[1]} {queries}, and one member owns a "
            f"partition of both: add partitions to {less}, up to {more}"
        )
    if outside := [one for one in own or () if one >= memory]:
        raise UsageError(f"{topics[0]} has no partition {ranges_of(outside)}: it has {memory}, from 0 on")


def await_silent(
    options: KafkaOptions, name: str, query_topic: str, me: Holder, lease: Lease, stopping: threading.Event
) -> None:
    """The coordinator lets a newcomer in once every member has come to it again, or is given up. For one that was
    killed that takes its session, and so long it accepts nobody's commits: all would stop sending. So we wait until
    the group has given it up."""
    with TopicReader(options, {"group.id": name}) as reader:
        (numbers,) = reader.partitions([query_topic]).values()

        def read() -> Iterable[Holder]:
            return reader.ask(lambda: holders(reader, query_topic, numbers)).values()  # type: ignore[no-any-return]

        await_lively(read, me, lease, stopping)


def holders(reader: TopicReader, query_topic: str, numbers: Iterable[int]) -> dict[int, Holder]:
    """Who said last that a partition is its own, for each of which somebody did. Raises KafkaException."""
    asked = [TopicPartition(query_topic, number) for number in numbers]
    found = reader.consumer.committed(asked, timeout=ASK_S) if asked else []
    notes = {one.partition: Holder.parse(one.metadata or None) for one in found}
    return {number: holder for number, holder in notes.items() if holder is not None}


def await_lively(read: Callable[[], Iterable[Holder]], me: Holder, lease: Lease, stopping: threading.Event) -> None:
    """Returns once everybody who has not handed over is at work, or nobody is; after a session at the latest. Whose
    place we take is not waited for."""
    until_s = lease.clock_s() + lease.session_s + MARGIN_MIN_S
    warned = False
    before = _renewals(read(), me)
    while before and lease.clock_s() < until_s and not stopping.wait(LOOK_RENEWALS * lease.renew_s):
        now = _renewals(read(), me)
        silent = {run for run in now if now[run] == before.get(run)}
        if not silent or silent == now.keys():
            return
        if not warned:
            _log.info("waiting until the group has given up members that are silent: %d", len(silent))
            warned = True
        before = now


def _renewals(holders: Iterable[Holder], me: Holder) -> dict[str, int]:
    """Run → how often it has renewed."""
    found: dict[str, int] = {}
    for holder in holders:
        ours = holder.directory_id == me.directory_id != "" or holder.instance == me.instance != ""
        if not holder.released and not ours:
            found[holder.run] = max(holder.renewals, found.get(holder.run, 0))
    return found
