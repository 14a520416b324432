"""The README, pages of docs/, examples of the help and quick benchmarks work as shown, but for addresses and topics.

Pages use default topic names, so they share a broker of this module's own, one page after another. Figures of
benchmarks are not judged."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from confluent_kafka.admin import AdminClient

from benchmarks.kafka import SCENARIOS
from recallflow import MemoryUpdate, RecallClient
from recallflow.cli.commands import commands
from recallflow.samples import sample_path
from tests import example_pages
from tests.chat_model import chat_model
from tests.kafka.engine import READY, Engine
from tests.kafka.harness import GIVE_UP_S, Command, Start, until
from tests.pages import DOCS, blocks, environment, readme, run, running
from tests.process import Process, watched
from tests.unit.test_pages import WITH_A_BROKER
from tools.broker import BOOTSTRAP_VARIABLE, Broker, Cluster, free_ports

LOCAL = "localhost:9092"
CHAT_URL = "http://127.0.0.1:8000"


@pytest.fixture
def servers(own_broker: Broker) -> str:
    return own_broker.bootstrap_servers


def test_readme_commands_answer_and_members_share_partitions(servers: str, tmp_path: Path) -> None:
    (block,), (more,), (script,) = (
        readme("sh kafka"), readme("sh members", DOCS / "how-to" / "several-machines.md"), readme("python kafka"),
    )  # fmt: skip
    topics, engine, remember, ask, tail = block.replace(LOCAL, servers).splitlines()
    assert topics.startswith("docker compose ")  # tests/unit/test_compose.py has it
    run("sh", "recallflow topics create", tmp_path, KAFKA_BOOTSTRAP_SERVERS=servers)
    with running(engine, tmp_path, servers):
        run("sh", remember, tmp_path)
        assert "My sister Ana is allergic to walnuts" in run("sh", ask, tmp_path)
        assert "walnuts" in first_line(tail, tmp_path)
        second, third = more.replace(LOCAL, servers).splitlines()
        before = owned(servers)
        with running(second, tmp_path, servers), running(third, tmp_path, servers):
            until(lambda: is_spread(owned(servers), before))
            until(lambda: all([*(tmp_path / folder).glob("p0*")] for folder in ("second", "third")))
            assert "My sister Ana is allergic to walnuts" in run("sh", ask, tmp_path)
            assert "I moved from Leeds to Porto in March" in run("python", script.replace(LOCAL, servers), tmp_path)


def owned(servers: str) -> dict[str, set[int]]:
    admin: Any = AdminClient({"bootstrap.servers": servers})
    (group,) = admin.describe_consumer_groups(["recallflow-memory.events"]).values()
    members = group.result().members
    return {one.member_id: {part.partition for part in one.assignment.topic_partitions} for one in members}


def is_spread(now: dict[str, set[int]], before: dict[str, set[int]]) -> bool:
    numbers = [number for mine in now.values() for number in mine]
    return len(now) == len(before) + 2 and all(now.values()) and sorted(numbers) == [*range(16)]


def first_line(command: str, folder: Path) -> str:
    words = shlex.split(command)
    with subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    return line


@contextmanager
def started(words: list[str], folder: Path, **more: str) -> Iterator[None]:
    process = subprocess.Popen(words, cwd=folder, env=example_pages.environment(**more))
    with watched(process):
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(GIVE_UP_S) in (0, -signal.SIGTERM)


@contextmanager
def forked_engine(state_dir: Path, servers: str) -> Iterator[None]:
    words = ("--state-dir", str(state_dir), "--bootstrap-servers", servers)
    with Process(state_dir.with_suffix(".log"), "run", *words) as process:
        process.up()
        yield
        assert process.stop().code == 0


def is_served(url: str) -> bool:
    try:
        return httpx.get(f"{url}/docs").is_success
    except httpx.TransportError:
        return False


@pytest.mark.needs("curl")
def test_chat_service_recalls_another_session(servers: str, tmp_path: Path) -> None:
    folder = shutil.copytree(example_pages.EXAMPLES / "chat_service", tmp_path / "chat_service")
    export, serve, tell, ask, watch = example_pages.commands_of("chat_service")
    assert export == f"export KAFKA_BOOTSTRAP_SERVERS={LOCAL}"
    kafka = {"KAFKA_BOOTSTRAP_SERVERS": servers}
    run("sh", "recallflow topics create", tmp_path, **kafka)
    (port,) = free_ports(None)
    url = f"http://127.0.0.1:{port}"
    words = [str(port) if word == "8000" else word for word in shlex.split(serve)]
    with (
        forked_engine(tmp_path / "engine", servers),
        chat_model(lambda messages: str(messages[0]["content"])) as found,
        started(words, folder, **kafka, **found),
    ):
        until(lambda: is_served(url))
        told, asked = (orjson.loads(run("bash", one.replace(CHAT_URL, url), folder)) for one in (tell, ask))
        assert told["remembered"] == []
        assert len(asked["remembered"]) >= 1
        assert "I am allergic to walnuts." in asked["text"]
        assert len(run("bash", watch, folder, **kafka).splitlines()) == 2


def with_an_engine_that_ran(folder: Path, servers: str) -> None:
    """Prepare the runbook's start: a stopped engine with a memory and a refused record."""
    run("sh", "recallflow topics create", folder, KAFKA_BOOTSTRAP_SERVERS=servers)
    with forked_engine(folder / "engine", servers), RecallClient(servers, "acme") as client:
        client.add("Ann is allergic to peanuts", user="ann")
        client.send(MemoryUpdate(type="memory.update", tenant_id="acme", user_id="ann", memory_id="?", tags=["a"]))
        client.search("What can Ann not eat?", user="ann")


