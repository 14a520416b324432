"""Partitions: their keys, graph records, staged writes, and storage errors of reads."""

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from recallflow.errors import StorageError
from recallflow.owner import Owner
from recallflow.records import Position
from recallflow.state import graph_codec as codec
from recallflow.state import keys
from recallflow.state.description import describe
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import Keyring
from recallflow.state.keys import NAME_BYTES, OWNER_BYTES
from recallflow.state.partition import Partition
from recallflow.state.verify import verify
from tests.unit.operators.harness import make_event, run_flow
from tests.unit.state.member import open_partition

KEYS = [keys.OWNERS + b"%04d" % number for number in range(1_000)]
BLOCK_BYTES = 20_480  # more than the first block, which is read when the database is opened


@pytest.fixture
def damaged(opened: Callable[[], Partition], tmp_path: Path) -> Partition:
    """A database with a damaged table behind the first block."""
    partition, draw = opened(), np.random.default_rng(7)
    partition.stage({key: draw.bytes(200) for key in KEYS})
    partition.commit()
    opened()  # the log of the run before becomes a table
    (table,) = (tmp_path / "p000").glob("*.sst")
    content = bytearray(table.read_bytes())
    middle = slice(BLOCK_BYTES, len(content) // 2)
    content[middle] = bytes(byte ^ 0x5A for byte in content[middle])
    table.write_bytes(content)
    return opened()


@pytest.mark.parametrize(
    "read",
    [
        lambda partition: partition.get(KEYS[200]),
        lambda partition: partition.get_many([KEYS[0], KEYS[200]]),
        lambda partition: list(partition.scan(keys.OWNERS)),
        lambda partition: list(partition.scan_range(KEYS[200], KEYS[210])),
    ],
)
def test_unreadable_record_is_a_storage_error(damaged: Partition, read: Callable[[Partition], object]) -> None:
    with pytest.raises(StorageError):
        read(damaged)


def test_a_database_that_was_closed_cannot_be_read(opened: Callable[[], Partition]) -> None:
    closed, _ = opened(), opened()
    with pytest.raises(StorageError):
        list(closed.scan(keys.OWNERS))


EPISODES = keys.table(bytes(16), keys.EPISODE)
SESSION = EPISODES + bytes(16)
FOUR = [keys.episode(bytes(16), bytes(16), number) for number in range(4)]


@pytest.mark.parametrize(
    "read",
    [
        lambda partition: dict(partition.scan(keys.OWNERS)),
        lambda partition: dict(partition.scan(EPISODES)),
        lambda partition: dict(partition.scan(SESSION)),
        lambda partition: dict(partition.scan_range(FOUR[0], keys.after(SESSION))),
        lambda partition: dict(partition.scan_range(keys.row(bytes(16), bytes(16), 0), FOUR[3] + b"0")),
        lambda partition: dict([*partition.scan_back(SESSION)][::-1]),
        lambda partition: {key: partition.get(key) for key in partition.first_keys(SESSION, 3)},
        lambda partition: dict(pair for pair in zip(FOUR, partition.get_many(FOUR), strict=True) if pair[1]),
        lambda partition: {key: value for key in FOUR if (value := partition.get_large(key))},
    ],
)
def test_reads_see_staged_writes(
    opened: Callable[[], Partition], read: Callable[[Partition], dict[bytes, bytes]]
) -> None:
    partition = opened()
    partition.stage({FOUR[0]: b"old", FOUR[1]: b"gone", FOUR[2]: b"stays"})
    assert read(partition) == {FOUR[0]: b"old", FOUR[1]: b"gone", FOUR[2]: b"stays"}
    partition.stage({FOUR[0]: b"new", FOUR[1]: None, FOUR[3]: b"added"})
    assert read(partition) == {FOUR[0]: b"new", FOUR[2]: b"stays", FOUR[3]: b"added"}


def test_read_within_a_batch_splits_no_event(opened: Callable[[], Partition]) -> None:
    partition, position = opened(), Position("log", 0, 7)
    partition.stage({KEYS[0]: b"told"}, position)
    list(partition.scan(keys.OWNERS))
    partition = opened()  # nobody called `commit`
    assert partition.get(KEYS[0]) == b"told"
    assert partition.is_applied(position)


@pytest.fixture(scope="module")
def one_partition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Partition]:
    with open_partition(tmp_path_factory.mktemp("state")) as partition:
        yield partition


