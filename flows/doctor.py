"""Checks of `recallflow doctor`: state directory, models, credentials, and Kafka. Nothing is changed."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

import httpx
from confluent_kafka import KafkaException

from recallflow.brokers.options import READER_GROUP
from recallflow.connectors.embedders import REMOTE, load_remote
from recallflow.connectors.kafka.admin import KEEPS_ALL, Examiner, Topic
from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.llm import Endpoint
from recallflow.decisions import History
from recallflow.embedder import Embedder
from recallflow.errors import RecallflowError, SourceError, StateFormatError, UsageError
from recallflow.flows.admission import key_source, trust_of
from recallflow.flows.config import Config
from recallflow.flows.router import deployment_name
from recallflow.flows.security_settings import open_at_rest
from recallflow.flows.topic_checks import LEAST_BYTES
from recallflow.limits import RECORD_BYTES
from recallflow.operators.authorise import Authoriser
from recallflow.private_files import open_to_others
from recallflow.state.directory import DESCRIPTION, describe, kept_fingerprint
from recallflow.state.fingerprint import check_settings
from recallflow.state.lock import holder
from recallflow.state.looking import unpurged_owners

Status = Literal["OK", "WARN", "FAIL"]
FREE_LEAST_BYTES, FREE_GOOD_BYTES = 128 * 1024 * 1024, 2 * 1024 * 1024 * 1024
FREE_GOOD_SHARE = 0.1
OTHER_DIRECTORY = "give settings and master key that it was made with, or another directory (--state-dir)"
NEW_DIRECTORY = "keep it until recallflow run has filled another one (--state-dir) from the log"
RESTORE = "restore a checkpoint (recallflow state restore)"
ASK_S = 10.0
KEY_REFUSED = (401, 403)
OTHER_MODEL = "put a model's files there, or name another (--{}, --{})"
CREATE = "recallflow topics create"
CLOCK_MS = 1_000  # so far clocks may differ
READS, WRITES = frozenset(("READ", "DESCRIBE")), frozenset(("WRITE", "DESCRIBE"))


class Finding(NamedTuple):
    """`check`: what was looked at; `what`: what was found; `todo`: what to do about it, empty where nothing is."""

    check: str
    status: Status
    what: str
    todo: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(check, "OK", what)


def warn(check: str, what: str, todo: str = "") -> Finding:
    """It works, and may not do what is expected."""
    return Finding(check, "WARN", what, todo)


def fail(check: str, what: str, todo: str) -> Finding:
    """It does not work so, or loses something. What a library says over several lines becomes one."""
    return Finding(check, "FAIL", " ".join(what.split()), todo)


def state_findings(
    config: Config, embedder: Embedder | None, directories: Callable[[Path], Sequence[Path]]
) -> Iterator[Finding]:
    """Examine the state of all processes of `run`.

    Args:
        config: The settings of `run`.
        embedder: None where it cannot be loaded, which another finding says.
        directories: Names the directories that the processes would open, and raises UsageError where the folder that
            is given holds the state of another number of processes.
    """
    path = config.state_dir
    if path is None:
        yield warn("state directory", "none is named, so that it is not looked at", "name it: --state-dir")
        return
    yield _disk(path)
    if not path.exists():
        yield _to_be_made(path)
        return
    try:
        found = directories(path)
    except UsageError as error:
        yield fail("state directory", str(error), "give --processes as the directory was filled, or split or merge it")
        return
    if [*found] == [path]:
        yield from _directory(path, config, embedder)
    else:
        yield from _members(path, found, config, embedder)


def _members(path: Path, found: Sequence[Path], config: Config, embedder: Embedder | None) -> Iterator[Finding]:
    """Examine the directories of several processes: what is true of many of them is one finding."""
    yield from _permissions(path)
    if (used := _used(path)) is not None:  # then its members are at work, each on a directory of its own
        yield used
        return
    filled = [folder for folder in found if (folder / DESCRIPTION).exists()]
    if missing := [folder.name for folder in found if folder not in filled]:
        yield ok("state directory", f"{', '.join(missing)} of {path} are not there yet: a first start makes them")
    others = sorted(one.parent.name for one in path.glob(f"*/{DESCRIPTION}") if one.parent not in found)
    if others:
        todo = "give --processes as the directory was filled, or leave it: their partitions are read again elsewhere"
        yield warn("state directory", f"{len(found)} processes do not use {', '.join(others)} of {path}", todo)
    said = dict[Finding, list[str]]()
    for folder in filled:
        for one in _directory(folder, config, embedder):
            said.setdefault(one, []).append(folder.name)
    yield from (one._replace(check=f"{one.check} of {', '.join(names)}") for one, names in said.items())


def _directory(path: Path, config: Config, embedder: Embedder | None) -> Iterator[Finding]:
    """Examine the state directory of one process."""
    try:
        yield from _tried("state directory", lambda: _described(path, config, embedder), OTHER_DIRECTORY)
    except StateFormatError as error:  # whatever else is in it, we cannot read
        yield fail("state directory", str(error), NEW_DIRECTORY)
        return
    yield from _permissions(path)
    if (used := _used(path)) is not None:
        yield used
        return
    yield ok("lock", "nobody holds it")
    if (path / DESCRIPTION).exists():
        yield from _tried("erasures", lambda: _erasures(path), RESTORE)


def _permissions(path: Path) -> Iterator[Finding]:
    """Warn of a directory that an older version, or somebody by hand, opened to other users of the machine."""
    if path.is_dir() and (wide := open_to_others(path)):
        shown = ", ".join(one.name for one in wide[:3]) + (", …" if len(wide) > 3 else "")
        what = f"other users of this machine may read or change {len(wide)} entries of {path} ({shown})"
        yield warn("permissions", what, f"chmod -R go-rwx {path}")


def _used(path: Path) -> Finding | None:
    """Who holds a directory, where somebody does."""
    try:
        used_by = holder(path)
    except RecallflowError as error:
        return fail("lock", str(error), "give this user the right to read and write there")
    todo = "if that is not the engine, stop it; what it works on is not looked at now"
    return None if used_by is None else warn("lock", f"{path} is in use by {used_by}", todo)


def _tried(check: str, look: Callable[[], Finding], todo: str) -> Iterator[Finding]:
    """`todo`: what to do where it finds fault."""
    try:
        yield look()
    except StateFormatError:
        raise
    except RecallflowError as error:
        yield fail(check, str(error), todo)
    except OSError as error:
        yield fail(check, f"cannot be read: {error}", "give this user the right to read it")


def _to_be_made(path: Path) -> Finding:
    parent = next(one for one in (*path.absolute().parents,) if one.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        return fail("state directory", f"{path} cannot be made in {parent}", "give this user the right to write there")
    return ok("state directory", f"{path} is not there yet: a first start makes it")


def _described(path: Path, config: Config, embedder: Embedder | None) -> Finding:
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return fail("state directory", f"{path} cannot be written to", "give this user the right to")
    if not any(path.iterdir()):
        return ok("state directory", f"{path} is empty: a first start fills it")
    stored = describe(path)
    stored.keyring(path, open_at_rest(config.encryption))
    if embedder is not None:
        check_settings(path, stored.fingerprint, kept_fingerprint(path, config.engine.fingerprint(embedder)))
    encrypted = "" if stored.secret.master_key is None else f", encrypted with {stored.secret.master_key}"
    return ok("state directory", f"{path}: {stored.fingerprint.partitions} state partitions{encrypted}")


def _erasures(path: Path) -> Finding:
    left = unpurged_owners(path, describe(path).fingerprint.partitions)
    if left:
        todo = "start the engine, which cleans them, or: recallflow erase … --verify"
        return warn("erasures", f"files may still hold something of {left} erased users", todo)
    return ok("erasures", "nothing is left to clean")


def _disk(path: Path) -> Finding:
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    used = shutil.disk_usage(there)
    what = f"{used.free:,} of {used.total:,} bytes are free at {there}"
    if used.free < FREE_LEAST_BYTES:
        return fail("disk", what, "free some: without room the engine stops, and nothing acknowledged is lost")
    if used.free < min(FREE_GOOD_BYTES, FREE_GOOD_SHARE * used.total):
        return warn("disk", what, "free some, or move the state directory to a larger disk")
    return ok("disk", what)


def open_model(config: Config) -> tuple[Embedder | None, list[Finding]]:
    """The embedder as it says it is, without a call, and what was found of it."""
    engine = config.engine
    try:
        if engine.embedder == REMOTE:
            service = config.embedding.load_service()
            embedder: Embedder = load_remote(service, engine.model_path)
            asyncio.run(service.close())
        else:
            embedder = engine.load_embedder()
    except (RecallflowError, OSError) as error:
        remote = "give the service's key, model and dimension (embedding.key, --embedding-model, --embedding-dimension)"
        todo = remote if engine.embedder == REMOTE else OTHER_MODEL.format("embedder", "model-path")
        return None, [fail("embedder", str(error), todo)]
    return embedder, [ok("embedder", f"{embedder.name}, {embedder.dimension} dimensions")]


def model_findings(config: Config) -> Iterator[Finding]:
    """Of the models that the settings name. No text is sent to any, and no call is charged."""
    engine, llm, embedding = config.engine, config.llm, config.embedding
    if engine.embedder == REMOTE:
        where = Endpoint(embedding.base_url, embedding.key, embedding.headers)
        yield _endpoint("embedding service", embedding.model, where)
    if llm.model is not None:
        yield _endpoint("language model", llm.model, Endpoint(llm.base_url, llm.key, llm.headers))
    if engine.reranker is not None and engine.reranker_url is not None:
        yield _address("reranker", engine.reranker_url)
    elif engine.reranker is not None:
        try:
            engine.load_reranker()
        except (RecallflowError, OSError) as error:
            yield fail("reranker", str(error), OTHER_MODEL.format("reranker", "reranker-path"))
        else:
            yield ok("reranker", f"{engine.reranker} is here")


def _endpoint(check: str, model: str, endpoint: Endpoint) -> Finding:
    """Asks which models there are."""
    headers = dict(endpoint.named_headers)
    if endpoint.key is not None:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    url = f"{endpoint.url.rstrip('/')}/models"
    try:
        answer = httpx.get(url, headers=headers, timeout=ASK_S, follow_redirects=False)
    except httpx.HTTPError as error:
        what = f"{url} cannot be reached: {type(error).__name__}"
        return fail(check, what, "start it, or name another (--llm-url, --embedding-url)")
    if answer.status_code in KEY_REFUSED:
        return fail(check, f"{url} refuses the key ({answer.status_code})", "give another key (llm.key, embedding.key)")
    unknown = warn(check, f"{url} does not say whether it has {model} ({answer.status_code})", "ask it something")
    if answer.status_code != httpx.codes.OK:
        return unknown
    try:
        names = {str(one["id"]) for one in answer.json()["data"]}
    except (ValueError, LookupError, TypeError):
        return unknown
    if model not in names:
        return warn(check, f"{url} does not list {model}", "name a model that it has")
    return ok(check, f"{url} has {model}")


def _address(check: str, url: str) -> Finding:
    try:
        status = httpx.get(url, timeout=ASK_S, follow_redirects=False).status_code
    except httpx.HTTPError as error:
        return fail(check, f"{url} cannot be reached: {type(error).__name__}", "start it, or name it (--reranker-url)")
    return ok(check, f"{url} answers ({status})")


def auth_findings(config: Config, *, broker: bool) -> Iterator[Finding]:
    """Who may send records. `broker`: whether the control topic can be read."""
    try:
        source = key_source(config.auth)
        if source is not None:
            found = source.read()
            for problem in found.problems:
                yield warn("signing keys", problem, "leave it out, or give one that tokens may be signed with")
            yield ok("signing keys", f"{len(found.keys)} in {config.auth.jwks}")
    except (RecallflowError, OSError) as error:
        yield fail("signing keys", str(error), "give a file or an address of a JWKS (auth.jwks)")
    if not broker:
        return
    history = History()
    try:
        opened = ControlTable(config.kafka, config.topics.control, history=history, secret=config.auth.control_secret)
    except RecallflowError as error:
        yield fail("control events", str(error), "create the topic (recallflow topics create), or grant READ on it")
        return
    with closing(opened) as table:
        for reason, count in table.left_out.items():
            todo = "look who writes to the control topic; docs/how-to/access-control.md"
            yield warn("control events", f"{count} do not count ({reason})", todo)
    yield _believed(config, Authoriser(history, trust_of(config.auth, {})))


def _believed(config: Config, authoriser: Authoriser) -> Finding:
    if authoriser.asks():
        return ok("auth", authoriser.describe())
    if config.auth.mode == "off":
        return warn("auth", authoriser.describe(), "set auth.mode=auto, unless nobody but you reaches the topics")
    return warn("auth", authoriser.describe(), "make a key: recallflow keys create")


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


def examine(config: Config, directories: Callable[[Path], Sequence[Path]]) -> Iterator[Finding]:
    """Yield the findings about everything, part by part, each cause once. `directories`: see `state_findings`."""
    embedder, found = open_model(config)
    wanted = None if embedder is None else config.enrichment.wanted(embedder)
    kafka = [*kafka_findings(config, enriches=wanted is not None)]
    yield from one_finding_a_cause(kafka)
    yield from one_finding_a_cause(state_findings(config, embedder, directories))
    yield from one_finding_a_cause(found)
    yield from one_finding_a_cause(model_findings(config))
    broker = any((finding.check, finding.status) == ("broker", "OK") for finding in kafka)
    yield from one_finding_a_cause(auth_findings(config, broker=broker))


def one_finding_a_cause(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Join findings that complain of the same: their checks and remedies are listed."""
    joined = dict[object, list[Finding]]()
    for number, one in enumerate(findings):
        joined.setdefault(number if one.status == "OK" else (one.status, one.what), []).append(one)
    for same in joined.values():
        checks, remedies = ({getattr(one, name): None for one in same} for name in ("check", "todo"))
        yield same[0]._replace(check=", ".join(checks), todo="; ".join(remedies))
