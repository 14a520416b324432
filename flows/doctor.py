"""Checks of `recallflow doctor`: state directory, models, credentials, and Kafka. They change nothing."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

import httpx
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from recallflow.connectors.embedders import REMOTE
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
from recallflow.flows.models import open_embedder
from recallflow.flows.router import deployment_name
from recallflow.flows.runner import now_ms
from recallflow.flows.settings import open_at_rest
from recallflow.flows.topic_checks import RECORD_BYTES_MIN
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
FREE_BYTES_MIN, FREE_BYTES_RECOMMENDED = 128 * 1024 * 1024, 2 * 1024 * 1024 * 1024
FREE_SHARE_RECOMMENDED = 0.1
OTHER_DIRECTORY = "give the settings and master key of its creation, or another directory (--state-dir)"
NEW_DIRECTORY = "keep it until recallflow run has filled another directory (--state-dir) from the log"
WRITABLE = "give this user the right to write there"
REQUEST_TIMEOUT_S = 10.0
OTHER_MODEL = "put the model's files there, or name another model (--{}, --{})"
CREATE = "recallflow topics create"
CLOCK_SKEW_MS = 1_000  # tolerated
READS, WRITES = frozenset(("READ", "DESCRIBE")), frozenset(("WRITE", "DESCRIBE"))  # rights of a reader and a writer


class Finding(NamedTuple):
    """The result of one check. `what` is its description, and `todo` the remedy: empty if there is none."""

    check: str
    status: Status
    what: str
    todo: str = ""


def ok(check: str, description: str) -> Finding:
    return Finding(check, "OK", description)


def warn(check: str, description: str, remedy: str = "") -> Finding:
    """Return a finding about something that works, perhaps not as expected."""
    return Finding(check, "WARN", description, remedy)


def fail(check: str, description: str, remedy: str) -> Finding:
    """Return a finding about something that fails or loses data. Line breaks of library messages are removed."""
    return Finding(check, "FAIL", " ".join(description.split()), remedy)


def state_findings(
    config: Config, embedder: Embedder | None, directories: Callable[[Path], Sequence[Path]]
) -> Iterator[Finding]:
    """Examine the state directories of all processes of `run`. The settings of their creation are not compared if the
    embedder cannot be loaded. `directories` returns the directories that the processes would open, or raises UsageError
    if another number of processes created them."""
    path = config.state_dir
    if path is None:
        yield warn("state directory", "none is configured, so it was not checked", "name it: --state-dir")
        return
    yield _disk(path)
    if not path.exists():
        if os.access(parent := _nearest_existing(path), os.W_OK | os.X_OK):
            yield ok("state directory", f"{path} does not exist yet: the first start creates it")
        else:
            yield fail("state directory", f"{path} cannot be created in {parent}", WRITABLE)
        return
    try:
        found = directories(path)
    except UsageError as error:
        remedy = "use the number of processes that created the directory, or split or merge it"
        yield fail("state directory", str(error), remedy)
        return
    if [*found] == [path]:
        yield from _directory(path, config, embedder)
    else:
        yield from _members(path, found, config, embedder)


def _members(path: Path, found: Sequence[Path], config: Config, embedder: Embedder | None) -> Iterator[Finding]:
    """Examine the directories of several processes. Identical results become one finding."""
    yield from _permissions(path)
    if (holder_finding := _holder(path)) is not None:  # the members are running, each with its own directory
        yield holder_finding
        return
    filled = [folder for folder in found if (folder / DESCRIPTION).exists()]
    if missing := [folder.name for folder in found if folder not in filled]:
        yield ok("state directory", f"{', '.join(missing)} of {path} do not exist yet: the first start creates them")
    others = sorted(one.parent.name for one in path.glob(f"*/{DESCRIPTION}") if one.parent not in found)
    if others:
        description = f"{', '.join(others)} of {path} are left over from a run with another number of processes"
        remedy = "use the --processes of the run that created them"
        yield warn("state directory", description, f"{remedy}; otherwise their partitions are read again from the log")
    folders_of = dict[Finding, list[str]]()
    for folder in filled:
        for one in _directory(folder, config, embedder):
            folders_of.setdefault(one, []).append(folder.name)
    yield from (one._replace(check=f"{one.check} of {', '.join(names)}") for one, names in folders_of.items())


def _directory(path: Path, config: Config, embedder: Embedder | None) -> Iterator[Finding]:
    try:
        yield _guarded("state directory", lambda: _description(path, config, embedder), OTHER_DIRECTORY)
    except StateFormatError as error:  # the other checks cannot read the directory either
        yield fail("state directory", str(error), NEW_DIRECTORY)
        return
    yield from _permissions(path)
    if (holder_finding := _holder(path)) is not None:
        yield holder_finding
        return
    yield ok("lock", "no process holds it")
    if (path / DESCRIPTION).exists():
        yield _guarded("erasures", lambda: _erasures(path), "restore a checkpoint (recallflow state restore)")


def _permissions(path: Path) -> Iterator[Finding]:
    if path.is_dir() and (wide := find_exposed_paths(path)):
        names = ", ".join(one.name for one in wide[:3]) + (", …" if len(wide) > 3 else "")
        description = f"other users of this machine may read or change {len(wide)} entries of {path} ({names})"
        yield warn("permissions", description, f"chmod -R go-rwx {path}")


def _holder(path: Path) -> Finding | None:
    """Return a finding about the process that holds a directory; None if there is none."""
    try:
        process = holder(path)
    except RecallflowError as error:
        return fail("lock", str(error), "give this user the right to read and write there")
    remedy = "if that is not the engine, stop it; a directory in use is not checked"
    return None if process is None else warn("lock", f"{path} is in use by {process}", remedy)


def _guarded(name: str, check: Callable[[], Finding], remedy: str) -> Finding:
    """Return the result of a check, or the finding of its error. Raise StateFormatError."""
    try:
        return check()
    except StateFormatError:
        raise
    except RecallflowError as error:
        return fail(name, str(error), remedy)
    except OSError as error:
        return fail(name, f"cannot be read: {error}", "give this user the right to read it")


def _description(path: Path, config: Config, embedder: Embedder | None) -> Finding:
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return fail("state directory", f"{path} is not writable", WRITABLE)
    if not any(path.iterdir()):
        return ok("state directory", f"{path} is empty: the first start fills it")
    stored = describe(path)
    Keyring.opened(stored.secret, path, open_at_rest(config.encryption))
    if embedder is not None:
        check_settings(path, stored.fingerprint, adopt_partition_count(path, config.engine.fingerprint(embedder)))
    encrypted = "" if stored.secret.master_key is None else f", encrypted with {stored.secret.master_key}"
    return ok("state directory", f"{path}: {stored.fingerprint.partitions} state partitions{encrypted}")


def _erasures(path: Path) -> Finding:
    if unpurged := unpurged_owners(path, describe(path).fingerprint.partitions):
        remedy = "start the engine, which cleans the files, or run: recallflow erase … --verify"
        return warn("erasures", f"files may still hold data of {unpurged} erased users", remedy)
    return ok("erasures", "no file is left to clean")


def _nearest_existing(path: Path) -> Path:
    return next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())


def _disk(path: Path) -> Finding:
    existing = _nearest_existing(path)
    disk = shutil.disk_usage(existing)
    what = f"{disk.free:,} of {disk.total:,} bytes are free at {existing}"
    if disk.free < FREE_BYTES_MIN:
        return fail("disk", what, "free some: on a full disk the engine stops; acknowledged records are not lost")
    if disk.free < min(FREE_BYTES_RECOMMENDED, FREE_SHARE_RECOMMENDED * disk.total):
        return warn("disk", what, "free some, or move the state directory to a larger disk")
    return ok("disk", what)


def open_model(config: Config) -> tuple[Embedder | None, list[Finding]]:
    """Return the embedder, and the findings about it. No remote call is made."""
    engine = config.engine
    try:
        with open_embedder(engine, config.embedding) as embedder:
            return embedder, [ok("embedder", f"{embedder.name}, {embedder.dimension} dimensions")]
    except (RecallflowError, OSError) as error:
        remote = "give the service's key, model and dimension (embedding.key, --embedding-model, --embedding-dimension)"
        local = OTHER_MODEL.format("embedder", "model-path")
        return None, [fail("embedder", str(error), remote if engine.embedder == REMOTE else local)]


def model_findings(config: Config) -> Iterator[Finding]:
    """Examine the configured models. No text is sent to a model, and no call is charged."""
    engine, llm, embedding = config.engine, config.llm, config.embedding
    if engine.embedder == REMOTE:
        service = Endpoint(embedding.base_url, embedding.key, embedding.headers)
        yield _endpoint("embedding service", embedding.model, service)
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
        answer = httpx.get(url, headers=headers, timeout=REQUEST_TIMEOUT_S, follow_redirects=False)
    except httpx.HTTPError as error:
        remedy = "start it, or give another address (--llm-url, --embedding-url)"
        return fail(check, f"{url} cannot be reached: {type(error).__name__}", remedy)
    status = answer.status_code
    if status in (401, 403):
        return fail(check, f"{url} refuses the key ({status})", "give another key (llm.key, embedding.key)")
    try:
        names = {str(one["id"]) for one in answer.raise_for_status().json()["data"]}
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
        return warn(check, f"{url} does not list its models ({status})", f"send it a request for {model}")
    if model not in names:
        return warn(check, f"{url} does not list {model}", "name one of its models")
    return ok(check, f"{url} has {model}")


def _reranker(url: str) -> Finding:
    try:
        status = httpx.get(url, timeout=REQUEST_TIMEOUT_S, follow_redirects=False).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        remedy = "start it, or give its address (--reranker-url)"
        return fail("reranker", f"{url} cannot be reached: {type(error).__name__}", remedy)
    return ok("reranker", f"{url} answers ({status})")


def auth_findings(config: Config, *, has_broker: bool) -> Iterator[Finding]:
    """Examine the signing keys and, if brokers answer, the control events."""
    try:
        source = key_source(config.auth)
        if source is not None:
            found = source.read()
            for problem in found.problems:
                yield warn("signing keys", problem, "remove it, or give a key that can sign tokens")
            yield ok("signing keys", f"{len(found.keys)} in {config.auth.jwks}")
    except (RecallflowError, OSError) as error:
        yield fail("signing keys", str(error), "give a file or an address of a JWKS (auth.jwks)")
    if not has_broker:
        return
    history = ControlHistory()
    try:
        table = ControlTable(config.kafka, config.topics.control, history=history, secret=config.auth.control_secret)
    except RecallflowError as error:
        yield fail("control events", str(error), f"create the topic ({CREATE}), or grant READ on it")
        return
    with closing(table):
        for reason, count in table.left_out.items():
            remedy = "find out who writes to the control topic; docs/how-to/access-control.md"
            yield warn("control events", f"{count} are ignored ({reason})", remedy)
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
    check, default = "schema registry", f"correct {PREFIX}url and the credentials of the registry, or start it"
    try:
        with registry.translate_errors():
            registry.client.get_subjects(subject_prefix=config.topics.memory)
        config.response_schema_id()
    except RecallflowError as error:
        description, _, remedy = str(error).rpartition("; ")
        yield fail(check, description or remedy, remedy if description else default)
    else:
        yield ok(check, f"{registry.url} answers")


def kafka_findings(config: Config, *, enriches: bool) -> Iterator[Finding]:
    """Examine the brokers and, if they answer, topics, rights and clocks."""
    try:
        with TopicReader(config.kafka) as reader:
            cluster = reader.cluster_id()
    except SourceError as error:
        usual = "start it, give its address (--bootstrap-servers), or set security.protocol"
        if endpoint := config.kafka.librdkafka.get("sasl.oauthbearer.token.endpoint.url"):
            usual += f"; or repair {endpoint}: after its server errors, clients retry the login and report nothing"
        remedy = remedy_of(str(error), usual)
        yield fail("broker", str(error).removesuffix(f"; {remedy}"), remedy)
        return
    yield ok("broker", f"{config.kafka.bootstrap_servers} answers, cluster {cluster}")
    try:
        yield from _topics(config, AdminClient(config.kafka.admin()), enriches=enriches)
    except KafkaException as error:
        yield fail("topics", f"the brokers refuse to describe topics: {error.args[0].str()}", "grant DESCRIBE")


def _topics(config: Config, admin: AdminClient, *, enriches: bool) -> Iterator[Finding]:
    topics = config.topics
    written = topics.written_topics(enriches=enriches)
    found = kafka_admin.inspect_topics(admin, (*topics.read_topics(), *written))
    for name, topic in found.items():
        yield _topic(topic)
        if topic.problem is None:
            settings = kafka_admin.topic_settings(admin, [name])[name]
            if isinstance(settings, KafkaError):
                remedy = "grant DESCRIBE_CONFIGS: without it, size limits and timestamps are assumed"
                yield warn(f"topic {name}", f"its settings cannot be read: {settings.str()}", remedy)
            else:
                yield from _settings(config, name, settings, is_written=name in written)
            needs = WRITES | READS if name in written else READS  # written topics are read too, for earlier outputs
            yield _rights(f"rights {name}", topic.rights, needs, f"topic {name}")
    yield _group(admin, deployment_name(config, topics.memory), "READ")
    yield _group(admin, READER_GROUP, "DESCRIBE")
    yield _clock(admin, [one for one in found.values() if one.problem is None])


def _topic(topic: InspectedTopic) -> Finding:
    check = f"topic {topic.name}"
    if topic.is_missing:
        return fail(check, "does not exist, or is not visible to us", f"create it ({CREATE}), or grant DESCRIBE")
    if topic.problem is not None:
        return fail(check, topic.problem, "grant DESCRIBE")
    if topic.leaderless:
        numbers = ", ".join(map(str, topic.leaderless))
        return fail(check, f"no broker leads partition {numbers}", "start the brokers that hold it")
    return ok(check, f"{topic.partitions} partitions")


def _settings(config: Config, name: str, settings: Mapping[str, str], *, is_written: bool) -> Iterator[Finding]:
    """Examine the topic's settings. Wrong ones lose records, refuse them, or give them wrong times."""
    check, topics = f"settings {name}", config.topics
    found = [*_retention(check, name, settings, config), *_timestamps(check, name, settings, config)]
    max_bytes = int(settings["max.message.bytes"])
    if is_written and max_bytes < RECORD_BYTES_MIN:
        remedy = f"set max.message.bytes={RECORD_BYTES_MIN} or more"
        found.append(fail(check, f"accepts records of at most {max_bytes:,} bytes", remedy))
    elif name in topics.read_topics() and max_bytes < RECORD_BYTES:
        remedy = f"set max.message.bytes={2 * RECORD_BYTES}"
        found.append(warn(check, f"accepts records of {max_bytes:,} bytes; events may have {RECORD_BYTES:,}", remedy))
    yield from found or [ok(check, "as recommended")]


