"""A quota for one second holds while its partition changes hands."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
from hypothesis import given
from hypothesis import strategies as st

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.delivery import EarlierOutputs
from recallflow.connectors.kafka.order import Lane
from recallflow.connectors.kafka.owned import OwnedSource, reached, records_of
from recallflow.connectors.kafka.place import LogProgress, PartitionProgress
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.control import Quota
from recallflow.decisions import History
from recallflow.flows.ownership import Ownership, StateFolders
from recallflow.flows.settings import TopicNames
from recallflow.limits import EVENTS_PER_S, QUERIES_PER_S
from recallflow.operators.events import Refused, decode
from recallflow.operators.quotas import Rates
from tests.unit.connectors.fake_consumer import FakeKafka

TOPICS = TopicNames()
MEMORIES, QUERIES = TOPICS.memory, TOPICS.queries
LIMITS = {"acme": 2, "globex": 1}  # the third tenant has none
SAID = {MEMORIES: {"type": "message", "content": "x"}, QUERIES: {"type": "recall", "query": "x"}}
ALL = 1_000

Log = list[tuple[str, int]]  # tenants, and how long after the record before it each came
Verdicts = dict[tuple[str, int], bool]  # whether a record is refused

LOGS = st.lists(st.tuples(st.sampled_from(("acme", "globex", "initech")), st.integers(0, 400)), max_size=20)
# After so many records another member comes, whose folder lacks the last few that are applied.
MOVES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=4)


class Deployment:
    def __init__(self, memories: Log, queries: Log) -> None:
        self._kafka = FakeKafka(**{MEMORIES: 1, QUERIES: 1})
        self._place = PartitionProgress(LogProgress(0), LogProgress(0), 1)
        for topic, log in ((MEMORIES, memories), (QUERIES, queries)):
            at_ms = 10_000
            for tenant, later_ms in log:
                at_ms += later_ms
                value = orjson.dumps({"tenant_id": tenant, "user_id": "ann", **SAID[topic]})
                self._kafka.append(topic, 0, value, f"{tenant}/ann".encode(), append_ms=at_ms)
        self.verdicts: Verdicts = {}

    def work(self, count: int, lacks: int = 0) -> None:
        rates = Rates(decided(), QUERIES, (MEMORIES, QUERIES))
        lanes = self._opened(lacks)
        for lane in lanes:
            for message in self._kafka.topics[lane.topic][0].messages[lane.next_offset :]:
                lane.queue.append(message)
            judged = 0
            while judged < count and (records := records_of(lane, 1)):
                refused = isinstance(rates.judge(decode(records[0])), Refused)
                position = (lane.topic, records[0].position.offset)
                if not records[0].silent:
                    judged += 1
                    assert position not in self.verdicts
                    self.verdicts[position] = refused
                elif lane is lanes[0] and position[1] > self._applied(lacks):
                    assert refused == self.verdicts[position]  # the folder takes it in, as another's did
        memory, queries = map(reached, lanes)
        self._place = PartitionProgress.decode(PartitionProgress(memory, queries, 1).encode())

    def _applied(self, lacks: int) -> int:
        return max(-1, self._place.memory.next_offset - 1 - lacks)

    def _opened(self, lacks: int) -> tuple[Lane, Lane]:
        applied = {f"{MEMORIES}:0": self._applied(lacks)}
        partition = SimpleNamespace(path=Path("nowhere"), applied=applied, counts=SimpleNamespace(memories=0, owners=0))
        folders = StateFolders(Mock(partition=lambda _: partition), MEMORIES)
        source = Mock(spec=OwnedSource)
        source.stopping = None
        owned = Ownership(
            KafkaOptions("nowhere:1"),
            (MEMORIES, QUERIES),
            folders,
            source,
            EarlierOutputs(),
            Mock(),
            ignored,
            lambda _: True,
            first_places=Mock(),
            deployment="d",
            counts=lambda: True,
        )
        with TopicReader(KafkaOptions("nowhere:1"), new_consumer=self._kafka.consumer) as reader:
            owned._open(reader, 0, self._place, set())
        assert owned._places[0].generation == self._place.generation + 1
        ((_, memory, queries),) = (call.args for call in source.own.call_args_list)
        return memory, queries


ignored: Callable[[Any], None] = Mock()


def decided() -> History:
    history = History()
    for tenant, limit in LIMITS.items():
        for name in (EVENTS_PER_S, QUERIES_PER_S):
            history.add(0, Quota(type="quota", tenant_id=tenant, name=name, limit=limit))
    return history


@given(LOGS, LOGS, MOVES)
def test_next_partition_owner_continues_the_count(memories: Log, queries: Log, moves: list[tuple[int, int]]) -> None:
    stayed, moved = (Deployment(memories, queries) for _ in range(2))
    stayed.work(ALL)
    for count, lacks in moves:
        moved.work(count, lacks)
    moved.work(ALL)
    assert moved.verdicts == stayed.verdicts
    assert len(moved.verdicts) == len(memories) + len(queries)
