"""A real Kafka broker, for tests, for benchmarks and by hand.

    python -m tools.broker [--port N] [--sasl oauthbearer|scram]

`connect_or_start()` takes the Kafka that KAFKA_BOOTSTRAP_SERVERS names; without it, `Broker` assembles Apache Kafka
(KRaft, one node) from Maven Central, once, and starts it on loopback. Everything that goes wrong is a RuntimeError.
"""

import argparse
import base64
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NoReturn, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

KAFKA_VERSION = "4.1.2"
BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
BOTH_WAYS = f"set {BOOTSTRAP_VARIABLE} to a Kafka that runs, or install Java 17 and Maven"

HOST = "127.0.0.1"
# Below the range of source ports. A client that keeps connecting to a port of that range while the broker is stopped
# can get the same port as its source: it connects to itself, and the broker cannot bind the port again.
PORTS = range(20_000, 32_000)

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
METADATA_TIMEOUT_S = 0.5
RETRY_S = 0.05
LOG_TAIL_LINES = 30

# Kafka's own artifact brings no binding for slf4j, and without one the broker logs nothing
POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>recallflow</groupId>
  <artifactId>broker</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

# After a kill the controller takes the broker back once its old session has run out: 9 s by default
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},GUARDED://{host}:{guarded_port},WIRED://{host}:{wired_port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port},GUARDED://{host}:{guarded_port},WIRED://{host}:{wire_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,GUARDED:SASL_PLAINTEXT,WIRED:PLAINTEXT,CONTROLLER:PLAINTEXT
listener.name.guarded.sasl.enabled.mechanisms=PLAIN
listener.name.guarded.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required{users};
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
log.message.timestamp.type=LogAppendTime
auto.create.topics.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
"""

AUTHORIZES = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class Cluster:
    """A Kafka that answers at `bootstrap_servers`, started by somebody else."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def create_topics(self, topics: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
        """Create topics of so many partitions each; they can be written to and read when this returns.

        KafkaException if one exists already or the broker refuses it.
        """
        # named for each topic, as a broker of somebody else's has its own default
        settings = {"message.timestamp.type": "LogAppendTime", **(config or {})}
        wanted = [
            NewTopic(name, partitions, replication_factor=-1, config=settings) for name, partitions in topics.items()
        ]
        admin = quiet_admin(self.bootstrap_servers)
        for created in admin.create_topics(wanted).values():
            created.result()
        # the controller answers before the broker itself has heard of the topic
        deadline = time.monotonic() + START_TIMEOUT_S
        if not retry(lambda: all(has_leaders(admin, *topic) for topic in topics.items()), deadline):
            raise RuntimeError(f"no leader within {START_TIMEOUT_S:.0f} s for some of: {', '.join(topics)}")

    def start(self) -> None:
        raise self._not_ours("started")

    def stop(self, hard: bool = False) -> None:  # noqa: ARG002 - the signature of Broker
        raise self._not_ours("stopped")

    def _not_ours(self, done: str) -> RuntimeError:
        return RuntimeError(
            f"the Kafka at {self.bootstrap_servers} cannot be {done} from here: "
            f"unset {BOOTSTRAP_VARIABLE} for a broker of one's own (needs Java 17 and Maven)"
        )