OWNER, OTHER = bytes(16), bytes(15) + b"\x01"
NAMES = [bytes(16), bytes(15) + b"\xff", b"\xff" * 16]
SOME_KEYS = [
    *(keys.episode(owner, name, at) for owner in (OWNER, OTHER) for name in NAMES for at in (0, 2**64 - 1)),
    *(keys.member(owner, name, 1) for owner in (OWNER, OTHER) for name in NAMES),
    *(keys.entry(owner, seq) for owner in (OWNER, OTHER) for seq in (0, 255, 2**64 - 1)),
    *(keys.head(owner) for owner in (OWNER, OTHER)), keys.unsynced(OWNER, 3), keys.work(OWNER),
    keys.outbox(NAMES[0], 0), keys.outbox(NAMES[0], 2**63),
]  # fmt: skip

STAGED_ELSEWHERE = [keys.episode(OWNER, NAMES[0], 1), keys.member(OWNER, NAMES[0], 1), keys.head(OWNER)]


@given(
    staged=st.lists(st.sampled_from(SOME_KEYS), unique=True, max_size=8),
    bounds=st.lists(
        st.builds(lambda key, size: key[:size], st.sampled_from(SOME_KEYS), st.integers(1, 42)), max_size=5
    ),
)
def test_range_scan_sees_staged_records(one_partition: Partition, staged: list[bytes], bounds: list[bytes]) -> None:
    partition = one_partition
    partition.stage({key: b"staged" if key in staged else None for key in {*SOME_KEYS, *STAGED_ELSEWHERE}})
    for prefix in bounds:
        assert [key for key, _ in partition.scan(prefix)] == sorted(key for key in staged if key.startswith(prefix))
        partition.stage(dict.fromkeys(staged, b"staged"))  # the scan may have committed it
    for first, end in pairwise(sorted(bounds)):
        assert [key for key, _ in partition.scan_range(first, end)] == sorted(k for k in staged if first <= k < end)
        partition.stage(dict.fromkeys(staged, b"staged"))


@pytest.mark.parametrize(
    "prefix",
    [
        keys.table(OTHER, keys.UNSYNCED), keys.table(OWNER, keys.UNSYNCED),
        keys.table(OWNER, keys.EPISODE) + NAMES[1], keys.members(OWNER, NAMES[1]),
    ],
)  # fmt: skip
def test_scan_without_staged_keys_commits_nothing(one_partition: Partition, prefix: bytes) -> None:
    partition = one_partition
    partition.stage(dict.fromkeys(SOME_KEYS))
    partition.commit()
    partition.sync()
    partition.stage(dict.fromkeys(STAGED_ELSEWHERE, b""))
    assert list(partition.scan(prefix)) == []
    assert not partition.unsynced  # so it wrote nothing either


OWNER_KEY = st.binary(min_size=keys.OWNER_BYTES, max_size=keys.OWNER_BYTES)
NAME_KEY = st.binary(min_size=keys.NAME_BYTES, max_size=keys.NAME_BYTES)
SEQ = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 255, 256, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
VERSION = st.integers(0, 2**32 - 1) | st.sampled_from([0, 255, 256, 65_535, 65_536])
TABLES = [keys.HEAD, keys.CURRENT, keys.ROW, keys.ENTRY, keys.VECTORS, keys.EPISODE, keys.EVENT_ID]
# The bytes at which adding one carries, and their neighbours.
EDGE_BYTES = st.lists(st.sampled_from([0x00, 0x01, 0x7F, 0xFE, 0xFF]), max_size=5).map(bytes)


@given(owner=OWNER_KEY, node=NAME_KEY, one=SEQ, other=SEQ)
def test_members_and_edges_of_a_node_sort_the_newest_first(owner: bytes, node: bytes, one: int, other: int) -> None:
    for key, prefix in ((keys.member, keys.members), (keys.adjacency, keys.adjacency_of)):
        assert (key(owner, node, one) > key(owner, node, other)) == (one < other)
        assert key(owner, node, one).startswith(prefix(owner, node))
        assert keys.reversed_sequence(key(owner, node, one)) == one


