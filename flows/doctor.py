"""Checks of `recallflow doctor`: state directory, models, credentials, and Kafka. They change nothing."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

import httpx
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from recallflow.connectors.embedders import REMOTE, load_remote
from recallflow.connectors.kafka import admin as kafka_admin
from recallflow.connectors.kafka.admin import KEEPS_ALL, InspectedTopic
from recallflow.connectors.kafka.control import ControlTable
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.llm.policy import Endpoint
from recallflow.control import ControlHistory
from recallflow.embedder import Embedder
from recallflow.errors import RecallflowError, SourceError, StateFormatError, UsageError
from recallflow.flows.admission import key_source, trust_of
from recallflow.flows.config import Config
from recallflow.flows.router import deployment_name
from recallflow.flows.settings import open_at_rest
from recallflow.flows.topic_checks import LEAST_BYTES
from recallflow.kafka_clients import remedy_of
from recallflow.kafka_options import READER_GROUP
from recallflow.limits import RECORD_BYTES
from recallflow.operators.authorise import Authoriser
from recallflow.private_files import find_exposed_paths
from recallflow.schema_registry import PREFIX
from recallflow.state.description import DESCRIPTION, adopt_partition_count, check_settings, describe
from recallflow.state.encryption import Keyring
from recallflow.state.folders import unpurged_owners
from recallflow.state.lock import holder

Status = Literal["OK", "WARN", "FAIL"]
FREE_LEAST_BYTES, FREE_GOOD_BYTES = 128 * 1024 * 1024, 2 * 1024 * 1024 * 1024
FREE_GOOD_SHARE = 0.1
OTHER_DIRECTORY = "give the settings and master key of its creation, or another directory (--state-dir)"
NEW_DIRECTORY = "keep it until recallflow run has filled another directory (--state-dir) from the log"
RESTORE = "restore a checkpoint (recallflow state restore)"
ASK_S = 10.0
KEY_REFUSED = (401, 403)
OTHER_MODEL = "put the model's files there, or name another model (--{}, --{})"
CREATE = "recallflow topics create"
CLOCK_MS = 1_000  # tolerated clock skew
READS, WRITES = frozenset(("READ", "DESCRIBE")), frozenset(("WRITE", "DESCRIBE"))


class Finding(NamedTuple):
    """The result of one check. `what` describes it; `todo` is the remedy, empty if there is none."""

    check: str
    status: Status
    what: str
    todo: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(check, "OK", what)


def warn(check: str, what: str, todo: str = "") -> Finding:
    """Return a finding about something that works, perhaps not as expected."""
    return Finding(check, "WARN", what, todo)


def fail(check: str, what: str, todo: str) -> Finding:
    """Return a finding about something that fails or loses data. Line breaks of library messages are removed."""
    return Finding(check, "FAIL", " ".join(what.split()), todo)


def state_findings(
    config: Config, embedder: Embedder | None, directories: Callable[[Path], Sequence[Path]]
) -> Iterator[Finding]:
    """Examine the state of all processes of `run`, without fingerprint if the embedder cannot be loaded. `directories`
    returns the directories that the processes would open, or raises UsageError for another number of processes."""
    path = config.state_dir
    if path is None:
        yield warn("state directory", "none is configured, so it was not checked", "name it: --state-dir")
        return
    yield _disk(path)
    if not path.exists():
        parent = next(one for one in path.absolute().parents if one.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            yield ok("state directory", f"{path} does not exist yet: the first start creates it")
        else:
            what = f"{path} cannot be created in {parent}"
            yield fail("state directory", what, "give this user the right to write there")
        return
    try:
        found = directories(path)
    except UsageError as error:
        todo = "use the number of processes that created the directory, or split or merge it"
        yield fail("state directory", str(error), todo)
        return
    if [*found] == [path]:
        yield from _directory(path, config, embedder)
    else:
        yield from _members(path, found, config, embedder)


def _members(path: Path, found: Sequence[Path], config: Config, embedder: Embedder | None) -> Iterator[Finding]:
    """Examine the directories of several processes. Identical results become one finding."""
    yield from _permissions(path)
    if (used := _used(path)) is not None:  # the members are running, each with its own directory
        yield used
        return
    filled = [folder for folder in found if (folder / DESCRIPTION).exists()]
    if missing := [folder.name for folder in found if folder not in filled]:
        yield ok("state directory", f"{', '.join(missing)} of {path} do not exist yet: the first start creates them")
    others = sorted(one.parent.name for one in path.glob(f"*/{DESCRIPTION}") if one.parent not in found)
    if others:
        what = f"{', '.join(others)} of {path} are left over from a run with another number of processes"
        remedy = "use the --processes of the run that created them"
        yield warn("state directory", what, f"{remedy}; otherwise their partitions are read again from the log")
    folders_of = dict[Finding, list[str]]()
    for folder in filled:
        for one in _directory(folder, config, embedder):
            folders_of.setdefault(one, []).append(folder.name)
    yield from (one._replace(check=f"{one.check} of {', '.join(names)}") for one, names in folders_of.items())


def _directory(path: Path, config: Config, embedder: Embedder | None) -> Iterator[Finding]:
    try:
        yield from _guarded("state directory", lambda: _described(path, config, embedder), OTHER_DIRECTORY)
    except StateFormatError as error:  # nothing in it can be read
        yield fail("state directory", str(error), NEW_DIRECTORY)
        return
    yield from _permissions(path)
    if (used := _used(path)) is not None:
        yield used
        return
    yield ok("lock", "no process holds it")
    if (path / DESCRIPTION).exists():
        yield from _guarded("erasures", lambda: _erasures(path), RESTORE)


def _permissions(path: Path) -> Iterator[Finding]:
    if path.is_dir() and (wide := find_exposed_paths(path)):
        shown = ", ".join(one.name for one in wide[:3]) + (", …" if len(wide) > 3 else "")
        what = f"other users of this machine may read or change {len(wide)} entries of {path} ({shown})"
        yield warn("permissions", what, f"chmod -R go-rwx {path}")


def _used(path: Path) -> Finding | None:
    """Return a finding about the process that holds a directory; None if there is none."""
    try:
        used_by = holder(path)
    except RecallflowError as error:
        return fail("lock", str(error), "give this user the right to read and write there")
    todo = "if that is not the engine, stop it; a directory in use is not checked"
    return None if used_by is None else warn("lock", f"{path} is in use by {used_by}", todo)


def _guarded(check: str, look: Callable[[], Finding], todo: str) -> Iterator[Finding]:
    try:
        yield look()
    except StateFormatError:
        raise
    except RecallflowError as error:
        yield fail(check, str(error), todo)
    except OSError as error:
        yield fail(check, f"cannot be read: {error}", "give this user the right to read it")


def _described(path: Path, config: Config, embedder: Embedder | None) -> Finding:
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return fail("state directory", f"{path} is not writable", "give this user the right to write there")
    if not any(path.iterdir()):
        return ok("state directory", f"{path} is empty: the first start fills it")
    stored = describe(path)
    Keyring.opened(stored.secret, path, open_at_rest(config.encryption))
    if embedder is not None:
        check_settings(path, stored.fingerprint, adopt_partition_count(path, config.engine.fingerprint(embedder)))
    encrypted = "" if stored.secret.master_key is None else f", encrypted with {stored.secret.master_key}"
    return ok("state directory", f"{path}: {stored.fingerprint.partitions} state partitions{encrypted}")


def _erasures(path: Path) -> Finding:
    left = unpurged_owners(path, describe(path).fingerprint.partitions)
    if left:
        todo = "start the engine, which cleans the files, or run: recallflow erase … --verify"
        return warn("erasures", f"files may still hold data of {left} erased users", todo)
    return ok("erasures", "no file is left to clean")


def _disk(path: Path) -> Finding:
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    used = shutil.disk_usage(there)
    what = f"{used.free:,} of {used.total:,} bytes are free at {there}"
    if used.free < FREE_LEAST_BYTES:
        return fail("disk", what, "free some: on a full disk the engine stops; acknowledged records are not lost")
    if used.free < min(FREE_GOOD_BYTES, FREE_GOOD_SHARE * used.total):
        return warn("disk", what, "free some, or move the state directory to a larger disk")
    return ok("disk", what)


def open_model(config: Config) -> tuple[Embedder | None, list[Finding]]:
    """Return the embedder, and the findings about it. No remote call is made."""
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
    """Examine the configured models. No text is sent to a model, and no call is charged."""
    engine, llm, embedding = config.engine, config.llm, config.embedding
    if engine.embedder == REMOTE:
        where = Endpoint(embedding.base_url, embedding.key, embedding.headers)
        yield _endpoint("embedding service", embedding.model, where)
    if llm.model is not None:
        yield _endpoint("language model", llm.model, Endpoint(llm.base_url, llm.key, llm.headers))
    if engine.reranker is not None and engine.reranker_url is not None:
        yield _reranker(engine.reranker_url)
    elif engine.reranker is not None:
        try:
            engine.load_reranker()
        except (RecallflowError, OSError) as error:
            yield fail("reranker", str(error), OTHER_MODEL.format("reranker", "reranker-path"))
        else:
            yield ok("reranker", f"{engine.reranker} is installed")


def _endpoint(check: str, model: str, endpoint: Endpoint) -> Finding:
    """Examine an endpoint by its list of models."""
    headers = dict(endpoint.named_headers)
    if endpoint.key is not None:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    url = f"{endpoint.url.rstrip('/')}/models"
    try:
        answer = httpx.get(url, headers=headers, timeout=ASK_S, follow_redirects=False)
    except httpx.HTTPError as error:
        what = f"{url} cannot be reached: {type(error).__name__}"
        return fail(check, what, "start it, or give another address (--llm-url, --embedding-url)")
    if answer.status_code in KEY_REFUSED:
        return fail(check, f"{url} refuses the key ({answer.status_code})", "give another key (llm.key, embedding.key)")
    unknown = warn(check, f"{url} does not list its models ({answer.status_code})", f"send it a request for {model}")
    if answer.status_code != httpx.codes.OK:
        return unknown
    try:
        names = {str(one["id"]) for one in answer.json()["data"]}
    except (ValueError, LookupError, TypeError):
        return unknown
    if model not in names:
        return warn(check, f"{url} does not list {model}", "name one of its models")
    return ok(check, f"{url} has {model}")


def _reranker(url: str) -> Finding:
    try:
        status = httpx.get(url, timeout=ASK_S, follow_redirects=False).status_code
    except httpx.HTTPError as error:
        todo = "start it, or give its address (--reranker-url)"
        return fail("reranker", f"{url} cannot be reached: {type(error).__name__}", todo)
    return ok("reranker", f"{url} answers ({status})")


def auth_findings(config: Config, *, broker: bool) -> Iterator[Finding]:
    """Examine authorisation. `broker`: whether the control topic can be read."""
    try:
        source = key_source(config.auth)
        if source is not None:
            found = source.read()
            for problem in found.problems:
                yield warn("signing keys", problem, "remove it, or give a key that can sign tokens")
            yield ok("signing keys", f"{len(found.keys)} in {config.auth.jwks}")
    except (RecallflowError, OSError) as error:
        yield fail("signing keys", str(error), "give a file or an address of a JWKS (auth.jwks)")
    if not broker:
        return
    history = ControlHistory()
    try:
        opened = ControlTable(config.kafka, config.topics.control, history=history, secret=config.auth.control_secret)
    except RecallflowError as error:
        yield fail("control events", str(error), "create the topic (recallflow topics create), or grant READ on it")
        return
    with closing(opened) as table:
        for reason, count in table.left_out.items():
            todo = "find out who writes to the control topic; docs/how-to/access-control.md"
            yield warn("control events", f"{count} are ignored ({reason})", todo)
    authoriser = Authoriser(history, trust_of(config.auth, {}))
    if authoriser.needs_credentials():
        yield ok("auth", authoriser.describe())
    elif config.auth.mode == "off":
        yield warn("auth", authoriser.describe(), "set auth.mode=auto, unless only you have access to the topics")
    else:
        yield warn("auth", authoriser.describe(), "create a key: recallflow keys create")


def registry_findings(config: Config) -> Iterator[Finding]:
    """Examine the schema registry, and its schema of responses."""
    if (registry := config.kafka.registry) is None:
        return
    check, todo = "schema registry", f"correct {PREFIX}url and the credentials of the registry, or start it"
    try:
        with registry.translate_errors():
            registry.client.get_subjects(subject_prefix=config.topics.memory)
        config.response_schema_id()
    except RecallflowError as error:
        what, _, remedy = str(error).rpartition("; ")
        yield fail(check, what or remedy, remedy if what else todo)
    else:
        yield ok(check, f"{registry.url} answers")


def kafka_findings(config: Config, *, enriches: bool) -> Iterator[Finding]:
    """Examine Kafka; only the brokers if they do not answer."""
    try:
        with TopicReader(config.kafka) as reader:
            cluster = reader.cluster_id()
    except SourceError as error:
        usual = "start it, give its address (--bootstrap-servers), or set security.protocol"
        if endpoint := config.kafka.librdkafka.get("sasl.oauthbearer.token.endpoint.url"):
            usual += f"; or mend {endpoint}: a client retries a login after its server errors and reports none"
        todo = remedy_of(str(error), usual)
        yield fail("broker", str(error).removesuffix(f"; {todo}"), todo)
        return
    yield ok("broker", f"{config.kafka.bootstrap_servers} answers, cluster {cluster}")
    admin = AdminClient(config.kafka.admin())
    try:
        yield from _topics(config, admin, enriches=enriches)
    except KafkaException as error:
        yield fail("topics", f"the brokers refuse to describe topics: {error.args[0].str()}", "grant DESCRIBE")


def _topics(config: Config, admin: AdminClient, *, enriches: bool) -> Iterator[Finding]:
    topics = config.topics
    written = topics.written(enriches=enriches)
    found = kafka_admin.inspect_topics(admin, (*topics.read(), *written))
    for name, topic in found.items():
        yield from _topic(topic)
        if topic.problem is None:
            settings = kafka_admin.topic_settings(admin, [name])[name]
            if isinstance(settings, KafkaError):
                todo = "grant DESCRIBE_CONFIGS: without it, size limits and timestamps are assumed"
                yield warn(f"topic {name}", f"its settings cannot be read: {settings.str()}", todo)
            else:
                yield from _settings(config, name, settings, is_written=name in written)
            needs = (READS if name in topics.read() else frozenset()) | (WRITES | READS if name in written else READS)
            yield from _rights(f"rights {name}", topic.rights, needs, f"topic {name}")
    group = deployment_name(config, topics.memory)
    yield _group(admin, group, "READ")
    yield _group(admin, READER_GROUP, "DESCRIBE")
    yield _clock(admin, [one for one in found.values() if one.problem is None])


def _topic(topic: InspectedTopic) -> Iterator[Finding]:
    check = f"topic {topic.name}"
    if topic.missing:
        yield fail(check, "does not exist, or is not visible to us", f"create it ({CREATE}), or grant DESCRIBE")
    elif topic.problem is not None:
        yield fail(check, topic.problem, "grant DESCRIBE")
    elif topic.leaderless:
        numbers = ", ".join(map(str, topic.leaderless))
        yield fail(check, f"no broker leads partition {numbers}", "start the brokers that hold it")
    else:
        yield ok(check, f"{topic.partitions} partitions")


def _settings(config: Config, name: str, settings: Mapping[str, str], *, is_written: bool) -> Iterator[Finding]:
    """Examine the settings of a topic that would lose records, refuse them, or give them wrong times."""
    check, topics = f"settings {name}", config.topics
    found = [*_retention(check, name, settings, config), *_timestamps(check, name, settings, config)]
    most = int(settings["max.message.bytes"])
    if is_written and most < LEAST_BYTES:
        todo = f"set max.message.bytes={LEAST_BYTES} or more"
        found.append(fail(check, f"accepts records of at most {most:,} bytes", todo))
    elif name in topics.read() and most < RECORD_BYTES:
        todo = f"set max.message.bytes={2 * RECORD_BYTES}"
        found.append(warn(check, f"accepts records of {most:,} bytes; events may have {RECORD_BYTES:,}", todo))
    yield from found or [ok(check, "as recommended")]


def _retention(check: str, name: str, settings: Mapping[str, str], config: Config) -> Iterator[Finding]:
    compacts = "compact" in settings["cleanup.policy"]
    if compacts and name == config.topics.control:
        todo = f"set {', '.join(f'{key}={value}' for key, value in KEEPS_ALL.items())}"
        yield fail(check, "is compacted: old decisions are deleted, but authorise older records", todo)
    elif compacts:
        yield fail(check, "is compacted: only the last record of a user is kept", "set cleanup.policy=delete")
    expires = settings["retention.ms"] != "-1" or settings["retention.bytes"] != "-1"
    if expires and name in (config.topics.memory, config.topics.control) and not compacts:
        todo = "set retention.ms=-1 and retention.bytes=-1"
        yield warn(check, "records expire, and would be missing from a rebuild", todo)


def _timestamps(check: str, name: str, settings: Mapping[str, str], config: Config) -> Iterator[Finding]:
    if name not in config.topics.read() or settings["message.timestamp.type"] == "LogAppendTime":
        return
    todo = "set message.timestamp.type=LogAppendTime"
    what = "records carry their producers' times (CreateTime)"
    if config.auth.mode == "required" and name != config.topics.control:
        yield fail(check, f"{what}, and credentials would be checked as of those times: run refuses to start", todo)
    else:
        yield warn(check, f"{what}: clock skew would change the order of ingestion times", todo)


def _rights(check: str, rights: frozenset[str] | None, needs: frozenset[str], what: str) -> Iterator[Finding]:
    if rights is None:
        yield warn(check, "the brokers do not report rights", "upgrade them, or check the ACLs")
    elif missing := sorted(needs - rights):
        yield fail(check, f"{', '.join(missing)} is denied", f"grant {', '.join(missing)} on {what}")
    else:
        yield ok(check, ", ".join(sorted(needs)))


def _group(admin: AdminClient, group: str, right: str) -> Finding:
    check, todo = f"rights of group {group}", f"grant {right} on group {group}"
    rights = kafka_admin.group_rights(admin, group)
    if isinstance(rights, str):
        return fail(check, rights, todo)
    return next(_rights(check, rights, frozenset((right,)), f"group {group}"))


def _clock(admin: AdminClient, topics: list[InspectedTopic]) -> Finding:
    """Compare our clock with the times of records. A broker's clock that is behind ours is not detected."""
    now_ms = time.time_ns() // 1_000_000
    newest_ms = kafka_admin.newest_ms(admin, topics)
    if newest_ms is None:
        return ok("clock", "there is no record to compare the time with")
    ahead_s = (newest_ms - now_ms) / 1000
    if newest_ms > now_ms + CLOCK_MS:
        what = f"the newest record is {ahead_s:,.1f} s ahead of us: our clock is behind, or a producer's is ahead"
        return fail("clock", what, "synchronise clocks (NTP) of this machine and of the brokers")
    return ok("clock", f"the newest record was appended {max(0.0, -ahead_s):,.1f} s ago")


def examine(config: Config, directories: Callable[[Path], Sequence[Path]]) -> Iterator[Finding]:
    """Yield all findings. Findings with the same cause are merged. `directories`: see `state_findings`."""
    embedder, found = open_model(config)
    wanted = None if embedder is None else config.enrichment.wanted(embedder)
    kafka = [*kafka_findings(config, enriches=wanted is not None)]
    yield from merge_by_cause(kafka)
    yield from registry_findings(config)
    yield from merge_by_cause(state_findings(config, embedder, directories))
    yield from merge_by_cause(found)
    yield from merge_by_cause(model_findings(config))
    broker = any((finding.check, finding.status) == ("broker", "OK") for finding in kafka)
    yield from merge_by_cause(auth_findings(config, broker=broker))


def merge_by_cause(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Merge findings with the same cause. The result lists their checks and remedies."""
    joined = dict[object, list[Finding]]()
    for number, one in enumerate(findings):
        joined.setdefault(number if one.status == "OK" else (one.status, one.what), []).append(one)
    for same in joined.values():
        checks, remedies = ({getattr(one, name): None for one in same} for name in ("check", "todo"))
        yield same[0]._replace(check=", ".join(checks), todo="; ".join(remedies))