class Broker(Cluster):
    """A broker of one's own, from `with` on; data, ports and topics outlive `stop()` and `start()` until it ends."""

    def __init__(
        self,
        port: int | None = None,
        users: Mapping[str, str] | None = None,
        *,
        authorizes: bool = False,
        properties: str = "",
        options: Sequence[str] = (),
    ) -> None:
        """`users`: names and passwords of those who may come in at `guarded_servers` (SASL_PLAINTEXT, PLAIN), and with
        `authorizes` do there what ACLs say. A client that is told `wire_port` keeps to it: what listens there passes
        its bytes on to `wired_port`, or does not. `properties` override those of the broker, `options` are Java's."""
        client_port, self._controller_port, self._guarded_port, self.wire_port, self.wired_port = free_ports(port, 4)
        super().__init__(f"{HOST}:{client_port}")
        self._port = client_port
        self._users = users or {}
        self._authorizes = authorizes
        self._properties, self._options = properties, options
        self.guarded_servers = f"{HOST}:{self._guarded_port}"
        self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._open = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._java = java()
            self._jars = assemble()
            self._directory = Path(opened.enter_context(TemporaryDirectory(prefix="recallflow-kafka-")))
            self._format()
            opened.callback(self.stop)
            self.start()
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def start(self) -> None:
        """Start on the same data and the same ports, and wait until the broker answers.

        RuntimeError with the end of the broker's log if it exits, or does not answer within START_TIMEOUT_S.
        """
        if self._process is not None:
            raise RuntimeError("the broker runs already")
        with ExitStack() as started, self._log.open("ab") as log:
            command = self._command("kafka.Kafka", str(self._directory / "server.properties"))
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            started.callback(self.stop, hard=True)
            self._guard = guard(self._process.pid)
            self._await_answer(self._process)
            started.pop_all()

    def stop(self, hard: bool = False) -> None:
        """End the broker and wait until it is gone: SIGTERM, or SIGKILL if `hard`. Nothing happens if it is stopped.

        RuntimeError if it is still there STOP_TIMEOUT_S after SIGTERM; it is killed then.
        """
        process, self._process = self._process, None
        if process is None:
            return
        release(self._guard)
        process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s:\n{self._tail()}") from None

    def wait(self) -> NoReturn:
        """RuntimeError when the broker exits by itself."""
        if self._process is not None:
            self._process.wait()
        raise RuntimeError(f"the broker has exited:\n{self._tail()}")

    @property
    def _log(self) -> Path:
        return self._directory / "broker.log"

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def _command(self, *main: str) -> list[str]:
        # native libraries are unpacked into tmpdir, and stay there after a kill
        options = ["-Xmx512m", "-XX:-UsePerfData", f"-Djava.io.tmpdir={self._directory}"]
        logging = {"defaultLogLevel": "warn", "showDateTime": "true", "dateTimeFormat": "yyyy-MM-dd HH:mm:ss.SSS"}
        options += [f"-Dorg.slf4j.simpleLogger.{name}={value}" for name, value in logging.items()]
        return [self._java, *options, *self._options, "-cp", f"{self._jars}/*", *main]

    def _format(self) -> None:
        config = self._directory / "server.properties"
        config.write_text(
            (AUTHORIZES if self._authorizes else "")
            + (PROPERTIES + self._properties).format(
                host=HOST,
                port=self._port,
                guarded_port=self._guarded_port,
                wire_port=self.wire_port,
                wired_port=self.wired_port,
                controller_port=self._controller_port,
                data=self._directory / "data",
                users="".join(f' user_{name}="{password}"' for name, password in self._users.items()),
            )
        )
        # with "=": an id may begin with "-"
        run(self._command("kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}", "-c", str(config)))

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        admin = quiet_admin(self.bootstrap_servers)
        deadline = time.monotonic() + START_TIMEOUT_S
        if not retry(lambda: process.poll() is not None or answers(admin, self._cluster_id), deadline):
            raise RuntimeError(f"the broker did not answer within {START_TIMEOUT_S:.0f} s:\n{self._tail()}")
        if process.poll() is not None:
            raise RuntimeError(f"the broker exited with status {process.returncode}:\n{self._tail()}")


@contextmanager
def connect_or_start() -> Iterator[Cluster]:
    """The Kafka that KAFKA_BOOTSTRAP_SERVERS names, else a `Broker`. RuntimeError if there is neither."""
    if servers := os.environ.get(BOOTSTRAP_VARIABLE):
        yield Cluster(servers)
        return
    with Broker() as broker:
        yield broker


# ------------------------------------------------------------------- assembly


def assemble() -> Path:
    """Folder with Kafka's jars, fetched by Maven the first time (45 MB)."""
    cache = Path.home() / ".cache" / "recallflow"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{jars.name}.lock").open("w") as lock, TemporaryDirectory(dir=cache) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file
        if not jars.is_dir():
            fetch(Path(scratch))
            # only a whole folder ever has the name that the next process looks for
            (Path(scratch) / "jars").rename(jars)
    return jars