def _retention(check: str, name: str, settings: Mapping[str, str], config: Config) -> Iterator[Finding]:
    compacts = "compact" in settings["cleanup.policy"]
    if compacts and name == config.topics.control:
        remedy = f"set {', '.join(f'{key}={value}' for key, value in KEEPS_ALL.items())}"
        yield fail(check, "is compacted: old decisions are deleted, but older records are authorised by them", remedy)
    elif compacts and name in config.topics.read_topics():
        yield fail(check, "is compacted: only the last record of a user is kept", "set cleanup.policy=delete")
    expires = settings["retention.ms"] != "-1" or settings["retention.bytes"] != "-1"
    if expires and name in (config.topics.memory, config.topics.control) and not compacts:
        remedy = "set retention.ms=-1 and retention.bytes=-1"
        yield warn(check, "records expire, and would be missing from a rebuild", remedy)


def _timestamps(check: str, name: str, settings: Mapping[str, str], config: Config) -> Iterator[Finding]:
    if name not in config.topics.read_topics() or settings["message.timestamp.type"] == "LogAppendTime":
        return
    remedy = "set message.timestamp.type=LogAppendTime"
    what = "records carry their producers' times (CreateTime)"
    if config.auth.mode == "required" and name != config.topics.control:
        yield fail(check, f"{what}, and credentials would be checked as of those times: run refuses to start", remedy)
    else:
        yield warn(check, f"{what}: clock skew would change the order of ingestion times", remedy)


