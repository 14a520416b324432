"""Stores memories through the dataflow, and says which are through: to be killed. `new` lines come without an end;
those of a `log` come again after a kill."""

import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import orjson

from recallflow.connectors.lines import Delivered
from recallflow.flows.embedded import Embedded
from recallflow.flows.lines import run_lines
from recallflow.outputs import Receipted
from tests.recovery.local_writer import PART, SETTINGS, WRITERS

LOG, LOG_LINES, READER = "log.jsonl", 1_500, "reader"


class Few:
    """A feed of few lines at a time: what is killed is in the middle."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def take(self) -> list[bytes]:
        if not (some := [*islice(self._lines, 8)]):
            raise StopIteration
        return some


def new(run: str) -> Iterator[bytes]:
    for number in count():
        said = PART * (3_000 if number % 50 == 1 else 1)
        event = {"type": "memory", "tenant_id": "acme", "user_id": f"u{number % WRITERS}", "receipt": True}
        yield orjson.dumps(event | {"id": f"{run}-{number}", "content": said})


def log(first: int) -> Iterator[bytes]:
    for number in range(first, LOG_LINES):
        event = {"type": "memory", "tenant_id": "acme", "user_id": READER, "receipt": True}
        yield orjson.dumps(event | {"content": f"{PART} {number}"})


def say(_: int, outputs: list[Delivered]) -> None:
    for output in outputs:
        if isinstance(output, Receipted):
            receipt = orjson.loads(output.body)
            print(output.key.decode().split("/")[-1], receipt["memory_id"], receipt["position"], flush=True)


def write(state_dir: Path, run: str) -> None:
    with Embedded.open(SETTINGS, state_dir) as embedded:
        if run == LOG:
            run_lines(embedded, LOG, lambda first: Few(log(first)), say, rewinds=True)
        else:
            run_lines(embedded, "stdin", lambda _: Few(new(run)), say, rewinds=False)


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