@given(owner=OWNER_KEY, name=NAME_KEY, one=SEQ, other=SEQ)
def test_sequence_numbers_sort_as_numbers(owner: bytes, name: bytes, one: int, other: int) -> None:
    for key in (keys.entry, keys.vectors):
        assert (key(owner, one) < key(owner, other)) == (one < other)
        assert keys.sequence(key(owner, one)) == one
    assert (keys.episode(owner, name, one) < keys.episode(owner, name, other)) == (one < other)
    assert (keys.outbox(name, one) < keys.outbox(name, other)) == (one < other)
    assert keys.outbox(name, one).startswith(keys.OUTBOX + name)


@given(owner=OWNER_KEY, memory=NAME_KEY, one=VERSION, other=VERSION)
def test_versions_of_a_memory_sort_as_numbers(owner: bytes, memory: bytes, one: int, other: int) -> None:
    assert (keys.row(owner, memory, one) < keys.row(owner, memory, other)) == (one < other)


@given(owner=OWNER_KEY, name=NAME_KEY, version=VERSION, seq=SEQ)
def test_a_key_splits_into_owner_table_and_rest(owner: bytes, name: bytes, version: int, seq: int) -> None:
    assert keys.split(keys.head(owner)) == (owner, keys.HEAD, b"")
    assert keys.split(keys.current(owner, name)) == (owner, keys.CURRENT, name)
    assert keys.split(keys.row(owner, name, version)) == (owner, keys.ROW, name + version.to_bytes(4, "big"))
    assert keys.split(keys.entry(owner, seq)) == (owner, keys.ENTRY, seq.to_bytes(8, "big"))
    assert keys.split(keys.vectors(owner, seq)) == (owner, keys.VECTORS, seq.to_bytes(8, "big"))
    assert keys.split(keys.episode(owner, name, seq)) == (owner, keys.EPISODE, name + seq.to_bytes(8, "big"))
    assert keys.split(keys.event_id(owner, name)) == (owner, keys.EVENT_ID, name)
    for table in TABLES:
        assert keys.split(keys.table(owner, table)) == (owner, table, b"")
    for other in (keys.COUNTS, keys.APPLIED, keys.USERS + owner):
        assert keys.split(other + name * 2) == (b"", b"", other + name * 2)  # whatever its 18th byte is


@given(prefix=EDGE_BYTES | st.binary(max_size=4), rest=EDGE_BYTES | st.binary(max_size=4), other=EDGE_BYTES)
def test_after_bounds_exactly_the_prefix(prefix: bytes, rest: bytes, other: bytes) -> None:
    assume(prefix.strip(b"\xff"))  # nothing lies behind all of 0xFF; every namespace begins with 00, 01 or 02
    bound = keys.after(prefix)
    assert prefix <= prefix + rest < bound
    for key in (other, bound, bound[:-1], bound + rest, prefix[:-1], prefix[:-1] + other):
        assert (prefix <= key < bound) == key.startswith(prefix)


def test_tables_and_namespaces_have_names_of_their_own() -> None:
    graph = [keys.NODE, keys.MEMBER, keys.LINKS, keys.EDGE, keys.ADJACENCY, keys.SIMILAR, keys.SUPERSEDED]
    past = [keys.PAST_ENTRY, keys.PAST_VECTORS, keys.EPISODE_LOG, keys.CATEGORY_SUMMARY]
    tables = [*TABLES, *graph, *past, keys.UNSYNCED, keys.USAGE, keys.SESSION, keys.QUERY_IDS]
    assert len(set(tables)) == len(tables)
    assert {len(table) for table in tables} == {1}
    namespaces = [keys.FORMAT, keys.APPLIED, keys.OWNERS, keys.OUTBOX]
    assert not any(a != b and a.startswith(b) for a in namespaces for b in namespaces)


# Keys that differ in their last byte alone, up to the one whose successor carries.
CLOSE_OWNERS = [bytes(15) + bytes([last]) for last in (0x00, 0x01, 0x7F, 0xFE, 0xFF)]
CLOSE_OWNERS += [b"\xff" * 16, b"\xff" * 15 + b"\xfe"]


