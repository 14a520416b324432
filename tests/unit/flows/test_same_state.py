"""The same log gives the same state and answers, whole or in pieces, as lines or by callers.

A log that differs gives another hash; queries and refused lines leave no trace in it.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from recallflow.connectors.local_inputs import LocalCalls
from recallflow.control import ControlHistory
from recallflow.errors import InvalidRecord
from recallflow.flows.config import Config
from recallflow.flows.embedded import EmbeddedEngine, StateLoop, process
from recallflow.flows.local import QUERIES as QUERY_TOPIC
from recallflow.flows.local import LocalService, open_local
from recallflow.flows.settings import Settings
from recallflow.outputs import Answer
from recallflow.parsing import is_query, parse
from recallflow.records import Record
from tests.event_log import CHANGES, CREATIONS, QUERIES, comparable, final_questions, hash_of, kind_of, make_log
from tests.groups import share

THREE = Settings(partitions=3)
NAMELESS = ("message", "memory", "memory.update", "memory.forget", "recall", "memory.get")
LINES = 90
ANSWER_S = 60.0


def by_lines(state_dir: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    return process(lines, THREE, state_dir).responses


def by_callers(state_dir: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """Store and ask through the engine of a program; lines that are no events cannot be sent."""

    async def send(service: LocalService) -> list[dict[str, Any]]:
        found = []
        for line in lines:
            try:
                event = parse(line)
                if is_query(line):
                    answer = await service.ask(event, (), ANSWER_S)  # type: ignore[arg-type]
                    found.append(orjson.loads(answer.model_dump_json(exclude_unset=True)))
                else:
                    await service.store(event, ())  # type: ignore[arg-type]
            except InvalidRecord:
                continue
        return found

    with open_local(Config(state_dir=state_dir, engine=THREE), ControlHistory()) as service:
        return asyncio.run(send(service))


class Whole(NamedTuple):
    lines: list[bytes]
    answers: list[dict[str, Any]]
    state_hash: str


@pytest.fixture(scope="module")
def whole_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Whole]:
    def make(seed: int, nameless: Sequence[str] = ()) -> Whole:
        lines, state_dir = make_log(seed, LINES, nameless), tmp_path_factory.mktemp("whole")
        return Whole(lines, comparable(by_lines(state_dir, lines)), hash_of(state_dir))

    return make


@settings(max_examples=share(0.15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1_000), cuts=st.lists(st.integers(1, LINES - 1), max_size=3, unique=True).map(sorted))
@example(seed=0, cuts=[80])  # line 80 is a query, and a line behind it has its position for an id
def test_log_in_pieces_gives_the_same_state_and_answers(
    tmp_path_factory: pytest.TempPathFactory, whole_of: Callable[..., Whole], seed: int, cuts: list[int]
) -> None:
    """Default ids come of positions, also behind a piece that ends with a query or a refused line."""
    whole, state_dir = whole_of(seed, NAMELESS), tmp_path_factory.mktemp("turns")
    answers: list[dict[str, Any]] = []
    for start, end in pairwise([0, *cuts, LINES]):
        answers += by_lines(state_dir, whole.lines[start:end])
    assert (comparable(answers), hash_of(state_dir)) == (whole.answers, whole.state_hash)


def test_callers_get_the_state_and_answers_of_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records that callers sent are applied again, with their times, several in a batch."""
    records: list[Record] = []
    take = LocalCalls.take

    def noted(self: LocalCalls) -> list[Record]:
        records.extend(taken := take(self))
        return taken

    monkeypatch.setattr(LocalCalls, "take", noted)
    answers = by_callers(tmp_path / "called", make_log(1, LINES, NAMELESS))
    with EmbeddedEngine.open(THREE, tmp_path / "batches") as embedded:
        loop = StateLoop(embedded, embedded.rules(QUERY_TOPIC, input_ends=False))
        found = [one for at in range(0, len(records), 7) for one in loop.apply(records[at : at + 7])]
        found += loop.end()
    responses = {one.position: orjson.loads(one.body) for one in found if isinstance(one, Answer)}
    assert comparable([responses[position] for position in sorted(responses)]) == comparable(answers)
    assert hash_of(tmp_path / "batches") == hash_of(tmp_path / "called")


