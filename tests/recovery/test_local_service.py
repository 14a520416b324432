"""An engine in a program's own process that is killed: what it acknowledged is there."""

import asyncio
import subprocess
import sys
from pathlib import Path

import orjson

from recallflow.decisions import History
from recallflow.flows.config import Config
from recallflow.flows.local import LocalService, open_local
from recallflow.parsing import parse
from tests.recovery.local_writer import SETTINGS

RUNS = {"first": 150, "second": 40, "third": 90}  # and after how many acknowledgements each is killed
ANSWER_S = 60.0


def acknowledged(state_dir: Path, run: str, count: int) -> list[list[str]]:
    """The user and id of each memory that a run acknowledged before it was killed."""
    command = [sys.executable, "-m", "tests.recovery.local_writer", str(state_dir), run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(count)]
        process.kill()
        rest = process.stdout.readlines()
    return [line.split()[:2] for line in (*first, *rest) if line.endswith("\n")]


def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    told = [one for run, count in RUNS.items() for one in acknowledged(state_dir, run, count)]
    assert len(told) >= sum(RUNS.values())

    async def missing(service: LocalService) -> list[list[str]]:
        lost = []
        for user_id, memory_id in told:
            asked = {"type": "memory.get", "tenant_id": "acme", "user_id": user_id, "memory_id": memory_id}
            found = await service.ask(parse(orjson.dumps(asked)), (), ANSWER_S)  # type: ignore[arg-type]
            if found.status != "ok":
                lost.append([user_id, memory_id])
        return lost

    with open_local(Config(state_dir=state_dir, engine=SETTINGS), History()) as opened:
        assert asyncio.run(missing(opened)) == []
