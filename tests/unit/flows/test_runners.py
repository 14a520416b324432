"""Both runners of a recipe give the same outputs and the same state for the same schedule."""

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from recallflow.flows import member
from recallflow.flows.engine_metrics import Stages
from recallflow.flows.kafka import MainFlow
from recallflow.flows.on_bytewax import run_on_bytewax
from recallflow.flows.record_spans import RecordSpans
from recallflow.flows.runner import BatchStep, KeyedStep, Recipe, RecipeLoop, run_loop
from recallflow.flows.settings import Settings
from recallflow.operators import erase, large
from recallflow.operators.answers.models import Models, TimedModel
from recallflow.operators.events import Refused, decode
from recallflow.operators.step import Clocks, StateStep
from recallflow.outputs import Ack, Answer, DeadLetter, OutputBarrier, ReceiptOutput
from recallflow.owner import state_partition
from recallflow.records import Barrier, PartitionStart, Position, Record
from recallflow.state.directory import StateDirectory
from recallflow.state.state_hash import state_hash
from tests.event_log import NEW_YEAR_MS, final_questions, make_log
from tests.unit.operators.models import Reranker

PARTITIONS = 3
TOPIC = "log"
ERASURE = b'{"type": "user.erase", "tenant_id": "acme", "user_id": "%s", "environment": "prod"}'
RUNNERS = [run_loop, run_on_bytewax]

Runner = Callable[[Recipe], None]
Batch = list[Any]


def make_schedule(seed: int, count: int = 150) -> list[Batch]:
    """Return batches of records and signals: partitions open, are marked, close, and open again."""
    draw = random.Random(seed)
    lines = make_log(seed, count)
    for name in (b"ann", b"bob"):
        lines.insert(draw.randrange(len(lines)), ERASURE % name)
    left: dict[int, deque[Record]] = {number: deque() for number in range(PARTITIONS)}
    for line in [*lines, *final_questions()[:6]]:
        item = decode(Record(Position(TOPIC, 0, 0), line, NEW_YEAR_MS))
        number = 0 if isinstance(item, Refused) else state_partition(*item.owner[::2], PARTITIONS)
        offset = len(left[number])
        left[number].append(Record(Position(TOPIC, number, offset), line, NEW_YEAR_MS + offset))
    schedule: list[Batch] = []
    opened, marks = set[int](), 0
    while any(left.values()):
        batch: Batch = []
        for number in draw.sample(range(PARTITIONS), PARTITIONS):
            if number not in opened:
                batch.append(PartitionStart(number))
                opened.add(number)
        for number in draw.sample(range(PARTITIONS), PARTITIONS):
            batch += [left[number].popleft() for _ in range(min(draw.randrange(6), len(left[number])))]
        if draw.random() < 0.3:
            number, last = draw.randrange(PARTITIONS), draw.random() < 0.4
            batch.append(Barrier(number, marks, b"", last))
            marks += 1
            opened -= {number} if last else set()
        schedule.append(batch)
    return schedule


class Script:
    """A source that gives batches, and after each one the completions of the calls that it led to."""

    def __init__(self, batches: Iterable[Batch], models: Models | None = None) -> None:
        self._batches, self._models, self.pending = deque(batches), models, 0
        self.is_closed = False
        if models is not None:
            submit = models.runtime.submit

            def counted(calls: list[Any]) -> None:
                self.pending += len(calls)
                submit(calls)

            models.runtime.submit = counted  # type: ignore[method-assign]

    def open(self) -> None:
        """It is open already."""

    def next_batch(self) -> Batch:
        if self.pending and self._models is not None:
            completions = self._models.runtime.completions
            completions.wake.wait()
            completions.wake.clear()
            found = completions.pop_all()
            self.pending -= len(found)
            return [*found]
        if not self._batches:
            raise StopIteration
        return self._batches.popleft()

    def close(self) -> None:
        self.is_closed = True


class Collected:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.is_closed = False

    def write_batch(self, items: list[Any]) -> None:
        self.items += items

    def close(self) -> None:
        self.is_closed = True


class Outcome(NamedTuple):
    outputs: list[Any]
    marks: list[tuple[int, int, dict[str, tuple[int, ...]], bool]]
    through: dict[str, list[int]]
    calls: int
    state_hash: str