def test_queries_and_refused_lines_leave_no_trace(tmp_path: Path) -> None:
    """The log has events of every type, answers with errors, and lines that are refused for every reason."""
    lines = make_log(seed=1, count=350, nameless=[*CHANGES, *QUERIES])
    done = process(lines, THREE, tmp_path / "whole")
    kinds = [kind_of(line) for line in lines]
    assert all(kinds.count(kind) > 1 for kind in (*QUERIES, *CHANGES, *CREATIONS))
    assert {answer["status"] for answer in done.responses} == {"ok", "error"}
    assert len(done.rejected) > 10
    silent = [line for line in lines if kind_of(line) is not None and kind_of(line) not in QUERIES]
    assert process(silent, THREE, tmp_path / "s").responses == []
    assert hash_of(tmp_path / "s") == hash_of(tmp_path / "whole")
    asked = [line for line in final_questions() if kind_of(line) != "recall"] + final_questions()[:10]
    answers = process(asked, THREE, tmp_path / "s").responses
    assert hash_of(tmp_path / "s") == hash_of(tmp_path / "whole")
    counts = [answer["stats"] for answer in answers if answer.get("stats")]
    assert all(count["memories"] > 2 and count["episodes"] > 0 for count in counts)


OWNER = {"tenant_id": "acme", "user_id": "ann", "timestamp": "2025-01-01T00:00:00Z"}
SHORT: list[dict[str, Any]] = [
    {"type": "message", "id": "a", "content": "a red bicycle", "session_id": "s"} | OWNER,
    {"type": "message", "id": "b", "content": "a blue kettle", "session_id": "s"} | OWNER,
    {"type": "memory", "id": "c", "content": "likes tea", "tags": ["x"]} | OWNER,
    {"type": "memory.update", "memory_id": "c", "importance": 0.9} | OWNER,
    {"type": "memory.forget", "memory_id": "b"} | OWNER,
    {"type": "episode.end", "session_id": "s"} | OWNER,
]
OTHER: dict[str, tuple[int, dict[str, Any]]] = {
    "word": (0, {"content": "a red tricycle"}), "author": (0, {"name": "Bo"}),
    "time": (0, {"timestamp": "2025-01-01T00:00:00.001Z"}), "session": (0, {"session_id": "t"}),
    "metadata": (0, {"metadata": {"a": 1}}), "id": (0, {"id": "z"}), "user": (0, {"user_id": "bob"}),
    "environment": (0, {"environment": "staging"}), "tag": (2, {"tags": ["y"]}),
    "vector": (2, {"embedding": [1.0] + [0.0] * 383}), "change": (3, {"importance": 0.8}),
    "deletion": (4, {"memory_id": "a"}),
}  # fmt: skip


def test_each_different_log_has_its_own_hash(tmp_path: Path) -> None:
    def hash_of_events(name: str, events: list[dict[str, Any]]) -> str:
        process([orjson.dumps(event) for event in events], Settings(partitions=1), tmp_path / name)
        return hash_of(tmp_path / name)

    logs = {"whole": SHORT}
    for name, (number, fields) in OTHER.items():
        logs[f"another {name}"] = [*SHORT[:number], SHORT[number] | fields, *SHORT[number + 1 :]]
    for number in range(len(SHORT)):
        logs[f"without {number}"] = SHORT[:number] + SHORT[number + 1 :]
    hashes = {name: hash_of_events(name, events) for name, events in logs.items()}
    assert len({*hashes.values()}) == len(hashes), hashes
    assert hash_of_events("again", SHORT) == hashes["whole"]
