"""While what was lost is read again, an answer says that it may lack something; also where that run is killed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from recallflow.connectors.embedders import load_embedder
from recallflow.flows.settings import Settings
from recallflow.operators.decode import decode
from recallflow.operators.events import Batch
from recallflow.operators.partition import Clocks, PartitionLogic
from recallflow.operators.prepare import prepare
from recallflow.operators.snapshot import Snapshot
from recallflow.outputs import Answer
from recallflow.records import Position, Record
from recallflow.state.directory import StateDirectory

MakeEvent = Callable[..., dict[str, Any]]

SETTINGS = Settings(partitions=1)
EMBEDDER = load_embedder("hash")
EVENTS = 6


@contextmanager
def opened(path: Path, resumed: Snapshot | None, rebuilding: bool) -> Iterator[PartitionLogic]:
    fingerprint = SETTINGS.fingerprint(EMBEDDER)
    with StateDirectory.open(path, fingerprint, SETTINGS.cache_bytes) as directory:
        directory.rebuilding = rebuilding
        rules = SETTINGS.rules(EMBEDDER, query_topic="queries", input_ends=False)
        clocks = Clocks(timer=lambda: 0.0, now_ms=lambda: 0)
        yield PartitionLogic.builder(directory, EMBEDDER, rules, clocks)(resumed)


def feed(logic: PartitionLogic, make_event: MakeEvent, offsets: range, *, silent: bool) -> None:
    records = [
        Record(
            Position("memories", 0, at),
            orjson.dumps(make_event("memory", at, id=f"m{at}", content=f"Bike {at}")),
            append_ms=at,
            silent=silent,
        )
        for at in offsets
    ]
    logic.on_batch([Batch(0, prepare(EMBEDDER, [decode(record) for record in records]))])


def ask(
    logic: PartitionLogic, make_event: MakeEvent, query: dict[str, Any] | None = None
) -> tuple[int, str, list[tuple[str, str]]]:
    """How many memories were found, the status, and the warnings."""
    asked = query or make_event("recall", 99, query="bike")
    record = Record(Position("queries", 0, 0), orjson.dumps(asked), append_ms=99)
    outputs, _ = logic.on_batch([Batch(0, prepare(EMBEDDER, [decode(record)]))])
    response = next(output.response for output in outputs if isinstance(output, Answer))
    return len(response.memories or []), response.status, [(w.code, w.detail) for w in response.warnings]


def test_an_answer_warns_until_all_that_was_lost_is_back(tmp_path: Path, make_event: MakeEvent) -> None:
    with opened(tmp_path / "before", None, rebuilding=False) as logic:
        feed(logic, make_event, range(EVENTS), silent=False)
        whole = logic.snapshot()
        assert ask(logic, make_event) == (EVENTS, "ok", [])
    with opened(tmp_path / "lost", whole, rebuilding=True) as logic:
        feed(logic, make_event, range(2), silent=True)
        assert ask(logic, make_event) == (2, "degraded", [("rebuilding", "memories:0 is 4 records behind")])
        middle = logic.snapshot()
    # Killed there: the next start finds a database that is where its snapshot says, and still owes the rest.
    with opened(tmp_path / "lost", middle, rebuilding=False) as logic:
        feed(logic, make_event, range(2, EVENTS - 1), silent=True)
        assert ask(logic, make_event) == (5, "degraded", [("rebuilding", "memories:0 is 1 records behind")])
        feed(logic, make_event, range(EVENTS - 1, EVENTS), silent=True)
        assert ask(logic, make_event) == (EVENTS, "ok", [])
        assert logic.snapshot().owed == {}


def test_an_answer_says_that_not_all_of_the_log_is_known_whatever_comes_of_it(
    tmp_path: Path, make_event: MakeEvent
) -> None:
    behind = "7 records of memory to go"
    fingerprint = SETTINGS.fingerprint(EMBEDDER)
    with StateDirectory.open(tmp_path / "s", fingerprint, SETTINGS.cache_bytes) as directory:
        rules = SETTINGS.rules(EMBEDDER, query_topic="queries", input_ends=False)
        logic = PartitionLogic.builder(directory, EMBEDDER, rules, behind=lambda: behind)(None)
        feed(logic, make_event, range(2), silent=False)
        told = [("catching_up", "7 records of memory to go")]
        assert ask(logic, make_event) == (2, "degraded", told)
        missing = make_event("memory.get", 99, memory_id="m5")
        assert ask(logic, make_event, missing) == (0, "error", told)  # it may be among the seven
        behind = ""
        assert ask(logic, make_event) == (2, "ok", [])
        assert ask(logic, make_event, missing) == (0, "error", [])
