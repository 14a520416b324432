"""What `recallflow doctor` looks at in Kafka: brokers, topics, rights, clocks."""

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import KafkaException

from recallflow.brokers.options import READER_GROUP
from recallflow.connectors.kafka.admin import KEEPS_ALL, Examiner, Topic
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import SourceError
from recallflow.flows.config import Config
from recallflow.flows.finding import Finding, fail, ok, warn
from recallflow.flows.serving import deployment_name
from recallflow.flows.topic_checks import LEAST_BYTES
from recallflow.limits import RECORD_BYTES

CREATE = "recallflow topics create"
CLOCK_MS = 1_000  # so far clocks may differ
READS, WRITES = frozenset(("READ", "DESCRIBE")), frozenset(("WRITE", "DESCRIBE"))


def kafka_findings(config: Config, *, enriches: bool) -> Iterator[Finding]:
    """All about Kafka; about the brokers alone where they do not answer."""
    try:
        with TopicReader(config.kafka) as reader:
            cluster = reader.cluster_id()
    except SourceError as error:
        yield fail("broker", str(error), "start it, or name it (--bootstrap-servers), with its security options (-X)")
        return
    yield ok("broker", f"{config.kafka.bootstrap_servers} answers, cluster {cluster}")
    examiner = Examiner(config.kafka)
    try:
        yield from _topics(config, examiner, enriches=enriches)
    except KafkaException as error:
        yield fail("topics", f"the brokers do not describe topics: {error.args[0].str()}", "grant DESCRIBE")


def _topics(config: Config, examiner: Examiner, *, enriches: bool) -> Iterator[Finding]:
    topics = config.topics
    written = topics.written(enriches=enriches)
    found = examiner.topics((*topics.read(), *written))
    for name, topic in found.items():
        yield from _topic(topic)
        if topic.problem is None:
            settings = examiner.settings(name)
            if isinstance(settings, str):
                todo = "grant DESCRIBE_CONFIGS: without it sizes and clocks are guessed"
                yield warn(f"topic {name}", f"its settings are not told: {settings}", todo)
            else:
                yield from _settings(config, name, settings, is_written=name in written)
            needs = (READS if name in topics.read() else frozenset()) | (WRITES | READS if name in written else READS)
            yield from _rights(f"rights {name}", topic.rights, needs, f"topic {name}")
    group = deployment_name(config, topics.memory)
    yield _group(examiner, group, "READ")
    yield _group(examiner, READER_GROUP, "DESCRIBE")
    yield _clock(examiner, [one for one in found.values() if one.problem is None])


def _topic(topic: Topic) -> Iterator[Finding]:
    check = f"topic {topic.name}"
    if topic.missing:
        yield fail(check, "is not there, or we may not see it", f"create it ({CREATE}), or grant DESCRIBE")
    elif topic.problem is not None:
        yield fail(check, topic.problem, "grant DESCRIBE")
    elif topic.leaderless:
        numbers = ", ".join(map(str, topic.leaderless))
        yield fail(check, f"nobody leads partition {numbers}", "bring their brokers back")
    else:
        yield ok(check, f"{topic.partitions} partitions")


def _settings(config: Config, name: str, settings: Mapping[str, str], *, is_written: bool) -> Iterator[Finding]:
    """What of a topic's settings would lose records, refuse them, or mix up times."""
    check, topics = f"settings {name}", config.topics
    said = [*_kept(check, name, settings, config), *_stamped(check, name, settings, config)]
    most = int(settings["max.message.bytes"])
    if is_written and most < LEAST_BYTES:
        todo = f"set max.message.bytes={LEAST_BYTES} or more"
        said.append(fail(check, f"takes records of {most:,} bytes only", todo))
    elif name in topics.read() and most < RECORD_BYTES:
        todo = f"set max.message.bytes={2 * RECORD_BYTES}"
        said.append(warn(check, f"takes records of {most:,} bytes, events may have {RECORD_BYTES:,}", todo))
    yield from said or [ok(check, "as they should be")]


def _kept(check: str, name: str, settings: Mapping[str, str], config: Config) -> Iterator[Finding]:
    compacts = "compact" in settings["cleanup.policy"]
    if compacts and name == config.topics.control:
        todo = f"set {', '.join(f'{key}={value}' for key, value in KEEPS_ALL.items())}"
        yield fail(check, "is compacted: decisions are lost, by which older records were judged", todo)
    elif compacts:
        yield fail(check, "is compacted: all of a user but the last record is removed", "set cleanup.policy=delete")
    expires = settings["retention.ms"] != "-1" or settings["retention.bytes"] != "-1"
    if expires and name in (config.topics.memory, config.topics.control) and not compacts:
        todo = "set retention.ms=-1 and retention.bytes=-1"
        yield warn(check, "records expire, and a rebuild from the log would lack them", todo)


def _stamped(check: str, name: str, settings: Mapping[str, str], config: Config) -> Iterator[Finding]:
    if name not in config.topics.read() or settings["message.timestamp.type"] == "LogAppendTime":
        return
    todo = "set message.timestamp.type=LogAppendTime"
    what = "records carry their producers' times (CreateTime)"
    if config.auth.mode == "required" and name != config.topics.control:
        yield fail(check, f"{what}, by which credentials would be judged: run does not start", todo)
    else:
        yield warn(check, f"{what}: clocks that differ mix up what was known when", todo)


def _rights(check: str, rights: frozenset[str] | None, needs: frozenset[str], what: str) -> Iterator[Finding]:
    if rights is None:
        yield warn(check, "the brokers do not say what we may do", "upgrade them, or look at the ACLs")
    elif missing := sorted(needs - rights):
        yield fail(check, f"we may not {', '.join(missing)}", f"grant {', '.join(missing)} on {what}")
    else:
        yield ok(check, ", ".join(sorted(needs)))


def _group(examiner: Examiner, group: str, right: str) -> Finding:
    check, todo = f"rights of group {group}", f"grant {right} on group {group}"
    rights = examiner.group_rights(group)
    if isinstance(rights, str):
        return fail(check, rights, todo)
    return next(_rights(check, rights, frozenset((right,)), f"group {group}"))


def _clock(examiner: Examiner, topics: list[Topic]) -> Finding:
    """Ours against the log's. No broker tells its time without a record: that one runs behind ours is not seen."""
    now_ms = time.time_ns() // 1_000_000
    newest_ms = examiner.newest_ms(topics)
    if newest_ms is None:
        return ok("clock", "no record says what time it is")
    ahead_s = (newest_ms - now_ms) / 1000
    if newest_ms > now_ms + CLOCK_MS:
        what = f"the newest record is {ahead_s:,.1f} s ahead of us: our clock is behind, or a producer's is ahead"
        return fail("clock", what, "synchronise clocks (NTP) of this machine and of the brokers")
    return ok("clock", f"the newest record was appended {max(0.0, -ahead_s):,.1f} s ago")