def test_table_scan_meets_no_other_table_or_owner(opened: Callable[[], Partition]) -> None:
    partition = opened()
    for owner in CLOSE_OWNERS:
        everything = [
            keys.head(owner), *(keys.current(owner, name) for name in CLOSE_OWNERS),
            *(keys.row(owner, name, version) for name in CLOSE_OWNERS for version in (0, 1, 2**32 - 1)),
            *(keys.entry(owner, seq) for seq in (0, 1, 256, 2**64 - 1)),
            *(keys.vectors(owner, seq) for seq in (0, 1, 256, 2**64 - 1)),
            *(keys.episode(owner, name, number) for name in CLOSE_OWNERS for number in (0, 2**64 - 1)),
        ]  # fmt: skip
        partition.stage(dict.fromkeys(everything, owner))
    partition.commit()
    for owner in CLOSE_OWNERS:
        for table, size in ((keys.HEAD, 1), (keys.CURRENT, 7), (keys.ROW, 21), (keys.ENTRY, 4), (keys.EPISODE, 14)):
            found = list(partition.scan(keys.table(owner, table)))
            assert len(found) == size
            assert {(keys.split(key)[:2], value) for key, value in found} == {((owner, table), owner)}
        session = keys.table(owner, keys.EPISODE) + CLOSE_OWNERS[-2]
        assert [keys.sequence(key) for key, _ in partition.scan(session)] == [0, 2**64 - 1]


def test_applied_positions_of_hostile_topics_come_back_after_a_restart(opened: Callable[[], Partition]) -> None:
    partition = opened()
    topics = ["a", "a:0", "a:0:1", "a:", ":", "format", "clock", "töpic", "a/b"]
    moved = {Position(topic, number, 7 + number).source: 7 + number for topic in topics for number in (0, 10)}
    for topic in topics:
        for number in (0, 10):
            partition.stage({}, Position(topic, number, 7 + number))
    partition.commit()
    assert opened().applied == moved


KEYRING = Keyring(bytes(range(32)))
ANN = KEYRING.owner(Owner("acme", "prod", "ann"))
BO = KEYRING.owner(Owner("acme", "prod", "bo"))
# Parts that, put together carelessly, read the same: a/b + c and a + b/c, quotes that close a JSON text, accents
# written in two ways, blanks that fall away, the empty text.
PARTS = [
    "", "null",
    "a", "a/b", "b/c", "c", "/", "a/", "/c", '"', 'a","b', "\\", "..", "é", "e\u0301", " a", "a ", "A", "💬",
]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(PARTS)


def test_hostile_owners_have_keys_of_their_own() -> None:
    owners = [Owner(*parts) for parts in product(PARTS, repeat=3)]
    found = {KEYRING.owner(owner) for owner in owners}
    assert len(found) == len(owners)
    assert {len(key) for key in found} == {OWNER_BYTES}, "of one length, so that none is another's prefix"


@given(one=TEXT, other=TEXT)
def test_only_equal_names_of_one_owner_share_a_key(one: str, other: str) -> None:
    assert (KEYRING.name(ANN, one) == KEYRING.name(ANN, other)) == (one == other)
    assert KEYRING.name(ANN, one) != KEYRING.name(BO, one)
    assert len(KEYRING.name(ANN, one)) == NAME_BYTES


@given(one=st.binary(max_size=12), other=st.binary(max_size=12))
def test_contents_share_a_digest_only_if_they_are_the_same(one: bytes, other: bytes) -> None:
    assert (KEYRING.digest(ANN, one) == KEYRING.digest(ANN, other)) == (one == other)
    assert KEYRING.digest(ANN, one) != KEYRING.digest(BO, one)


def test_edge_key_holds_its_ordered_ends_and_type() -> None:
    one, other = KEYRING.name(ANN, "a"), KEYRING.name(ANN, "b")
    both_ways = ((one, other), (other, one))
    named = {KEYRING.edge(owner, *ends, kind) for owner in (ANN, BO) for ends in both_ways for kind in "tu"}
    assert (len(named), {len(name) for name in named}) == (8, {NAME_BYTES})


