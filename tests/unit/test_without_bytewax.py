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
pytestmark = pytest.mark.processes
HIDDEN = HIDING.format(names=("bytewax", "confluent_kafka"))
LOCAL = """
import asyncio, orjson
from pathlib import Path
from recallflow.control import ControlHistory
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
    with open_local(Config(state_dir=Path(sys.argv[1])), ControlHistory()) as service:
        position, found = asyncio.run(use(service))
    assert str(position) == f"local:0:{number}", position
    assert set(found) == {"The kettle is broken"}, found
"""
LINES = """
from pathlib import Path
from recallflow.flows.embedded import process
from recallflow.events import UserErase
from recallflow.flows.config import Config
from recallflow.flows.directory_erasure import erase_directory
from recallflow.flows.export import export
from recallflow.flows.gateway import embedded, serve_local
from recallflow.flows.settings import Settings
from recallflow.state.description import describe
from recallflow.state.directory import StateDirectory
from recallflow.state.state_hash import state_hash

path, scope = Path(sys.argv[1]), b'"tenant_id": "acme", "user_id": "ann"'
told = b'{"type": "memory", "content": "The kettle is broken", %s}' % scope
asked = b'{"type": "recall", "query": "What is broken?", %s}' % scope
answer, = process([told, asked], Settings(partitions=2), path).responses
assert [memory["content"] for memory in answer["memories"]] == ["The kettle is broken"]
with StateDirectory.open(path, describe(path).fingerprint) as directory:
    assert len(state_hash(directory)) == 64
    assert [*export(directory, "acme", "ann")]
erased = UserErase(type="user.erase", tenant_id="acme", user_id="ann")
assert erase_directory(Config(engine=Settings(partitions=2)), path, [erased]).had_data
"""


COMMANDS = """
import contextlib, io
from pathlib import Path
from recallflow.cli import main

def shown(*words, given="What is Maya's new job?\\n"):  # the demo reads it
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)) as out:
        assert main([*words]) == 0, words
    return out.buffer.getvalue().decode()

directory = ("--state-dir", sys.argv[1])
memory_id = shown("remember", "The kettle is broken", "--create", *directory).split()[-1]
for words in (["ask", "What is broken?"], ["list"], ["show", memory_id], ["export", "default", "user"]):
    assert "The kettle is broken" in shown(*words, *directory), words
shown("episodes", *directory)
shown("state", "verify", *directory)
shown("state", "info", *directory)
assert len(shown("state", "hash", *directory).strip()) == 64
shown("forget", memory_id, *directory)
assert "kettle" not in shown("list", *directory)
shown("remember", "The lamp is broken too", *directory)
told = '{"type": "memory", "id": "%s", "content": "The radio is broken", "tenant_id": "default", "user_id": "user"}\\n'
Path(sys.argv[1] + ".jsonl").write_text(told % "read")
shown("replay", sys.argv[1] + ".jsonl", "--embedded", *directory)
asked = '{"type": "memory.get", "id": "q", "memory_id": "%s", "tenant_id": "default", "user_id": "user"}\\n'
found = shown("pipe", *directory, given=told % "piped" + asked % "piped" + asked % "read")
assert found.count("The radio is broken") == 2, found
shown("erase", "default", "user", "--verify", *directory)
assert shown("demo")
assert shown("demo", "--interactive")
"""
ENGINES = "".join(f"sys.argv[1] += '-{name}'\n{script}" for name, script in (("a", LOCAL), ("b", LINES)))


@pytest.mark.parametrize(
    "script", [HIDDEN + ENGINES, HIDING.format(names=("bytewax",)) + COMMANDS],
    ids=["engines without bytewax and kafka", "commands without bytewax"],
)  # fmt: skip
def test_program_works_without_hidden_libraries(tmp_path: Path, script: str) -> None:
    command = [sys.executable, "-c", script, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert (done.returncode, "bytewax" in done.stderr.lower()) == (0, False), done.stderr
