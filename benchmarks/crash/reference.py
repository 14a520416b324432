"""What should have come out."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson

from benchmarks.crash.layout import OUTPUT_PARTITIONS, PARTITIONS, SETTINGS, memory_partition
from benchmarks.crash.outputs import Found, Key
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.kafka.admin import UNKNOWN_BYTES
from recallflow.flows.router import Router
from recallflow.flows.topics import Topics
from recallflow.operators.decode import decode
from recallflow.operators.events import Ask, Batch, Item
from recallflow.operators.prepare import prepare
from recallflow.operators.step import StateStep
from recallflow.outputs import Done
from recallflow.records import Record
from recallflow.state.directory import StateDirectory
from recallflow.state.logical import state_hash

BATCH = 256


class Reference:
    """The same partition logic in this process. One state partition per source partition: owners do not know of each
    other, so it makes no difference which of them share a database."""

    def __init__(self, folder: Path, topics: Topics) -> None:
        self._embedder = load_embedder(SETTINGS.embedder)
        self._directory = StateDirectory.open(folder, SETTINGS.fingerprint(self._embedder), SETTINGS.cache_bytes)
        rules = SETTINGS.rules(self._embedder, topics.queries, {topics.responses: OUTPUT_PARTITIONS}, input_ends=False)
        open_step = StateStep.opener(self._directory, self._embedder, rules)
        self._steps = [open_step(number) for number in range(PARTITIONS)]
        self._router = Router(
            topics, dict.fromkeys(topics.outputs(), OUTPUT_PARTITIONS), dict.fromkeys(topics.outputs(), UNKNOWN_BYTES)
        )
        self.outputs: dict[Key, Found] = {}

    def run(self, memories: Sequence[Record], queries: Iterable[tuple[Record, int]]) -> str:
        """Applies memories and asks each query where the given offset of its owner's memory partition is the last one
        applied. Fills `outputs`; returns the state hash."""
        lines = [(r.position.partition, r.position.offset, 0, r) for r in memories]
        lines += [(memory_partition(r.key), at, 1, _unwaiting(r)) for r, at in queries]
        lines.sort(key=lambda line: line[:3])
        for partition, step in enumerate(self._steps):
            records = [line[3] for line in lines if line[0] == partition]
            for start in range(0, len(records), BATCH):
                items = prepare(self._embedder, [decode(record) for record in records[start : start + BATCH]])
                self._feed(step, partition, items)
        return state_hash(self._directory)

    def close(self) -> None:
        self._directory.close()

    def _feed(self, step: StateStep, partition: int, items: list[Item]) -> None:
        for output in step.take([Batch(partition, items)]):
            if not isinstance(output, Done):
                topic, number, outgoing = self._router.route(output)
                found = Found(f"{topic}:{number}", outgoing.key, outgoing.value or b"", outgoing.all_headers)
                self.outputs[Key(topic, outgoing.source, outgoing.number)] = found


def _unwaiting(record: Record) -> Record:
    """The query asked at the very place where it was answered: there is nothing to wait for."""
    asked = decode(record)
    if not isinstance(asked, Ask) or not getattr(asked.query, "wait_for", None):
        return record
    value = {name: given for name, given in orjson.loads(record.value).items() if name != "wait_for"}
    return Record(record.position, orjson.dumps(value), record.append_ms, record.key, headers=record.headers)
