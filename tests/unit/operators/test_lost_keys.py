"""Undecryptable data is never answered as something else, stops nothing, and affects its own user alone."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from recallflow.connectors.master_keys import LocalMasterKey
from recallflow.errors import DecryptionFailed
from recallflow.operators import erase
from recallflow.operators.step import Clocks
from recallflow.outputs import Output
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import AtRest
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers, letters, make_event

ENCRYPTED = AtRest(LocalMasterKey(bytes(range(32))))
ANN, BO = Owner("acme", "prod", "ann"), Owner("acme", "prod", "bo")
SECRETS = {"ann": "The violin is under the stairs", "bo": "The kettle is broken again"}
FAR = "memories:0:900"  # a position that is never there


@pytest.fixture
def now_ms() -> list[int]:
    """One number: the time by which waiting questions give up."""
    return [0]


@pytest.fixture
def engine(tmp_path: Path, now_ms: list[int]) -> Harness:
    return Harness(tmp_path / "s", at_rest=ENCRYPTED, clocks=Clocks(timer=lambda: 0.0, now_ms=lambda: now_ms[0]))


@pytest.fixture
def filled(engine: Harness) -> Harness:
    """Ann and Bo have something of everything."""
    for user, text in SECRETS.items():
        said = [
            make_event("message", n * 60_000, id=f"{user}{n}", user_id=user, content=f"{text} {n}", session_id="s")
            for n in range(4)
        ]
        at = {"user_id": user}
        engine.run(
            MEMORIES, *said,
            make_event("memory", 5, id=f"{user}fact", content=text, tags=["a"], entities=[{"name": "Porto"}], **at),
            make_event("memory.update", 6, memory_id=f"{user}fact", content=f"{text}!", **at),
            make_event("category.summary", 7, category="work", summary=text, **at),
            make_event("graph.edges", 8, edges=[{"source": "a", "target": "b", "type": "likes"}], **at),
            make_event("episode.end", 9, session_id="s", **at),
        )  # fmt: skip
        assert answers(ask(engine, user))[0]["status"] == "ok"
    return engine


def ask(engine: Harness, user: str, **fields: Any) -> list[Any]:
    recall = {"query": "Where is the violin, is the kettle broken?", "session_id": "s", "user_id": user, "k": 5}
    return engine.run(QUERIES, make_event("recall", 900_000, **recall, **fields))


def overwrite(engine: Harness, values: dict[bytes, bytes]) -> None:
    engine.stop()
    with StateDirectory.existing(engine.path, ENCRYPTED) as directory:
        for key, value in values.items():
            directory.partition(0)._db.put(key, value)
    engine.start()


def stored(engine: Harness, prefix: bytes) -> dict[bytes, bytes]:
    return dict(engine.directory.partition(0).scan_stored(prefix, keys.after(prefix)))


def of(engine: Harness, owner: Owner) -> bytes:
    return engine.directory.partition(0).keyring.owner(owner)


def lose_key(engine: Harness, owner: Owner) -> dict[bytes, bytes]:
    """Replace an owner's key; return the records that restore it."""
    place = keys.owner_key(of(engine, owner))
    whole = stored(engine, place)
    overwrite(engine, {place: whole[place][:-1] + bytes([whole[place][-1] ^ 1])})
    return whole


KINDS = ("recall", "memories.list", "memory.get", "memory.history", "episodes.list", "user.stats", "graph.status",
         "graph.trace", "graph.explore", "graph.facts")  # fmt: skip


def every_question(user: str) -> list[dict[str, Any]]:
    fields: dict[str, dict[str, Any]] = {
        "recall": {"query": "Where is the violin, is the kettle broken?", "traversal_depth": 2},
        "memory.get": {"memory_id": f"{user}fact"}, "memory.history": {"memory_id": f"{user}fact"},
        "graph.trace": {"query": "violin kettle"}, "graph.explore": {"nodes": ["tag:a"]},
    }  # fmt: skip
    asked = [make_event(kind, 900_000, user_id=user, **fields.get(kind, {})) for kind in KINDS]
    past = make_event("recall", 900_000, user_id=user, query="violin kettle", as_of={"event_time": 180_000})
    return [*asked, past]