def outcome_of(run: Runner, schedule: list[Batch], state_dir: Path) -> Outcome:
    settings = Settings(partitions=PARTITIONS)
    embedder, reranker = settings.load_embedder(), Reranker(lambda text: float(len(text) % 7))
    clocks = Clocks(timer=lambda: 0.0, now_ms=lambda: NEW_YEAR_MS)
    sink = Collected()
    with (
        StateDirectory.open(state_dir, settings.fingerprint(embedder), settings.cache_bytes) as directory,
        Models(reranker=TimedModel(reranker, 60.0), now_s=lambda: 0.0) as models,
    ):
        source = Script(schedule, models)
        rules = replace(settings.rules(embedder, "queries", input_ends=False), skips=frozenset())
        steps = MainFlow(
            decode_record=decode,
            authorise_item=lambda item: item,
            embedder=embedder,
            open_state=StateStep.opener(directory, embedder, rules, clocks, models=models),
            route_outputs=lambda outputs: [one for _, one in outputs],
            spans=RecordSpans(Stages((TOPIC,))),
        )
        run(steps.recipe(source, sink))
        through: dict[str, list[int]] = {}
        for one in sink.items:
            if isinstance(one, Ack):
                through.setdefault(one.source, []).extend(one.offsets)
        outputs = [one for one in sink.items if not isinstance(one, Ack | OutputBarrier)]
        marks = [(b.partition, b.number, b.pending, b.last) for b in sink.items if isinstance(b, OutputBarrier)]
        assert source.is_closed
        assert sink.is_closed
        shown = sorted(map(shown_of, outputs), key=repr)
        return Outcome(shown, marks, through, len(reranker.given), state_hash(directory))


def shown_of(output: Any) -> tuple[Any, ...]:
    match output:
        case Answer() | ReceiptOutput():
            return type(output).__name__, *output.position, output.number, output.body
        case DeadLetter():
            return "DeadLetter", *output.position, output.number, output.error.code
    return type(output).__name__, *output.position, output.number


@pytest.mark.parametrize("seed", range(4))
def test_same_schedule_gives_equal_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(large, "RELEASED_MAX", 1)  # held items are released one by one, between batches
    monkeypatch.setattr(erase, "OWNERS_PER_STEP", 1)
    schedule = make_schedule(seed)
    one, other = (outcome_of(run, schedule, tmp_path / run.__name__) for run in RUNNERS)
    assert one == other
    assert {kind for kind, *_ in one.outputs} >= {"Answer", "DeadLetter"}
    assert one.calls > 0
    assert any(last for *_, last in one.marks)


class Counting:
    """A key's state: it puts out its sum a moment after each value, and is dropped at a negative value."""

    def __init__(self) -> None:
        self.sum, self.is_due = 0, False

    def on_batch(self, values: list[int]) -> tuple[list[str], bool]:
        self.sum += sum(values)
        self.is_due = True
        return [f"took {len(values)}"], values[-1] < 0

    def on_notify(self) -> list[str]:
        self.is_due = False
        return [f"sum {self.sum}"]

    def on_eof(self) -> list[str]:
        return [f"end {self.sum}"]

    def due_ms(self) -> int | None:
        return 0 if self.is_due else None


def keyed(source: Script, sink: Collected, fail_at: int | None = None) -> Recipe:
    def checked(batch: list[tuple[str, int]]) -> list[tuple[str, int]]:
        if any(value == fail_at for _, value in batch):
            raise ValueError("a step failed")
        return batch

    return Recipe("keyed", source, [BatchStep("checked", checked), KeyedStep("sums", Counting)], sink)


@pytest.mark.parametrize("run", RUNNERS)
def test_keyed_step_notifies_drops_and_ends_its_states(run: Runner) -> None:
    source, sink = Script([[("a", 1), ("b", 2), ("a", 3)], [], [("b", -1)], [("b", 5)]]), Collected()
    run(keyed(source, sink))
    found = {key: [text for one, text in sink.items if one == key] for key in "ab"}
    assert found["a"] == ["took 2", "sum 4", "end 4"]
    assert found["b"] == ["took 1", "sum 2", "took 1", "took 1", "sum 5", "end 5"]


@pytest.mark.parametrize("run", RUNNERS)
def test_error_of_a_step_is_raised_and_parts_are_closed(run: Runner) -> None:
    source, sink = Script([[("a", 1)], [("a", 7)]]), Collected()
    with pytest.raises(ValueError, match="a step failed"):
        run(keyed(source, sink, fail_at=7))
    assert source.is_closed
    assert sink.is_closed


def test_loop_notifies_when_its_clock_reaches_the_due_time() -> None:
    class Later(Counting):
        def due_ms(self) -> int | None:
            return 1_000 if self.is_due else None

    now_ms, sink = 0, Collected()
    recipe = Recipe("later", Script([[("a", 1)], [], [], []]), [KeyedStep("sums", Later)], sink)
    loop = RecipeLoop(recipe, clock_ms=lambda: now_ms)
    assert loop.step()
    assert loop.step()
    now_ms = 1_000
    assert loop.step()
    loop.close()
    assert sink.items == [("a", "took 1"), ("a", "sum 1")]


@pytest.mark.parametrize("error", [ImportError("libpython is missing"), ModuleNotFoundError("x", name="bytewax")])
def test_unusable_bytewax_leaves_the_loop(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    def find_spec(name: str, *_: object) -> None:
        if name == "bytewax":
            raise error

    for name in [one for one in sys.modules if one.partition(".")[0] == "bytewax" or one.endswith(".on_bytewax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find_spec), *sys.meta_path])
    executed: list[Recipe] = []
    monkeypatch.setattr(member, "run_loop", executed.append)
    recipe = Recipe("main", SimpleNamespace(), [], SimpleNamespace())
    member.run(recipe)
    assert executed == [recipe]
