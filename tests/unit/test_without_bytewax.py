"""Where Bytewax has no wheel: a program's own engine, without Kafka's client too, and the commands over a directory."""

import subprocess
import sys
from pathlib import Path

import pytest

HIDING = """
import sys

class Hidden:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Hidden())
"""
HIDDEN = HIDING.format(names=("bytewax", "confluent_kafka"))
LOCAL = """
import asyncio, orjson
from pathlib import Path
from recallflow.decisions import History
from recallflow.flows.config import Config
from recallflow.flows.local import open_local
from recallflow.parsing import parse

def event(kind, **fields):
    return parse(orjson.dumps({"type": kind, "tenant_id": "acme", "user_id": "ann"} | fields))

async def use(service):
    stored = await service.store(event("memory", content="The kettle is broken"), ())
    answer = await service.ask(event("recall", query="What is broken?"), (), 60.0)
    return stored.position, [memory.content for memory in answer.memories]

for number in range(2):
    with open_local(Config(state_dir=Path(sys.argv[1])), History()) as service:
        position, found = asyncio.run(use(service))
    assert str(position) == f"local:0:{number}", position
    assert set(found) == {"The kettle is broken"}, found
"""
MEMORY = """
from recallflow import Memory

with Memory(sys.argv[1]) as memory:
    memory.add("The kettle is broken", user="ann")
    assert [hit.content for hit in memory.search("What is broken?", user="ann")] == ["The kettle is broken"]
    memory.erase(user="ann")
    assert [*memory.search("What is broken?", user="ann")] == []
"""
COMMAND = """
from recallflow.cli import main
sys.exit(main())
"""
DIRECTORY = ("--state-dir", "memory")
QUESTION = "What is Maya's new job?\n"  # what the demo is asked; no other command reads it
LINES = """
from pathlib import Path
from recallflow.flows.embedded import process
from recallflow.events import UserErase
from recallflow.flows.config import Config
from recallflow.flows.erasing import erase_directory
from recallflow.flows.export import export
from recallflow.flows.gateway import serve_local
from recallflow.flows.mcp import embedded
from recallflow.flows.settings import Settings
from recallflow.state.directory import StateDirectory, describe
from recallflow.state.logical import state_hash

path, scope = Path(sys.argv[1]), b'"tenant_id": "acme", "user_id": "ann"'
told = b'{"type": "memory", "content": "The kettle is broken", %s}' % scope
asked = b'{"type": "recall", "query": "What is broken?", %s}' % scope
answer, = process([told, asked], Settings(partitions=2), path).responses
assert [memory["content"] for memory in answer["memories"]] == ["The kettle is broken"]
with StateDirectory.open(path, describe(path).fingerprint, 2**20) as directory:
    assert len(state_hash(directory)) == 64
    assert [*export(directory, "acme", "ann")]
erased = UserErase(type="user.erase", tenant_id="acme", user_id="ann")
assert erase_directory(Config(engine=Settings(partitions=2)), path, [erased])
"""


@pytest.mark.parametrize("script", [LOCAL, MEMORY, LINES], ids=["local", "memory", "lines"])
def test_an_engine_in_a_program_of_one_s_own_needs_neither_bytewax_nor_kafka(tmp_path: Path, script: str) -> None:
    command = [sys.executable, "-c", HIDDEN + script, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_commands_of_every_day_need_no_bytewax(tmp_path: Path) -> None:
    shown = recallflow(tmp_path, "remember", "The kettle is broken", "--create", *DIRECTORY)
    memory_id = shown.split()[-1]
    assert "The kettle is broken" in recallflow(tmp_path, "ask", "What is broken?", *DIRECTORY)
    assert "The kettle is broken" in recallflow(tmp_path, "list", *DIRECTORY)
    assert "The kettle is broken" in recallflow(tmp_path, "show", memory_id, *DIRECTORY)
    assert "The kettle is broken" in recallflow(tmp_path, "export", "default", "user", *DIRECTORY)
    recallflow(tmp_path, "episodes", *DIRECTORY)
    assert "everything was read" in recallflow(tmp_path, "state", "verify", *DIRECTORY)
    assert "1" in recallflow(tmp_path, "state", "info", *DIRECTORY)
    assert len(recallflow(tmp_path, "state", "hash", *DIRECTORY).strip()) == 64
    recallflow(tmp_path, "forget", memory_id, *DIRECTORY)
    assert "kettle" not in recallflow(tmp_path, "list", *DIRECTORY)
    recallflow(tmp_path, "remember", "The lamp is broken too", *DIRECTORY)
    assert "nothing was found" in recallflow(tmp_path, "erase", "default", "user", "--verify", *DIRECTORY)


@pytest.mark.parametrize("words", [("demo",), ("demo", "--interactive")], ids=" ".join)
def test_the_demo_needs_no_bytewax(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert recallflow(tmp_path, *words)


def recallflow(folder: Path, *words: str) -> str:
    """What a command that goes well prints."""
    command = [sys.executable, "-c", HIDING.format(names=("bytewax",)) + COMMAND, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder, input=QUESTION)
    assert (done.returncode, "bytewax" in done.stderr.lower()) == (0, False), done.stderr
    return done.stdout
