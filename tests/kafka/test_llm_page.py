"""The first run of docs/how-to/models.md works, with other addresses, key and topic names."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.broker import Cluster
from recallflow.client import QueryTimeout, RecallClient
from recallflow.flows.settings import TopicNames
from tests.kafka.harness import Names, until
from tests.kafka.test_enrich import facts
from tests.llm_server import LlmServer
from tests.starts import COMMAND, fork_server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "models.md").read_text()
PROBE_S = 1.0

Start = Callable[..., subprocess.Popen[str]]


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def own(topics: Names) -> TopicNames:
    named: dict[str, Any] = {
        name: topics(value) for name, value in asdict(TopicNames()).items() if isinstance(value, str)
    }
    return TopicNames(**named)


@pytest.fixture
def start(
    broker: Cluster, llm_server: LlmServer, own: TopicNames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Return a function that runs a script in a folder with the package, as in a checkout, and the page's settings."""
    # Whole: a folder of this name with the samples alone would be a namespace package, which Python takes before one
    # that is installed to be edited.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recallflow").symlink_to(ROOT / "recallflow", target_is_directory=True)
    shown = block("toml").replace("localhost:9092", broker.bootstrap_servers)
    chosen = re.sub(r'^# base_url = ".*?"', f'base_url = "{llm_server.url}"', shown, flags=re.MULTILINE)
    named = "".join(f'{name} = "{value}"\n' for name, value in asdict(own).items() if isinstance(value, str))
    (tmp_path / "recallflow.toml").write_text(f"{chosen}\n[topics]\n{named}")
    surroundings = {name: value for name, value in os.environ.items() if name != "KAFKA_BOOTSTRAP_SERVERS"}
    environment = surroundings | {"RECALLFLOW_LLM_KEY": "secret", "RECALLFLOW_CONFIG": "recallflow.toml"}
    with ExitStack() as stack:

        def run(script: str, *words: str) -> subprocess.Popen[str]:
            process = fork_server().start(script, [*words], environment, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield run


def finished(process: subprocess.Popen[str]) -> str:
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    return stdout


def test_first_run_of_the_page_finds_facts(
    broker: Cluster, llm_server: LlmServer, own: TopicNames, start: Start
) -> None:
    llm_server.answer("facts", facts)
    commands = [shlex.split(line)[1:] for line in block("sh").splitlines() if line.startswith("recallflow ")]
    create, run, enrich, replay = ([word for word in words if word != "&"] for words in commands)
    finished(start(COMMAND, *create))
    flows = [start(COMMAND, *words) for words in (run, enrich)]
    assert "205 events sent" in finished(start(COMMAND, *replay))
    where: dict[str, Any] = {"memory_topic": own.memory, "query_topic": own.queries, "response_topic": own.responses}

    def found() -> bool:
        with RecallClient(broker.bootstrap_servers, tenant="demo", timeout_s=PROBE_S, **where) as client:
            try:
                memories = client.search("When is the launch?", user="team-atlas")
            except QueryTimeout:
                return False
        return any(memory.kind == "fact" and memory.derived_from is not None for memory in memories)

    until(found)
    script = block("python").replace("localhost:9092", broker.bootstrap_servers)
    script, put = re.subn('tenant="demo"', lambda said: f"{said[0]}, **{where!r}", script)
    assert put == 1
    assert re.search(r"^fact .*launch.* \{'memory_id': 'atlas-", finished(start(script)), re.MULTILINE)
    assert {asked.headers["authorization"] for asked in llm_server.requests} == {"Bearer secret"}
    for flow in flows:
        flow.send_signal(signal.SIGTERM)
        finished(flow)
