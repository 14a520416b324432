"""Stores memories through the engine in this process, and says which are acknowledged: to be killed."""

import asyncio
import sys
from pathlib import Path

import orjson

from recallflow.decisions import History
from recallflow.flows.config import Config
from recallflow.flows.local import LocalService, open_local
from recallflow.flows.settings import Settings
from recallflow.parsing import parse

SETTINGS = Settings(partitions=2, epoch_ms=50)
WRITERS = 8
PART = "The ferry to Porto leaves at nine from the harbour. "


async def write(service: LocalService, run: str, writer: int) -> None:
    number = 0
    while True:
        said = PART * (3_000 if number % 20 == 1 else 1)  # a long one takes steps, behind which others wait
        event = {
            "type": "memory",
            "tenant_id": "acme",
            "user_id": f"u{writer}",
            "id": f"{run}-{number}",
            "content": said,
        }
        stored = await service.store(parse(orjson.dumps(event)), ())  # type: ignore[arg-type]
        print(event["user_id"], event["id"], stored.position, flush=True)
        number += 1


async def write_all(service: LocalService, run: str) -> None:
    await asyncio.gather(*(write(service, run, writer) for writer in range(WRITERS)))


if __name__ == "__main__":
    with open_local(Config(state_dir=Path(sys.argv[1]), engine=SETTINGS), History()) as opened:
        asyncio.run(write_all(opened, sys.argv[2]))
