"""Engines that store memories and print each that is acknowledged, until they are killed."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

import orjson

from recallflow.connectors.local_inputs import Delivered
from recallflow.control import ControlHistory
from recallflow.flows.config import Config
from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.local import LocalService, open_local
from recallflow.flows.settings import Settings
from recallflow.outputs import ReceiptOutput
from recallflow.parsing import parse

SETTINGS = Settings(partitions=2, sync_ms=50)
WRITERS = 8
PART = "The ferry to Porto leaves at nine from the harbour. "
LOG, LOG_LINES, READER = "log.jsonl", 800, "reader"


def write_calls(state_dir: Path, run: str) -> None:
    """Store memories through calls, by several writers at once."""

    async def write(service: LocalService, writer: int) -> None:
        for number in count():
            said = PART * (3_000 if number % 20 == 1 else 1)  # a long one takes steps, behind which others wait
            event = {"type": "memory", "tenant_id": "acme", "user_id": f"u{writer}", "id": f"{run}-{number}"}
            stored = await service.store(parse(orjson.dumps(event | {"content": said})), ())  # type: ignore[arg-type]
            print(event["user_id"], event["id"], stored.position, flush=True)

    async def write_all(service: LocalService) -> None:
        await asyncio.gather(*(write(service, writer) for writer in range(WRITERS)))

    with open_local(Config(state_dir=state_dir, engine=SETTINGS), ControlHistory()) as opened:
        asyncio.run(write_all(opened))


def few(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """A few lines at a time, so that a kill falls between them."""
    return iter(lambda: [*islice(lines, 8)], [])


def endless_lines(run: str) -> Iterator[bytes]:
    for number in count():
        said = PART * (3_000 if number % 50 == 1 else 1)
        event = {"type": "memory", "tenant_id": "acme", "user_id": f"u{number % WRITERS}", "receipt": True}
        yield orjson.dumps(event | {"id": f"{run}-{number}", "content": said})


def log_from(first: int, pass_over: Callable[[bytes], object]) -> Iterator[list[bytes]]:
    event = {"type": "memory", "tenant_id": "acme", "user_id": READER, "receipt": True}
    lines = (orjson.dumps(event | {"content": f"{PART} {number}"}) for number in range(LOG_LINES))
    for line in islice(lines, first):
        pass_over(line)
    return few(lines)


def print_receipts(_: int, outputs: list[Delivered]) -> None:
    for output in outputs:
        if isinstance(output, ReceiptOutput):
            receipt = orjson.loads(output.body)
            print(output.key.decode().split("/")[-1], receipt["memory_id"], receipt["position"], flush=True)


def write_lines(state_dir: Path, run: str) -> None:
    """Store memories through lines: endless new ones, or those of a log that are sent again after a kill."""
    with EmbeddedEngine.open(SETTINGS, state_dir) as embedded:
        if run == LOG:
            run_lines(embedded, LOG, log_from, print_receipts, is_replayable=True)
        else:
            run_lines(embedded, "stdin", lambda *_: few(endless_lines(run)), print_receipts, is_replayable=False)
