"""Records of the graph round-trip, and inconsistencies are found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.description import describe
from recallflow.state.directory import StateDirectory
from recallflow.state.graph_codec import (
    EdgeRow,
    GivenEdge,
    LinksRow,
    NodeDescription,
    NodeKey,
    NodeRow,
    Statement,
    StoredNeighbour,
    Superseded,
    Unsynced,
    decode_member,
    decode_neighbours,
    decode_superseded,
    encode_member,
    encode_rows,
    node_key,
    sketch_of,
)
from recallflow.state.partition import Partition
from recallflow.state.verify import verify
from tests.unit.operators.harness import make_event, run_flow

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SEQ = st.integers(0, 2**63 - 1)
TIME = st.integers(-(2**40), 2**40)
SHARE = st.floats(0, 1)
OBJECT = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(0, 9) | TEXT, max_size=2)
NODE_KEYS = st.builds(NodeKey, TEXT, st.booleans())
DESCRIPTIONS = st.builds(NodeDescription, st.none() | TEXT, OBJECT)
HELD = (st.none() | TIME, st.none() | TIME, TIME)
STATEMENTS = st.builds(
    Statement, TEXT, SEQ, TIME, st.booleans(), st.booleans(), st.none() | OBJECT, SHARE, SHARE, *HELD
)
GIVEN = st.builds(GivenEdge, SHARE, SHARE, st.none() | TIME, st.booleans(), OBJECT, TIME, st.booleans(), *HELD)
RECORDS = st.one_of(
    st.builds(NodeRow, NODE_KEYS, TEXT, TEXT, st.none() | TEXT, st.none() | OBJECT, st.booleans(), st.none() | SEQ),
    st.builds(
        LinksRow, TEXT, st.dictionaries(TEXT, TEXT, max_size=3), st.lists(TEXT), st.lists(TEXT), st.binary(max_size=32)
    ),
    st.builds(
        EdgeRow, NODE_KEYS, NODE_KEYS, TEXT, SEQ, st.none() | GIVEN, st.lists(STATEMENTS, max_size=2).map(tuple),
        st.none() | st.booleans(), TIME,
    ),
    st.builds(Unsynced, TEXT, st.integers(0, 9), st.lists(st.tuples(TEXT, TEXT), max_size=2)),
)  # fmt: skip


@given(record=RECORDS)
def test_a_record_round_trips(record: Any) -> None:
    decoded = type(record).decode(record.encode())
    assert decoded == record
    assert repr(decoded) == repr(record), "the same types in it"


@given(role=st.sampled_from(["tag", "entity"]), description=st.none() | DESCRIPTIONS)
def test_a_link_round_trips(role: str, description: NodeDescription | None) -> None:
    assert decode_member(encode_member(role, description)) == (role, description)


@given(near=st.lists(st.builds(StoredNeighbour, SEQ, TEXT, SHARE, TIME, st.booleans()), max_size=3))
def test_similar_memories_round_trip(near: list[StoredNeighbour]) -> None:
    assert decode_neighbours(encode_rows(near)) == near


@given(by=st.lists(st.builds(Superseded, TEXT, TIME, *[st.none() | TIME] * 3, TIME, st.booleans()), max_size=3))
def test_supersession_round_trips(by: list[Superseded]) -> None:
    assert decode_superseded(encode_rows(by)) == by


@given(sketch=st.binary(max_size=32))
def test_a_sketch_is_read_without_the_rest(sketch: bytes) -> None:
    assert sketch_of(LinksRow("m", {"tag:x": "tag"}, [], [], sketch).encode()) == sketch


@given(name=TEXT)
def test_the_key_of_a_keys_own_name_is_itself(name: str) -> None:
    key = node_key("entity", name)
    assert node_key("entity", key.partition(":")[2]) == key


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Of each table of the graph, something: `a` (place 0) and `b` (1) are similar, `b` supersedes `a`."""
    relation = {"source": "Ann", "type": "likes", "target": "Tea"}
    person = {"name": "Ann", "type": "person"}
    events = [
        make_event("memory", id="a", content="x", tags=["hot"], relations=[relation], entities=[person]),
        make_event("memory", id="b", content="x", tags=["cold"]),
        make_event("graph.edges", edges=[{"source": "b", "target": "a", "type": "supersedes", "evidence": "b"}]),
    ]
    run_flow(events, tmp_path / "s", partitions=1)
    return tmp_path / "s"


