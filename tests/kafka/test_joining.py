"""A member that joins while another one works."""

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from recallflow.owner import state_partition
from tests.fleet import checker
from tests.fleet.checker import settled
from tests.fleet.engine import Engine, Topics
from tests.fleet.members import Ownership
from tests.fleet.records import Log, Reader, Sent, who

PARTITIONS = 6
OWNERS = 24

# The real command, but what it gives up is handed over only once a file is there: all of it was closed by then.
HOLDS = """
import time
from pathlib import Path
from recallflow.flows.ownership import Ownership

give_up = Ownership.give_up

def held(self, partitions):
    places = give_up(self, partitions)
    while not Path({go_on!r}).exists() and not self._stopping.is_set():
        time.sleep(0.01)
    return places

Ownership.give_up = held
"""


class Holding(Engine):
    def __init__(self, topics: Topics, folder: Path, *options: str, name: str) -> None:
        super().__init__(topics, folder, *options, name=name)
        self._go_on = folder / "go on"
        self.setup = HOLDS.format(go_on=str(self._go_on))

    def hand_over(self) -> None:
        self._go_on.touch()


@pytest.fixture
def topics(broker: Cluster) -> Topics:
    made = Topics(broker)
    made.make(PARTITIONS)
    return made


def shares(group: Ownership) -> list[int]:
    return [*Counter(group.look().values()).values()]


def test_kept_partitions_answer_while_others_move(topics: Topics, tmp_path: Path) -> None:
    log = Log(topics)
    options = ("--deployment", f"joined-{topics.suffix}", "--epoch-ms", "100")
    with (
        Holding(topics, tmp_path, *options, name="first") as first,
        Engine(topics, tmp_path, *options, name="second") as second,
        closing(Reader(topics)) as reader,
    ):
        group = Ownership(topics, options[1])
        first.up()
        log.talk(OWNERS, owners=OWNERS)
        assert reader.until(lambda: settled(log, reader)), first.said()
        second.start()
        owners = {f"user{number}": partition_of(f"user{number}") for number in range(OWNERS)}
        first.until(lambda: len(open_partitions(first)) == PARTITIONS // 2, "giving up half")
        stays = open_partitions(first)
        asked = {owner: [log.ask(owner, "user.stats"), log.tell(owner, content="since")] for owner in owners}
        log.flush()
        staying = [sent for owner, part in owners.items() if part in stays for sent in asked[owner]]
        moving = [sent for owner, part in owners.items() if part not in stays for sent in asked[owner]]
        assert staying
        assert moving
        assert reader.until(lambda: all(came(sent, reader) for sent in staying)), first.said()
        assert not any(came(sent, reader) for sent in moving)
        first.hand_over()
        assert reader.until(lambda: settled(log, reader)), second.said()
        first.until(lambda: shares(group) == [PARTITIONS // 2] * 2, "one of two")
        findings = checker.judge(log, reader)
        assert findings.clean(), findings


def partition_of(owner: str) -> int:
    named = who(owner)
    return state_partition(named["tenant_id"], named["user_id"], PARTITIONS)


def open_partitions(member: Engine) -> set[int]:
    lags = (name for name in member.metrics() if name.startswith("recallflow_consumer_lag_records"))
    return {int(name.partition('partition="')[2].partition('"')[0]) for name in lags if 'topic="memory' in name}


def came(sent: Sent, reader: Reader) -> bool:
    kind, name = ("response", sent.query_id) if sent.kind == "query" else ("receipt", sent.position)
    return (kind, name) in reader.seen
