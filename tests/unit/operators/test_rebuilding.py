"""While what was lost is read again, an answer says that it may lack something; also where that run is killed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers

MakeEvent = Callable[..., dict[str, Any]]

EVENTS = 6


def opened(path: Path, make_event: MakeEvent, behind: Callable[[int], str] = lambda _: "") -> Harness:
    engine = Harness(path, behind=behind)
    engine.write(MEMORIES, *(make_event("memory", at, id=f"m{at}", content=f"Bike {at}") for at in range(EVENTS)))
    return engine


def ask(
    engine: Harness, make_event: MakeEvent, query: dict[str, Any] | None = None
) -> tuple[int, str, list[tuple[str, str]]]:
    """How many memories were found, the status, and the warnings."""
    (response,) = answers(engine.run(QUERIES, query or make_event("recall", 99, query="bike")))
    warnings = [(one["code"], one["detail"]) for one in response.get("warnings", [])]
    return len(response.get("memories", [])), response["status"], warnings


def test_an_answer_warns_until_all_that_was_lost_is_back(tmp_path: Path, make_event: MakeEvent) -> None:
    engine = opened(tmp_path / "before", make_event)
    engine.read(MEMORIES)
    whole = engine.snapshot()
    assert ask(engine, make_event) == (EVENTS, "ok", [])
    engine.stop()

    lost = opened(tmp_path / "lost", make_event)
    lost.stop()
    lost.start(whole, rebuilding=True)
    lost.rewind(MEMORIES)
    lost.read(MEMORIES, 2, silent=True)
    assert ask(lost, make_event) == (2, "degraded", [("rebuilding", "memories:0 is 4 records behind")])
    # Killed there: the next start finds a database that is where its snapshot says, and still owes the rest.
    lost.kill(lost.snapshot())
    lost.read(MEMORIES, 3, silent=True)
    assert ask(lost, make_event) == (5, "degraded", [("rebuilding", "memories:0 is 1 records behind")])
    lost.read(MEMORIES, silent=True)
    assert ask(lost, make_event) == (EVENTS, "ok", [])
    assert lost.snapshot().owed == {}
    lost.stop()


def test_an_answer_says_that_not_all_of_the_log_is_known_whatever_comes_of_it(
    tmp_path: Path, make_event: MakeEvent
) -> None:
    behind = "7 records of memory to go"
    engine = opened(tmp_path / "s", make_event, lambda _: behind)
    engine.read(MEMORIES, 2)
    warned = [("catching_up", "7 records of memory to go")]
    assert ask(engine, make_event) == (2, "degraded", warned)
    missing = make_event("memory.get", 99, memory_id="m5")
    assert ask(engine, make_event, missing) == (0, "error", warned)  # it may be among the seven
    behind = ""
    assert ask(engine, make_event) == (2, "ok", [])
    assert ask(engine, make_event, missing) == (0, "error", [])
    engine.stop()
