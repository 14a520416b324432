"""The chat service does what its page says, on a real broker with a real engine."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from benchmarks.broker import Cluster, free_ports
from recallflow.client import QueryTimeout, RecallClient
from tests.chat_model import Messages, chat_model
from tests.conftest import GIVE_UP_S
from tests.example_pages import EXAMPLES, commands_of, environment, words_of
from tests.kafka.harness import until, watched

SERVED = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The example speaks to the topics that everybody has: a broker of its own."""
    with Cluster.running(tmp_path_factory.mktemp("broker")) as cluster:
        yield cluster