def _rights(check: str, rights: frozenset[str] | None, needs: frozenset[str], resource: str) -> Finding:
    if rights is None:
        return warn(check, "the brokers do not report rights", "upgrade them, or check the ACLs")
    if missing := ", ".join(sorted(needs - rights)):
        return fail(check, f"{missing} is denied", f"grant {missing} on {resource}")
    return ok(check, ", ".join(sorted(needs)))


def _group(admin: AdminClient, group: str, right: str) -> Finding:
    check, resource, rights = f"rights of group {group}", f"group {group}", kafka_admin.group_rights(admin, group)
    if isinstance(rights, str):
        return fail(check, rights, f"grant {right} on {resource}")
    return _rights(check, rights, frozenset((right,)), resource)


def _clock(admin: AdminClient, topics: list[InspectedTopic]) -> Finding:
    """Compare our clock with the times of records. A broker's clock that is behind ours is not detected."""
    our_ms = now_ms()
    newest_ms = kafka_admin.newest_ms(admin, topics)
    if newest_ms is None:
        return ok("clock", "there is no record to compare the time with")
    ahead_s = (newest_ms - our_ms) / 1000
    if newest_ms > our_ms + CLOCK_SKEW_MS:
        problem = f"the newest record is {ahead_s:,.1f} s ahead of us: our clock is behind, or a producer's is ahead"
        return fail("clock", problem, "synchronise clocks (NTP) of this machine and of the brokers")
    return ok("clock", f"the newest record was appended {max(0.0, -ahead_s):,.1f} s ago")


def examine(config: Config, directories: Callable[[Path], Sequence[Path]]) -> Iterator[Finding]:
    """Yield all findings. Findings with the same cause are merged. `directories`: see `state_findings`."""
    embedder, embedder_findings = open_model(config)
    tasks = None if embedder is None else config.enrichment.requested_tasks(embedder)
    kafka = [*kafka_findings(config, enriches=tasks is not None)]
    has_broker = any((finding.check, finding.status) == ("broker", "OK") for finding in kafka)
    state = state_findings(config, embedder, directories)
    others = registry_findings(config), state, embedder_findings, model_findings(config)
    for findings in (kafka, *others, auth_findings(config, has_broker=has_broker)):
        yield from merge_by_cause(findings)


def merge_by_cause(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Merge findings with the same cause. The result lists their checks and remedies."""
    by_cause = dict[object, list[Finding]]()
    for number, one in enumerate(findings):
        by_cause.setdefault(number if one.status == "OK" else (one.status, one.what), []).append(one)
    for same in by_cause.values():
        checks, remedies = ({getattr(one, name): None for one in same} for name in ("check", "todo"))
        yield same[0]._replace(check=", ".join(checks), todo="; ".join(remedies))
