"""A record that makes our code fail is refused alone; failures of the environment stop the flow."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.connectors.embedders import load_embedder
from recallflow.embedder import Matrix
from recallflow.errors import DefectLog, EmbedderError, StorageError
from recallflow.operators import events, guard, writes
from recallflow.operators.answers import answer
from recallflow.operators.apply import apply
from recallflow.operators.recall.pipeline import recall
from recallflow.outputs import Ack, Answer, DeadLetter, Output, ReceiptOutput
from recallflow.parsing import parse
from recallflow.state.index import OwnerIndex
from recallflow.state.state_hash import state_hash
from tests.unit.operators.harness import MEMORIES, Harness, letters, make_event

SECRET = "walnut"
STEPS = ["decode", "embed", "state"]
HALF_WAY = ["index"]  # what comes before it is done by then; the other steps fail at their end


class Plant:
    """Makes a step fail where the secret comes by: at each call, or at the first few only."""

    def __init__(self) -> None:
        self.embedder = load_embedder("hash")
        self.name, self.dimension = self.embedder.name, self.embedder.dimension
        self.kind = self.embedder.kind
        self.error: Exception = KeyError(SECRET)
        self._times: dict[str, float] = {}

    def fail(self, step: str, times: float = float("inf")) -> None:
        self._times[step] = times

    def heal(self) -> None:
        self._times.clear()

    def wrap(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*arguments: Any) -> Any:
            if step in HALF_WAY:
                self.check(step, arguments)
            result = function(*arguments)
            self.check(step, arguments)
            return result

        return failing

    def check(self, step: str, what: object) -> None:
        if SECRET in repr(what) and self._times.get(step, 0) > 0:
            self._times[step] -= 1
            raise self.error

    def embed(self, texts: Sequence[str]) -> Matrix:
        self.check("embed", texts)
        return self.embedder.embed(texts)


class Engine(Harness):
    def put(self, lines: Sequence[bytes], **record: Any) -> list[Output]:
        self.lines[MEMORIES].clear()
        self.rewind(MEMORIES)
        return [output for output in self.run(MEMORIES, *lines, **record) if not isinstance(output, Ack)]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    plant = Plant()
    monkeypatch.setattr(guard, "_defects", DefectLog(logging.getLogger("defects")))
    monkeypatch.setattr(events, "parse", plant.wrap("decode", parse))
    monkeypatch.setattr(writes, "apply", plant.wrap("state", apply))
    monkeypatch.setattr(answer, "recall", plant.wrap("recall", recall))
    monkeypatch.setattr(OwnerIndex, "add", plant.wrap("index", OwnerIndex.add))
    return plant


@pytest.fixture
def make_engine(tmp_path: Path, plant: Plant) -> Callable[[str], Engine]:
    return lambda name: Engine(tmp_path / name, plant, one_log=True, record={"append_ms": 0, "key": b"acme/ann"})


@pytest.fixture
def engine(make_engine: Callable[[str], Engine]) -> Engine:
    return make_engine("engine")


def _lines() -> list[bytes]:
    said = [f"Ann told of her {thing}" for thing in ("ferry", "violin", SECRET, "kettle")]
    events = [
        make_event("message", 60_000 * n, id=f"m{n}", content=text, session_id="s", receipt=True)
        for n, text in enumerate(said)
    ]
    asked = [
        make_event("recall", 900_000, id="q1", query="What did Ann tell of?", explain=False, weights={"usage": 0}),
        make_event("episodes.list", 900_000, id="q2"),
    ]
    changed = make_event("memory.update", 0, id="u", memory_id="m0", content="Ann told of nothing", receipt=True)
    return [orjson.dumps(event) for event in (*events, *asked, changed, *asked)]


LINES = _lines()


def described(letter: DeadLetter) -> tuple[Any, ...]:
    return letter.record, letter.number, letter.step, letter.error.code, letter.error.fields


def receipts(outputs: list[Output]) -> list[ReceiptOutput]:
    return [output for output in outputs if isinstance(output, ReceiptOutput)]


def told(outputs: list[Output]) -> list[tuple[Any, ...]]:
    found = [(one, orjson.loads(one.body)) for one in outputs if isinstance(one, Answer | ReceiptOutput)]
    for _, body in found:
        body.get("routing_info", {}).pop("cache_hits", None)
    return [(one.position, one.number, one.key, body) for one, body in found]


@pytest.mark.parametrize("step", STEPS)
def test_failing_record_alone_is_refused(make_engine: Callable[[str], Engine], plant: Plant, step: str) -> None:
    reference = make_engine("reference")
    expected = reference.put([b"{" if n == 2 else line for n, line in enumerate(LINES)])
    plant.fail(step)
    engine = make_engine("engine")
    outputs = engine.put(LINES)
    assert told(outputs) == told(expected)
    (letter,) = letters(outputs)
    assert (letter.record.value, letter.position.offset, letter.number) == (LINES[2], 2, 0)
    assert (letter.error.code, letter.step) == ("internal_error", step)
    assert state_hash(engine.directory) == state_hash(reference.directory)


@pytest.mark.parametrize("step", STEPS)
def test_failure_quotes_no_text(engine: Engine, plant: Plant, step: str, caplog: pytest.LogCaptureFixture) -> None:
    plant.error.__cause__ = ValueError(SECRET)
    plant.fail(step)
    (letter,) = letters(engine.put(LINES))
    assert "KeyError" in str(letter.error)
    assert SECRET not in str(letter.error)
    logged_twice = step == "embed"  # first of the batch, then of the record
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == 1 + logged_twice
    assert all(said in logged[-1].getMessage() for said in ("memories:0:2", f"step {step}"))
    assert logged[-1].__dict__["error_id"] in str(letter.error)
    assert all(said in caplog.text for said in ("raise self.error", "ValueError", "KeyError"))  # the traceback
    assert SECRET not in caplog.text


def test_many_failures_of_one_place_log_one_line_each(
    engine: Engine, plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    plant.fail("state")
    outputs = engine.put([orjson.dumps(make_event("message", n, content=f"{SECRET} {n}")) for n in range(20)])
    logged = [record.__dict__["error_id"] for record in caplog.records if record.levelno == logging.ERROR]
    assert len({*logged}) == len(logged) == 20
    assert all(one in str(letter.error) for one, letter in zip(logged, letters(outputs), strict=True))
    assert sum("raise self.error" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("step", [*STEPS, "recall", "index"])
def test_failed_step_is_retried_once(make_engine: Callable[[str], Engine], plant: Plant, step: str) -> None:
    # From the first event on there is an index, which a write that fails half-way changes.
    asked = make_event("user.stats", 0), make_event("recall", 900_000, id="q3", query=f"Whose {SECRET}?")
    lines = [orjson.dumps(asked[0]), *LINES, orjson.dumps(asked[1])]
    expected = make_engine("reference").put(lines)
    plant.fail(step, times=1)
    outputs = make_engine("engine").put(lines)
    assert (told(outputs), letters(outputs)) == (told(expected), [])


@pytest.mark.parametrize("healed", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_after_a_crash_a_refusal_stands(engine: Engine, plant: Plant, step: str, healed: bool) -> None:
    plant.fail(step)
    first, before = engine.put(LINES), state_hash(engine.directory)
    if healed:
        plant.heal()
    engine.kill()
    again = engine.put(LINES)
    assert [described(letter) for letter in letters(again)] == [described(letter) for letter in letters(first)]
    assert receipts(again) == receipts(first)
    assert state_hash(engine.directory) == before


@pytest.mark.parametrize("step", ["decode", "recall"])
def test_failing_query_is_answered_with_an_error(engine: Engine, plant: Plant, step: str) -> None:
    query = orjson.dumps(make_event("recall", 900_000, id="q", query=f"Whose {SECRET}?"))
    other = orjson.dumps(make_event("recall", 900_000, id="other", query="Whose violin?"))
    plant.fail(step)
    outputs = engine.put([LINES[0], query, other])
    (letter,) = letters(outputs)
    assert (letter.record.value, letter.error.code) == (query, "internal_error")
    _, failed, answered = told(outputs)
    assert (failed[0].offset, failed[3]["query_id"], failed[3]["status"]) == (1, "q", "error")
    assert failed[3]["error"]["code"] == "internal_error"
    assert failed[1] != letter.number
    assert SECRET not in str(failed[3])
    assert (answered[3]["query_id"], len(answered[3]["memories"])) == ("other", 1)


@pytest.mark.parametrize("error", [StorageError("disk full"), EmbedderError("no model"), MemoryError()])
@pytest.mark.parametrize("step", [*STEPS, "recall", "index"])
def test_failure_of_the_environment_stops_the_flow(engine: Engine, plant: Plant, step: str, error: Exception) -> None:
    plant.error = error
    plant.fail(step)
    query = make_event("recall", 900_000, query=f"Whose {SECRET}?")
    with pytest.raises(type(error)):
        engine.put([*LINES, orjson.dumps(query)])