def test_owner_with_a_lost_key_gets_unreadable_answers(filled: Harness) -> None:
    whole = lose_key(filled, ANN)
    found = answers(filled.run(QUERIES, *every_question("ann")))
    assert len(found) == len(KINDS) + 1
    for response in found:
        assert response["status"] == "degraded", response
        assert [warning["code"] for warning in response["warnings"]] == ["decryption_failed"]
        assert not any(
            response.get(field) for field in ("memories", "versions", "memory_page", "episodes", "stats", "graph_facts")
        )
    assert found[0]["memories"] == []
    assert answers(ask(filled, "bo"))[0]["status"] == "ok"
    overwrite(filled, whole)
    assert answers(ask(filled, "ann"))[0]["memories"]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_key_lost_while_its_owner_is_in_memory_stops_nothing(filled: Harness, is_deleted: bool) -> None:
    partition, record = filled.directory.partition(0), keys.owner_key(of(filled, ANN))
    if is_deleted:
        partition._db.delete(record)
    else:
        partition._db.put(record, b"garbled")
    partition._owner_keys.ciphers.pop(of(filled, ANN))
    said = [make_event("message", 10, id=f"{user}-new", user_id=user, content="tea") for user in ("ann", "bo")]
    assert [letter.error.code for letter in letters(filled.run(MEMORIES, *said))] == ["unreadable"]


def test_write_for_an_owner_with_a_lost_key_is_refused(filled: Harness) -> None:
    events = [
        make_event("message", 10, id="new", content="more"),
        make_event("memory.update", 11, memory_id="annfact", content="other"),
        make_event("memory.forget", 12, filter={"session_id": "s"}),
        make_event("memory.feedback", 13, memory_id="annfact", useful=True),
        make_event("graph.edges", 14, edges=[{"source": "a", "target": "c", "type": "likes"}]),
        make_event("episode.end", 15, session_id="s"),
    ]
    whole, before = lose_key(filled, ANN), len(filled.lines[MEMORIES])
    refused = letters(filled.run(MEMORIES, *events))
    assert [letter.error.code for letter in refused] == ["unreadable"] * len(events)
    assert filled.directory.partition(0).applied["memories:0"] == before + len(events) - 1
    assert letters(filled.run(MEMORIES, make_event("message", 16, id="b9", user_id="bo", content="tea"))) == []
    filled.mark()
    overwrite(filled, whole)
    assert letters(filled.run(MEMORIES, make_event("message", 17, id="back", content="more"))) == []
    assert filled.problems() == []


def test_new_owner_of_a_tenant_without_key_is_refused(filled: Harness) -> None:
    ((place, whole),) = stored(filled, keys.TENANT_KEYS).items()
    overwrite(filled, {place: whole[:-1] + bytes([whole[-1] ^ 1])})
    new = make_event("message", 10, user_id="cy", content="tea")
    assert [letter.error.code for letter in letters(filled.run(MEMORIES, new))] == ["unreadable"]
    filled.mark()
    assert letters(filled.run(MEMORIES, make_event("message", 11, tenant_id="other", content="tea"))) == []