def test_another_secret_gives_unrelated_keys() -> None:
    other = Keyring(bytes(32))
    assert other.owner(Owner("acme", "prod", "ann")) != ANN
    assert other.name(ANN, "m") != KEYRING.name(ANN, "m")
    assert other.digest(ANN, b"m") != KEYRING.digest(ANN, b"m")


def test_keys_are_the_same_in_every_release() -> None:
    # A state directory's data is found by these: another scheme is another format version.
    assert ANN.hex() == "ed699e075be1c1967a46495794e4d3f4"
    assert KEYRING.name(ANN, "m1").hex() == "ed210d7784e1cc852995ab0f4fc7a8cc"
    assert KEYRING.node(ANN, "tag:tea").hex() == "e0cdfbc158398e66ef08e61f375a60f8"
    assert KEYRING.edge(ANN, bytes(16), bytes(16), "likes").hex() == "a77bffbf34f27b4356ef1a955021acf0"
    assert KEYRING.digest(ANN, b"hello").hex() == "776be67114c9cdbac374fbbe5f0dc304"
    assert KEYRING.user("acme", "ann").hex() == "270fd791507b9c6b2d7b0f6707b16be8"
    assert KEYRING.tenant("acme").hex() == "47237753f0e1aa2b152a2a906865bd54"


WORD = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLACE = st.integers(0, 2**63 - 1)
TIME = st.integers(-(2**40), 2**40)
SHARE = st.floats(0, 1)
OBJECT = st.dictionaries(WORD, st.none() | st.booleans() | st.integers(0, 9) | WORD, max_size=2)
NODE_KEYS = st.builds(codec.NodeKey, WORD, st.booleans())
DESCRIPTIONS = st.builds(codec.NodeDescription, st.none() | WORD, OBJECT)
HELD = (st.none() | TIME, st.none() | TIME, TIME)
FLAG, WORDS = st.booleans(), st.lists(WORD)
STATEMENTS = st.builds(codec.Statement, WORD, PLACE, TIME, FLAG, FLAG, st.none() | OBJECT, SHARE, SHARE, *HELD)
GIVEN = st.builds(codec.GivenEdge, SHARE, SHARE, st.none() | TIME, FLAG, OBJECT, TIME, FLAG, *HELD)
RECORDS = st.one_of(
    st.builds(codec.NodeRow, NODE_KEYS, WORD, WORD, st.none() | WORD, st.none() | OBJECT, FLAG, st.none() | PLACE),
    st.builds(codec.LinksRow, WORD, st.dictionaries(WORD, WORD, max_size=3), WORDS, WORDS, st.binary(max_size=32)),
    st.builds(
        codec.EdgeRow, NODE_KEYS, NODE_KEYS, WORD, PLACE, st.none() | GIVEN,
        st.lists(STATEMENTS, max_size=2).map(tuple), st.none() | FLAG, TIME,
    ),
    st.builds(codec.Unsynced, WORD, st.integers(0, 9), st.lists(st.tuples(WORD, WORD), max_size=2)),
)  # fmt: skip


@given(record=RECORDS)
def test_a_record_round_trips(record: Any) -> None:
    decoded = type(record).decode(record.encode() if isinstance(record, codec.LinksRow) else codec.encode_row(record))
    assert decoded == record
    assert repr(decoded) == repr(record), "the same types in it"


@given(role=st.sampled_from(["tag", "entity"]), description=st.none() | DESCRIPTIONS)
def test_a_link_round_trips(role: str, description: codec.NodeDescription | None) -> None:
    assert codec.decode_member(codec.encode_member(role, description)) == (role, description)


@given(near=st.lists(st.builds(codec.StoredNeighbour, PLACE, WORD, SHARE, TIME, st.booleans()), max_size=3))
def test_similar_memories_round_trip(near: list[codec.StoredNeighbour]) -> None:
    assert codec.decode_neighbours(codec.encode_row(near)) == near


@given(by=st.lists(st.builds(codec.Superseded, WORD, TIME, *[st.none() | TIME] * 3, TIME, st.booleans()), max_size=3))
def test_supersession_round_trips(by: list[codec.Superseded]) -> None:
    assert codec.decode_superseded(codec.encode_row(by)) == by