def stored(partition: Partition, owner: bytes, table: bytes) -> dict[bytes, bytes]:
    return dict(partition.scan(keys.table(owner, table)))


Damage = Callable[[Partition, bytes], dict[bytes, bytes | None]]


def without_one(table: bytes, number: int = 0) -> Damage:
    return lambda partition, owner: {[*stored(partition, owner, table)][number]: None}


def _other_weight(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    (near,) = decode_neighbours(partition.get(keys.similar(owner, 0)) or b"")
    return {keys.similar(owner, 0): encode_rows([near._replace(weight=0.5)])}


def _other_type(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    key, value = next(iter(stored(partition, owner, keys.EDGE).items()))
    return {key: EdgeRow.decode(value)._replace(type="hates").encode()}


def _unstated(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    found = {key: EdgeRow.decode(value) for key, value in stored(partition, owner, keys.EDGE).items()}
    return {key: row._replace(statements=(), given=None).encode() for key, row in found.items()}


def _lonely(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    row = NodeRow(NodeKey("tag:lonely"), "tag", "lonely")
    return {keys.node(owner, partition.keyring.node(owner, "tag:lonely")): row.encode()}


def _other_name(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    key, value = next(iter(stored(partition, owner, keys.NODE).items()))
    return {key: NodeRow.decode(value)._replace(key=NodeKey("tag:other")).encode()}


def _undescribed(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    key = keys.node(owner, partition.keyring.node(owner, "entity:ann"))
    return {key: NodeRow.decode(partition.get(key) or b"")._replace(described_by=7).encode()}


def _cut(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    return {keys.links(owner, 0): (partition.get(keys.links(owner, 0)) or b"")[:-1]}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without_one(keys.NODE), "it is missing"),
        (without_one(keys.MEMBER), "do not say the same of their link"),
        (without_one(keys.LINKS), "is not in the graph"),
        (without_one(keys.EDGE), "does not agree with edge number"),
        (without_one(keys.EDGE, 1), "does not agree with edge number"),
        (without_one(keys.ADJACENCY), "does not agree with edge number"),
        (without_one(keys.SIMILAR), "are not similar both ways"),
        (without_one(keys.SUPERSEDED), "by what it is superseded is not what its edges say"),
        (_other_weight, "are not similar both ways"),
        (_other_type, "says it is another"),
        (_unstated, "nothing states it"),
        (_lonely, "nothing leads to it"),
        (_other_name, "says it is another"),
        (_undescribed, "which is not linked to it"),
        (lambda _, owner: {keys.links(owner, 7): LinksRow("nobody", {}, [], []).encode()}, "it is not remembered"),
        (lambda _, owner: {keys.past_joined(owner, bytes(16), 7): b"[]"}, "nothing is left of edge number 7"),
        (_cut, "cannot be decoded"),
    ],
)
def test_a_graph_that_does_not_hang_together_is_found(state_dir: Path, damage: Damage, says: str) -> None:
    assert [problem for problem in verify(state_dir).problems if "of no table" not in problem] == []
    with StateDirectory.open(state_dir, describe(state_dir)[0], 2**20) as directory:
        partition = directory.partition(0)
        partition.stage(damage(partition, partition.keyring.owner(Owner("acme", "prod", "ann"))))
        partition.commit()
    assert any(says in problem for problem in verify(state_dir).problems)


def test_a_scan_back_meets_the_same_records_the_last_first(state_dir: Path) -> None:
    with StateDirectory.open(state_dir, describe(state_dir)[0], 2**20) as directory:
        partition = directory.partition(0)
        owner = partition.keyring.owner(Owner("acme", "prod", "ann"))
        for letter in (keys.MEMBER, keys.ROW, keys.USAGE):
            prefix = keys.table(owner, letter)
            assert list(partition.scan_back(prefix)) == list(partition.scan(prefix))[::-1]
