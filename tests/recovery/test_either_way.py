"""A state directory may be opened by the dataflow and by the engine for callers in this process, in any order: the same
events are the same state and the same answers, and kills in between lose and repeat nothing."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from recallflow.connectors.calls import Calls
from recallflow.decisions import History
from recallflow.errors import InvalidRecord, StateBehind
from recallflow.flows.config import Config
from recallflow.flows.dataflow import run_dataflow
from recallflow.flows.embedded import Embedded, process
from recallflow.flows.engine import build
from recallflow.flows.local import QUERIES, LocalService, open_local
from recallflow.flows.settings import Settings
from recallflow.outputs import Answer, Marked, Output
from recallflow.parsing import asks, parse
from recallflow.records import Record
from recallflow.state.folders import partition_folder
from tests.dataflow import through_dataflow
from tests.recovery.lines_writer import LOG, LOG_LINES, READER, write
from tests.recovery.local_writer import SETTINGS

MakeLog = Callable[..., list[bytes]]
Comparable = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
Way = Callable[[Path, Sequence[bytes]], list[dict[str, Any]]]

THREE = Settings(partitions=3)
NAMELESS = ("message", "memory", "memory.update", "memory.forget", "recall", "memory.get")
LINES = 150
ANSWER_S = 60.0


def by_dataflow(state_dir: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    return through_dataflow(lines, THREE, state_dir).responses


def by_calls(state_dir: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    return process(lines, THREE, state_dir).responses


def by_callers(state_dir: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """What is no event, no caller can say."""

    async def tell(service: LocalService) -> list[dict[str, Any]]:
        found = []
        for line in lines:
            try:
                event = parse(line)
                if asks(line):
                    answer = await service.ask(event, (), ANSWER_S)  # type: ignore[arg-type]
                    found.append(orjson.loads(answer.model_dump_json(exclude_unset=True)))
                else:
                    await service.store(event, ())  # type: ignore[arg-type]
            except InvalidRecord:
                continue
        return found

    with open_local(Config(state_dir=state_dir, engine=THREE), History()) as service:
        return asyncio.run(tell(service))


class Whole(NamedTuple):
    lines: list[bytes]
    answers: list[dict[str, Any]]
    state_hash: str


@pytest.fixture(scope="module")
def whole_of(
    tmp_path_factory: pytest.TempPathFactory,
    make_log: MakeLog,
    hash_of: Callable[[Path], str],
    comparable: Comparable,
) -> Callable[..., Whole]:
    """A log, and what the dataflow makes of it in one go."""

    def make(seed: int, nameless: Sequence[str] = ()) -> Whole:
        lines, state_dir = make_log(seed, LINES, nameless), tmp_path_factory.mktemp("whole")
        return Whole(lines, comparable(by_dataflow(state_dir, lines)), hash_of(state_dir))

    return make


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1_000),
    cuts=st.lists(st.integers(1, LINES - 1), max_size=4, unique=True).map(sorted),
    first=st.sampled_from([by_dataflow, by_calls]),
)
@example(seed=0, cuts=[80], first=by_dataflow)  # line 80 is a question, and a line behind it has its position for an id
def test_the_same_lines_are_the_same_state_and_answers_by_turns(
    tmp_path_factory: pytest.TempPathFactory,
    whole_of: Callable[..., Whole],
    hash_of: Callable[[Path], str],
    comparable: Comparable,
    seed: int,
    cuts: list[int],
    first: Way,
) -> None:
    """Also what has its position for a name, behind a piece that ends with a question or with no event."""
    whole, state_dir = whole_of(seed, NAMELESS), tmp_path_factory.mktemp("turns")
    ways = [by_dataflow, by_calls] if first is by_dataflow else [by_calls, by_dataflow]
    answers: list[dict[str, Any]] = []
    for number, (start, end) in enumerate(pairwise([0, *cuts, LINES])):
        answers += ways[number % 2](state_dir, whole.lines[start:end])
    assert comparable(answers) == whole.answers
    assert hash_of(state_dir) == whole.state_hash


@pytest.mark.parametrize("seed", [1, 2])
def test_what_callers_say_makes_the_same_state_as_in_a_dataflow_and_has_the_same_answers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_log: MakeLog,
    hash_of: Callable[[Path], str],
    comparable: Comparable,
    seed: int,
) -> None:
    """A dataflow is given the records that callers put: when a version became known is when it was said."""
    records: list[Record] = []
    take = Calls.take

    def noted(self: Calls) -> list[Record]:
        records.extend(taken := take(self))
        return taken

    monkeypatch.setattr(Calls, "take", noted)
    answers = by_callers(tmp_path / "called", make_log(seed, LINES, NAMELESS))
    found: list[tuple[str, Output | Marked]] = []
    flow = Dataflow("flow")
    with Embedded.open(THREE, tmp_path / "flow") as embedded:
        rules = embedded.rules(QUERIES, input_ends=False)
        source = TestingSource(records, 7)
        op.output("out", build(flow, source, embedded.directory, embedded.embedder, rules), TestingSink(found))
        run_dataflow(flow, THREE, 1, None)
    responses = {one.position: orjson.loads(one.body) for _, one in found if isinstance(one, Answer)}
    assert comparable([responses[position] for position in sorted(responses)]) == comparable(answers)
    assert hash_of(tmp_path / "flow") == hash_of(tmp_path / "called")


def told_by(module: str, state_dir: Path, run: str, count: int) -> list[tuple[str, str, str]]:
    """The user, the id and the position of each memory that a process acknowledged before it was killed."""
    command = [sys.executable, "-m", f"tests.recovery.{module}", str(state_dir), run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process_:
        assert process_.stdout is not None
        first = [process_.stdout.readline() for _ in range(count)]
        process_.kill()
        rest = process_.stdout.readlines()
    whole = (line.split() for line in (*first, *rest) if line.endswith("\n"))
    return [(user, id_, position) for user, id_, position in whole]


def test_kills_by_turns_lose_nothing_repeat_nothing_and_no_position_is_given_twice(tmp_path: Path) -> None:
    state_dir = tmp_path / "s"
    told: list[tuple[str, str, str]] = []
    read_again = 0
    for turn in range(3):
        told += told_by("local_writer", state_dir, f"called{turn}", 40 + 30 * turn)
        told += told_by("lines_writer", state_dir, f"piped{turn}", 60)
        read_again += len(told_by("lines_writer", state_dir, LOG, 150))
    assert read_again >= 450
    positions = [position for _, _, position in told]
    assert len(set(positions)) == len(positions)

    async def missing(service: LocalService) -> list[tuple[str, str, str]]:
        lost = []
        for user_id, memory_id, position in told:
            asked = {"type": "memory.get", "tenant_id": "acme", "user_id": user_id, "memory_id": memory_id}
            found = await service.ask(parse(orjson.dumps(asked)), (), ANSWER_S)  # type: ignore[arg-type]
            if found.status != "ok" or len(found.versions or ()) != 1:
                lost.append((user_id, memory_id, position))
        return lost

    async def count(service: LocalService) -> int:
        asked = parse(orjson.dumps({"type": "user.stats", "tenant_id": "acme", "user_id": READER}))
        stats = (await service.ask(asked, (), ANSWER_S)).stats  # type: ignore[arg-type]
        assert stats is not None
        return int(stats["memories"])

    with open_local(Config(state_dir=state_dir, engine=SETTINGS), History()) as opened:
        assert asyncio.run(missing(opened)) == []
        assert asyncio.run(count(opened)) < LOG_LINES
    write(state_dir, LOG)  # to its end
    with open_local(Config(state_dir=state_dir, engine=SETTINGS), History()) as opened:
        assert asyncio.run(count(opened)) == LOG_LINES


def test_a_state_partition_that_is_lost_is_told(tmp_path: Path, make_log: MakeLog) -> None:
    by_calls(tmp_path / "s", make_log(1, 30))
    partition_folder(tmp_path / "s", 1).rename(tmp_path / "elsewhere")
    with pytest.raises(StateBehind, match="has lost p001"):
        by_calls(tmp_path / "s", [])
    (tmp_path / "elsewhere").rename(partition_folder(tmp_path / "s", 1))
    assert by_calls(tmp_path / "s", []) == []