def fetch(folder: Path) -> None:
    (folder / "pom.xml").write_text(POM)
    options = ["-q", "-B", "-f", str(folder / "pom.xml")]
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'jars'}"]
    run([program("mvn"), *options, *goal])


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else program("java")


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"no `{name}` on PATH: {BOTH_WAYS}")
    return found


def run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True
        )
    except OSError as error:
        raise RuntimeError(f"{error}: {BOTH_WAYS}") from error
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {BOTH_WAYS}. It said:\n{done.stdout}")


# -------------------------------------------------------------------- process


def free_ports(port: int | None, more: int = 0) -> tuple[int, ...]:
    """`port`, or a free one, and so many more free ones. RuntimeError if `port` is taken."""
    if port is not None and not is_free(port):
        raise RuntimeError(f"port {port} of {HOST} is taken")
    candidates = (free for free in random.sample(PORTS, 100) if free != port and is_free(free))
    return (port or next(candidates), *(next(candidates) for _ in range(more)))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # as Kafka binds: a connection of a broker that has just ended does not count
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def guard(pid: int) -> subprocess.Popen[bytes]:
    """Kill `pid` when this process ends, even by SIGKILL: the guard then reads the end of its input."""
    return subprocess.Popen(["/bin/sh", "-c", 'read -r _; kill -9 "$0"', str(pid)], stdin=subprocess.PIPE)


def release(watch: subprocess.Popen[bytes]) -> None:
    with watch:
        watch.kill()


# ------------------------------------------------------------------- metadata


def quiet_admin(servers: str) -> AdminClient:
    """A client that does not log each refused connection: being refused is part of waiting."""
    return AdminClient({"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 200})


def answers(admin: AdminClient, cluster_id: str) -> bool:
    """Whether a broker of this very cluster answers now: another process's may have taken the port in between."""
    with suppress(KafkaException):
        known = admin.list_topics(timeout=METADATA_TIMEOUT_S)
        return bool(known.brokers) and known.cluster_id == cluster_id
    return False


def has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    with suppress(KafkaException):
        known = admin.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic].partitions.values()
        return sum(partition.leader >= 0 for partition in known) == partitions
    return False


def retry(check: Callable[[], bool], deadline: float) -> bool:
    """Whether `check` came true before `deadline`, in seconds of time.monotonic()."""
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(RETRY_S)
    return True


def run_in_foreground(start: Callable[[ExitStack], tuple[Callable[[], object], Mapping[str, str]]]) -> None:
    """Start a server and print the environment variables of its clients. `start` returns what waits for the server's
    end, and the variables. Ctrl-C and `kill` stop it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as opened:
            wait, variables = start(opened)
            for name, value in variables.items():
                print(f"export {name}={value}", flush=True)
            wait()
    except KeyboardInterrupt:
        return
    except RuntimeError as error:
        raise SystemExit(str(error)) from error


def start(opened: ExitStack, port: int | None, sasl: str | None) -> tuple[Callable[[], object], dict[str, str]]:
    """Start a broker. Return the wait for its end, and the environment variables of its clients."""
    if sasl is None:
        broker = opened.enter_context(Broker(port))
        return broker.wait, {BOOTSTRAP_VARIABLE: broker.bootstrap_servers}
    from tools import logins  # it imports this module

    provider = opened.enter_context(closing(logins.TokenProvider()))
    broker = opened.enter_context(logins.broker_with_logins(provider, port))
    logins.add_scram_user(broker)
    options = logins.SCRAM if sasl == "scram" else provider.options()
    return broker.wait, {BOOTSTRAP_VARIABLE: broker.guarded_servers, **logins.variables(options)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.broker", description="Run a Kafka broker on loopback.")
    parser.add_argument("--port", type=int, help="port of the listener without a login (default: a free port)")
    parser.add_argument("--sasl", choices=("oauthbearer", "scram"), help="add a listener with this login")
    chosen = parser.parse_args()
    run_in_foreground(lambda opened: start(opened, chosen.port, chosen.sasl))


if __name__ == "__main__":
    main()
