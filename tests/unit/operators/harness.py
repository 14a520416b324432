"""The state step without Bytewax: lines of two logs in, outputs out; killed anywhere, and resumed from any mark."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import orjson

from recallflow.connectors.embedders import load_embedder
from recallflow.control import ControlHistory, RecallSettings
from recallflow.embedder import Embedder, Kind, Matrix
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings
from recallflow.operators.answers.models import Models
from recallflow.operators.async_call import CallCompletion
from recallflow.operators.events import Batch, Item, decode
from recallflow.operators.prepare import prepare
from recallflow.operators.recall.question import analyse_question
from recallflow.operators.recall.ranking_input import Ranking, RankingInput, ranking_parameters
from recallflow.operators.step import Clocks, StateStep
from recallflow.outputs import Answer, DeadLetter, Output, ReceiptOutput
from recallflow.queries import Mode, Recall
from recallflow.records import Barrier, Position, Record
from recallflow.responses import Response
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, Vectors
from recallflow.state.state_hash import state_hash
from recallflow.state.usage import OwnerUsage, Usage
from recallflow.state.verify import verify

MEMORIES, QUERIES = "memories", "queries"
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
HASHING = load_embedder("hash")
CLOCKS = Clocks(timer=lambda: 0.0, now_ms=lambda: 0)

Event = Mapping[str, Any]
OPEN: WeakSet["Harness"] = WeakSet()  # conftest.py stops what a test leaves open


class FlatEmbedder:
    """All texts lie in one direction; a test that is about vectors brings its own."""

    name, dimension = "flat", 4
    kind: Kind = "spelling"

    def embed(self, texts: Sequence[str]) -> Matrix:
        return np.tile(np.array([1, 0, 0, 0], np.float32), (len(texts), 1))


class ReadPlace(NamedTuple):
    """The offset of each log from which a next process reads, and the records before it that are not finished."""

    offsets: dict[str, int]
    unfinished: list[Position]


class Harness:
    """One state partition on its own directory. The logs `memories` and `queries` survive kills; with `one_log`,
    everything is in `memories`, which ends."""

    def __init__(
        self, path: Path, embedder: Embedder = HASHING, *, settings: Settings | None = None, one_log: bool = False,
        rules: Mapping[str, Any] | None = None, clocks: Clocks = CLOCKS, fallback: Embedder | None = None,
        behind: Callable[[int], str] = lambda _: "", append_ms: Callable[[int], int] = lambda offset: offset,
        record: Mapping[str, Any] | None = None, models: Models | None = None,
        decode: Callable[[Record], Item] = decode, at_rest: AtRest = UNENCRYPTED,
    ) -> None:  # fmt: skip
        """`rules` and `record`: fields of the rules, and of every record, that are other than usual. `append_ms` of an
        offset."""
        self._decode = decode
        self.path, self._at_rest = path, at_rest
        self.lines: dict[str, list[bytes]] = {MEMORIES: [], QUERIES: []}
        self._read = dict.fromkeys(self.lines, 0)
        self._taken: dict[Position, Record] = {}
        self._embedder = embedder
        self._settings = settings or Settings(partitions=1)
        chosen = self._settings.rules(embedder, None if one_log else QUERIES, input_ends=one_log)
        self._rules = replace(chosen, **rules or {})
        self._clocks, self._fallback, self._behind = clocks, fallback, behind
        self._append_ms, self._record, self._models = append_ms, record or {}, models
        self.start()

    def start(self) -> None:
        fingerprint = self._settings.fingerprint(self._embedder)
        cache_bytes, at_rest = self._settings.cache_bytes, self._at_rest
        self.directory = StateDirectory.open(self.path, fingerprint, cache_bytes, at_rest=at_rest)
        open_step = StateStep.opener(
            self.directory, self._embedder, self._rules, self._clocks, fallback=self._fallback,
            describe_missing=self._behind, models=self._models,
        )  # fmt: skip
        self._step = open_step(0)
        OPEN.add(self)

    def stop(self) -> None:
        OPEN.discard(self)
        del self._step  # and with it what reads the store
        self.directory.close()

    def restart(self, **rules: Any) -> None:
        self._rules = replace(self._rules, **rules)
        self.stop()
        self.start()

    def kill(self, place: ReadPlace | None = None) -> list[Output]:
        """Open the state again, and read logs from a place, or from their beginnings. Return the outputs of the
        unfinished records."""
        self.stop()
        self._read = dict.fromkeys(self.lines, 0) | (place.offsets if place else {})
        self.start()
        return self.take([self._taken[position] for position in place.unfinished]) if place else []

    def mark(self) -> ReadPlace:
        """Sync the state. Return the place of the next process."""
        sources = self._step.begin_sync(Barrier(0, 0)).pending
        unfinished = [Position.parse(f"{source}:{offset}") for source, found in sources.items() for offset in found]
        return ReadPlace(dict(self._read), unfinished)

    def write(self, topic: str, *events: Event | bytes) -> None:
        self.lines[topic] += [event if isinstance(event, bytes) else orjson.dumps(event) for event in events]

    def rewind(self, topic: str, offset: int = 0) -> None:
        self._read[topic] = offset

    def read(self, topic: str, at_most: int | None = None, **record: Any) -> list[Output]:
        """Return the outputs for a batch of unread lines. `record`: fields of the records."""
        first = self._read[topic]
        lines = self.lines[topic][first : None if at_most is None else first + at_most]
        self._read[topic] = first + len(lines)
        return self.take(self._made(topic, number, line, record) for number, line in enumerate(lines, first))

    def run(self, topic: str, *events: Event | bytes, **record: Any) -> list[Output]:
        self.write(topic, *events)
        return self.read(topic, **record)

    def take(self, records: Iterable[Record]) -> list[Output]:
        taken = {record.position: record for record in records}
        self._taken |= taken
        items = prepare(self._embedder, [self._decode(record) for record in taken.values()])
        return self._step.take([Batch(0, items)]) if items else []

    def complete(self, calls: int = 1) -> list[Output]:
        assert self._models is not None
        completions = self._models.runtime.completions
        finished: list[CallCompletion] = []
        while len(finished) < calls:
            completions.wake.wait()
            completions.wake.clear()
            finished += completions.pop_all()
        return self._step.take(finished)

    def _made(self, topic: str, number: int, line: bytes, fields: Mapping[str, Any]) -> Record:
        record = Record(Position(topic, 0, number), line, self._append_ms(number))
        return record._replace(**{**self._record, **fields})

    @property
    def is_due(self) -> bool:
        return self._step.due_ms() is not None

    def advance(self) -> list[Output]:
        return self._step.advance()

    def advance_to_end(self) -> list[Output]:
        outputs: list[Output] = []
        for _ in range(1_000):
            if not self.is_due:
                return outputs
            outputs += self.advance()
        raise AssertionError("it never comes to an end")

    def hash(self) -> str:
        return state_hash(self.directory)

    def problems(self) -> list[str]:
        self.stop()
        found = verify(self.path, self._at_rest).problems
        self.start()
        return found

    def records(self) -> list[tuple[bytes, bytes]]:
        return [*self.directory.partition(0).scan_range(b"", keys.END)]

    def table(self, table: bytes) -> list[bytes]:
        stored = self.directory.partition(0).scan(keys.OWNERS)
        return [value for key, value in stored if keys.split(key)[1] == table]


def answers(outputs: Iterable[Output]) -> list[dict[str, Any]]:
    answers = [output for output in outputs if isinstance(output, Answer)]
    for answer in answers:  # its body is written by no model of pydantic, and is what one would write
        assert answer.body == answer.response.model_dump_json(exclude_unset=True).encode()
        Response.model_validate_json(answer.body)
    return [orjson.loads(answer.body) for answer in answers]


def receipts(outputs: Iterable[Output]) -> list[dict[str, Any]]:
    return [orjson.loads(output.body) for output in outputs if isinstance(output, ReceiptOutput)]


def letters(outputs: Iterable[Output]) -> list[DeadLetter]:
    return [output for output in outputs if isinstance(output, DeadLetter)]


def explained(response: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {memory["id"]: memory["explanation"] for memory in response["memories"]}


def make_event(event_type: str, at_ms: int = 0, /, **fields: Any) -> dict[str, Any]:
    """Return an event of Ann's at acme. Its timestamp is always set, so that no test depends on the clock. Recall
    queries request explanations."""
    event = {"type": event_type, "tenant_id": "acme", "user_id": "ann", "timestamp": at_ms}
    return event | ({"explain": True} if event_type == "recall" else {}) | fields


def run_flow(
    events: Iterable[Event], state_dir: Path | None = None, partitions: int = 1,
    decisions: ControlHistory | None = None, **chosen: Any,
) -> Processed:  # fmt: skip
    """Run events through the whole flow, with one state partition unless a test needs more: each costs 12 ms. Texts are
    compared by spelling, unless a test is about meaning."""
    lines = [orjson.dumps(event) for event in events]
    chosen.setdefault("embedder", "hash")
    return process(lines, Settings(partitions=partitions, **chosen), state_dir, decisions)


def ids(response: Event) -> list[str]:
    return [memory["id"] for memory in response["memories"]]


def codes(response: Event) -> list[str]:
    return [warning["code"] for warning in response["warnings"]]


_ENTRY: dict[str, Any] = dict.fromkeys(
    ("author", "role", "session_id", "project_id", "category", "valid_from_ms", "valid_to_ms", "expires_ms")
) | {
    "version": 0, "created_ms": 0, "episode": -1, "flags": 0, "author_stems": "", "stems": "", "change": 0,
    "created_logged": True, "ingested_ms": 0, "kind": "message", "layer": "long_term", "tags": [], "importance": 0.5,
    "confidence": 1.0, "metadata": [],
}  # fmt: skip


def make_entry(seq: int, **fields: Any) -> Entry:
    """Return an index entry with defaults for the fields that are not given."""
    return Entry(**_ENTRY | {"seq": seq, "id": f"m{seq}"} | fields)


def indexed(entries: Sequence[Entry], vectors: Mapping[int, Sequence[float]] | None = None) -> OwnerIndex:
    """Return an index of entries, with one vector of two dimensions for each `seq` in `vectors`."""
    index = OwnerIndex("model", 2)
    rows = {(seq, 0): Vectors("model", np.array([row], np.float32)) for seq, row in (vectors or {}).items()}
    index.add(entries, rows)
    return index


def make_inputs(
    mode: Mode, entries: Sequence[Entry], semantic: Iterable[float], *, now_ms: int = 0,
    vectors: Mapping[int, Sequence[float]] | None = None, asked: npt.ArrayLike | None = None,
    allowed: Sequence[int] | None = None, proximity: Sequence[float] | None = None,
    relationship: Mapping[int, float] | None = None, usage: Mapping[int, Usage] | None = None,
    returned: Sequence[int] = (), relevance: Sequence[float] | None = None, tenant: RecallSettings | None = None,
    **query: Any,
) -> RankingInput:  # fmt: skip
    """Return the input of a ranking. `semantic`, `allowed`, `proximity` and `relevance` are in the order of `entries`,
    which must be in conversation order; `vectors`, `relationship` and `usage` are by `seq`."""
    index = indexed(entries, vectors)
    assert [index.ids[slot] for slot in index.conversation.slots] == [entry.id for entry in entries]
    recall = Recall.model_validate(make_event("recall", query="?", mode=mode) | query)
    return RankingInput(
        index=index, question=analyse_question(recall.query, []), query=recall, now_ms=now_ms,
        semantic=np.array([*semantic], np.float64),
        allowed=np.arange(len(entries)) if allowed is None else np.array(allowed),
        tuning=ranking_parameters(recall, mode, tenant or RecallSettings()),
        relevance=np.ones(len(entries)).take if relevance is None else np.array(relevance).take,
        vector=None if asked is None else np.array(asked, np.float32),
        proximity=None if proximity is None else np.array(proximity, np.float64), relationship=relationship or {},
        usage=None if usage is None else OwnerUsage((seq, used.encode()) for seq, used in usage.items()),
        returned=np.array(returned, np.int64),
    )  # fmt: skip


def ids_of(inputs: RankingInput, ranking: Ranking) -> list[str]:
    return [inputs.index.ids[inputs.index.conversation.slots[position]] for position in ranking.positions]
