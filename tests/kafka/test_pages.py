"""What the pages of docs/ show on Kafka works as it stands, but for the broker's address, and prints what they say."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.broker import Broker, Cluster
from recallflow import MemoryUpdate, RecallClient
from tests.pages import blocks, run, running
from tests.unit.test_pages import WITH_A_BROKER

LOCAL = "localhost:9092"


@pytest.fixture
def broker() -> Iterator[Cluster]:
    """One of a page's own, as the topics have the names that the page gives them."""
    with Broker() as broker:
        yield broker


def with_an_engine_that_ran(folder: Path, servers: str) -> None:
    """What the runbook begins with: an engine that has a memory, and has refused a record; it was stopped."""
    run("sh", "recallflow topics create", folder, KAFKA_BOOTSTRAP_SERVERS=servers)
    with running("recallflow run --state-dir engine --create", folder, servers):
        run(
            "sh",
            "recallflow remember 'Ann is allergic to peanuts' --tenant acme --user ann",
            folder,
            KAFKA_BOOTSTRAP_SERVERS=servers,
        )
        with RecallClient(servers, "acme") as client:
            client.send(MemoryUpdate(type="memory.update", tenant_id="acme", user_id="ann", memory_id="?", tags=["a"]))
            client.search("What can Ann not eat?", user="ann")


@pytest.mark.parametrize("page", WITH_A_BROKER)
def test_what_a_page_shows_works(page: str, broker: Cluster, tmp_path: Path) -> None:
    servers = broker.bootstrap_servers
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
