"""While not all of the log is read, an answer says that it may lack something."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers, make_event

EVENTS = 6


def opened(path: Path, behind: Callable[[int], str] = lambda _: "") -> Harness:
    engine = Harness(path, behind=behind)
    engine.write(MEMORIES, *(make_event("memory", at, id=f"m{at}", content=f"Bike {at}") for at in range(EVENTS)))
    return engine


def ask(engine: Harness, query: dict[str, Any] | None = None) -> tuple[int, str, list[tuple[str, str]]]:
    """How many memories were found, the status, and the warnings."""
    (response,) = answers(engine.run(QUERIES, query or make_event("recall", 99, query="bike")))
    warnings = [(one["code"], one["detail"]) for one in response.get("warnings", [])]
    return len(response.get("memories", [])), response["status"], warnings


def test_an_answer_says_that_not_all_of_the_log_is_known_whatever_comes_of_it(tmp_path: Path) -> None:
    behind = "7 records of memory to go"
    engine = opened(tmp_path / "s", lambda _: behind)
    engine.read(MEMORIES, 2)
    warned = [("catching_up", "7 records of memory to go")]
    assert ask(engine) == (2, "degraded", warned)
    missing = make_event("memory.get", 99, memory_id="m5")
    assert ask(engine, missing) == (0, "error", warned)  # it may be among the seven
    behind = ""
    assert ask(engine) == (2, "ok", [])
    assert ask(engine, missing) == (0, "error", [])
    engine.stop()