@pytest.mark.parametrize("page", WITH_A_BROKER)
def test_page_commands_print_the_shown_output(servers: str, page: str, tmp_path: Path) -> None:
    if page == "how-to/runbook.md":
        with_an_engine_that_ran(tmp_path, servers)
    with ExitStack() as engines:
        for language, code, shows in blocks(page):
            ours, printed = code.replace(LOCAL, servers).replace("--metrics-port 9464", "--metrics-port 0"), ""
            commands = re.split(r"^(?=recallflow )", ours, flags=re.M) if language == "sh" else [ours]
            for command in filter(str.strip, commands):
                if command.startswith("recallflow run"):
                    engines.enter_context(running(command, tmp_path, servers))
                else:
                    printed += run(language, command, tmp_path, KAFKA_BOOTSTRAP_SERVERS=servers)
            assert [line for line in shows if line not in printed] == [], printed


EXAMPLES = [example for one in commands().subparsers() for example in one.examples if LOCAL in example]
UNTIL_STOPPED = ("recallflow run", "recallflow serve", "recallflow enrich", "recallflow mcp")
# test_models.py and test_keys.py have these: one needs a service of models, one a key that was made before.
ELSEWHERE = ("recallflow reembed", "recallflow keys revoke")
SERVES = (READY, "serving at", "http://")


RUN_HERE = [one for one in EXAMPLES if not one.startswith(ELSEWHERE)]
RUN_HERE.sort(key=lambda example: example.startswith("recallflow keys create"))  # from then on each record needs a key


@pytest.fixture(scope="module")
def folder(deserted_topics: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(sample_path("conversations.jsonl"), folder)
    with deserted_topics.running(folder / "beside"):
        yield folder


@pytest.mark.parametrize("example", RUN_HERE)
def test_example_of_the_help_works(
    deserted_topics: Engine, folder: Path, cli: Command, start: Start, monkeypatch: pytest.MonkeyPatch, example: str
) -> None:
    monkeypatch.chdir(folder)
    for field, name in vars(deserted_topics.topics).items():
        if isinstance(name, str):
            monkeypatch.setenv(f"RECALLFLOW_TOPICS_{field.upper()}", name)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    words = shlex.split(example.replace(LOCAL, deserted_topics.broker.bootstrap_servers))[1:]
    words = words[: next((at for at, word in enumerate(words) if word in "|>"), len(words))]
    ended = run_until_ready(start, words) if example.startswith(UNTIL_STOPPED) else cli(*words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def run_until_ready(start: Start, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that serves, and stop it once it is ready."""
    if words[0] == "run":
        words = [*words, "--deployment", "beside", "--session-timeout-s", "6"]
    process = start(*words)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if any(sign in line for sign in SERVES):
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=GIVE_UP_S)
    return subprocess.CompletedProcess(words, process.returncode, out, said + err)


TREE = Path(__file__).parents[2]
QUICK = sorted(path.stem for path in (TREE / "benchmarks").glob("*.py") if "[--quick]" in path.read_text())
COMMANDS = [name for name in QUICK if name != "kafka"] + [f"kafka {scenario}" for scenario in SCENARIOS]


@pytest.mark.parametrize("command", COMMANDS)
def test_quick_benchmark_prints_figures_and_is_documented(command: str, broker: Cluster) -> None:
    name, *scenario = command.split()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *scenario, "--quick"], cwd=TREE,
        env=os.environ | {BOOTSTRAP_VARIABLE: broker.bootstrap_servers}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert any(character.isdecimal() for character in done.stdout)
    assert f"benchmarks.{command}" in (TREE / "docs" / "figures.md").read_text()