def test_verify_tells_of_a_lost_key_once_and_goes_on(filled: Harness) -> None:
    lose_key(filled, ANN)
    ann, bo = of(filled, ANN), of(filled, BO)
    place, value = next(iter(stored(filled, keys.table(bo, keys.ROW)).items()))
    overwrite(filled, {place: value[:-1] + bytes([value[-1] ^ 1])})
    problems = filled.problems()
    assert len([problem for problem in problems if ann.hex() in problem]) == 1
    assert any(bo.hex() in problem and "rows" in problem for problem in problems)
    assert not any(said in problem for problem in problems for said in SECRETS.values())


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["some", "every"])
def test_record_moved_to_another_key_is_not_accepted(filled: Harness, every: bool) -> None:
    """Put other values in the place of Ann's records: Bo's of the same table, the neighbour's, and a shortened one.
    All is still answered, with nothing of Bo's, and events that cannot be applied are refused. By default, one record
    of each table is replaced, once."""
    anns, bos = stored(filled, keys.OWNERS + of(filled, ANN)), stored(filled, keys.OWNERS + of(filled, BO))
    neighbours = dict(zip(anns, [*anns.values()][1:] + [*anns.values()][:1], strict=True))
    of_bo = {keys.split(key)[1]: value for key, value in bos.items()}
    number = itertools.count()
    tables = {keys.split(key)[1]: key for key in anns}
    assert len(tables) > 15
    codes = set[str]()
    before: dict[bytes, bytes] = {}
    for key in anns if every else tables.values():
        forged = [of_bo.get(keys.split(key)[1], b""), neighbours[key], anns[key][:-1]]
        for value in {*forged} if every else forged[:1]:
            overwrite(filled, before | {key: value})
            before = {key: anns[key]}
            said = answers([*filled.run(QUERIES, *every_question("ann")), *filled.advance_to_end()])
            assert len(said) == len(KINDS) + 1
            assert {response["status"] for response in said} <= {"ok", "degraded"}, said
            assert SECRETS["bo"] not in str(said)
            events = [
                make_event("message", next(number), content="more", session_id="s"),
                make_event("memory.update", next(number), memory_id="annfact", content=SECRETS["ann"]),
            ]
            codes |= {letter.error.code for letter in letters(filled.run(MEMORIES, *events))}
            filled.mark()
    assert codes == {"unreadable"}


def given_up(engine: Harness, now_ms: list[int]) -> list[Output]:
    now_ms[0] = 1_000_000
    return engine.advance()


def test_waiting_query_with_a_lost_key_is_answered(filled: Harness, now_ms: list[int]) -> None:
    lose_key(filled, ANN)
    waits = {"wait_for": FAR, "wait_timeout_ms": 60_000, "query": "violin"}
    filled.run(QUERIES, make_event("recall", 900_000, id="q", **waits))
    filled.kill(filled.mark())
    (response,) = answers(given_up(filled, now_ms))
    assert (response["query_id"], response["status"], response["memories"]) == ("q", "degraded", [])


def test_owner_with_a_lost_key_is_erased_and_starts_again(filled: Harness) -> None:
    lose_key(filled, ANN)
    assert letters(filled.run(MEMORIES, make_event("user.erase", 1_000_000))) == []
    (response,) = answers(ask(filled, "ann"))
    assert (response["status"], response["memories"]) == ("ok", [])
    assert letters(filled.run(MEMORIES, make_event("message", 2_000_000, id="again", content="a violin"))) == []
    assert [memory["id"] for memory in answers(ask(filled, "ann"))[0]["memories"]] == ["again"]
    assert filled.problems() == []


def test_erasure_skips_an_unreadable_tombstone(engine: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erase, "OWNERS_PER_STEP", 3)
    engine.run(MEMORIES, make_event("user.erase", 1, environment="place3"))
    places = [f"place{n}" for n in range(10)]
    engine.run(MEMORIES, *(make_event("memory", 2, id="m", content="tea", environment=place) for place in places))
    ((tombstone, value),) = stored(engine, keys.ERASED).items()
    overwrite(engine, {tombstone: value[:-1] + bytes([value[-1] ^ 1])})
    found = engine.run(
        MEMORIES, make_event("user.erase", 1_000_000), make_event("memory", 3, user_id="bo", content="tea")
    )
    found += engine.advance_to_end()
    assert [letter.error.code for letter in letters(found)] == ["unreadable"]
    assert stored(engine, keys.OWNERS + of(engine, BO))


def test_text_sealed_before_an_erasure_does_not_open_after(filled: Harness) -> None:
    before = stored(filled, keys.OWNERS + of(filled, ANN))
    filled.run(MEMORIES, make_event("user.erase", 1_000_000))
    filled.run(MEMORIES, make_event("message", 2_000_000, id="again", content="a violin"))
    partition = filled.directory.partition(0)
    for key, value in before.items():
        with pytest.raises(DecryptionFailed):
            partition.open(key, value)