@given(sketch=st.binary(max_size=32))
def test_a_sketch_is_read_without_the_rest(sketch: bytes) -> None:
    assert codec.sketch_of(codec.LinksRow("m", {"tag:x": "tag"}, [], [], sketch).encode()) == sketch


@given(name=WORD)
def test_the_key_of_a_keys_own_name_is_itself(name: str) -> None:
    key = codec.node_key("entity", name)
    assert codec.node_key("entity", key.partition(":")[2]) == key


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
    (near,) = codec.decode_neighbours(partition.get(keys.similar(owner, 0)) or b"")
    return {keys.similar(owner, 0): codec.encode_row([near._replace(weight=0.5)])}


def _other_type(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    key, value = next(iter(stored(partition, owner, keys.EDGE).items()))
    return {key: codec.encode_row(codec.EdgeRow.decode(value)._replace(type="hates"))}


def _unstated(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    found = {key: codec.EdgeRow.decode(value) for key, value in stored(partition, owner, keys.EDGE).items()}
    return {key: codec.encode_row(row._replace(statements=(), given=None)) for key, row in found.items()}


def _lonely(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    row = codec.NodeRow(codec.NodeKey("tag:lonely"), "tag", "lonely")
    return {keys.node(owner, partition.keyring.node(owner, "tag:lonely")): codec.encode_row(row)}


def _other_name(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    key, value = next(iter(stored(partition, owner, keys.NODE).items()))
    return {key: codec.encode_row(codec.NodeRow.decode(value)._replace(key=codec.NodeKey("tag:other")))}


def _undescribed(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    key = keys.node(owner, partition.keyring.node(owner, "entity:ann"))
    return {key: codec.encode_row(codec.NodeRow.decode(partition.get(key) or b"")._replace(described_by=7))}


def _cut(partition: Partition, owner: bytes) -> dict[bytes, bytes | None]:
    return {keys.links(owner, 0): (partition.get(keys.links(owner, 0)) or b"")[:-1]}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without_one(keys.NODE), "the node is missing"),
        (without_one(keys.MEMBER), "their records of a link differ"),
        (without_one(keys.LINKS), "it is not in the graph"),
        (without_one(keys.EDGE), "its adjacency list differs from edge number"),
        (without_one(keys.EDGE, 1), "its adjacency list differs from edge number"),
        (without_one(keys.ADJACENCY), "its adjacency list differs from edge number"),
        (without_one(keys.SIMILAR), "their similarity is stored at one of them only"),
        (without_one(keys.SUPERSEDED), "its supersessions differ from those of its edges"),
        (_other_weight, "their similarity is stored at one of them only"),
        (_other_type, "content does not match its key"),
        (_unstated, "it has no statement"),
        (_lonely, "it has no links and no edges"),
        (_other_name, "content does not match its key"),
        (_undescribed, "which is not linked to it"),
        (
            lambda _, owner: {keys.links(owner, 7): codec.LinksRow("nobody", {}, [], []).encode()},
            "the memory does not exist",
        ),
        (lambda _, owner: {keys.past_joined(owner, bytes(16), 7): b"[]"}, "the record of edge number 7"),
        (_cut, "cannot be decoded"),
    ],
)
def test_a_graph_that_does_not_hang_together_is_found(state_dir: Path, damage: Damage, says: str) -> None:
    assert [problem for problem in verify(state_dir).problems if "of no table" not in problem] == []
    with StateDirectory.open(state_dir, describe(state_dir)[0]) as directory:
        partition = directory.partition(0)
        partition.stage(damage(partition, partition.keyring.owner(Owner("acme", "prod", "ann"))))
        partition.commit()
    assert any(says in problem for problem in verify(state_dir).problems)


def test_a_scan_back_meets_the_same_records_the_last_first(state_dir: Path) -> None:
    with StateDirectory.open(state_dir, describe(state_dir)[0]) as directory:
        partition = directory.partition(0)
        owner = partition.keyring.owner(Owner("acme", "prod", "ann"))
        for letter in (keys.MEMBER, keys.ROW, keys.USAGE):
            prefix = keys.table(owner, letter)
            assert list(partition.scan_back(prefix)) == list(partition.scan(prefix))[::-1]
