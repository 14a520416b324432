"""`user.erase`: removed and remaining data, and later events with earlier times."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recallflow.errors import DecryptionFailed
from recallflow.flows.embedded import Processed
from recallflow.outputs import Output
from recallflow.records import Principal
from recallflow.state import keys
from tests.unit.operators.harness import DAY_MS, MEMORIES, Harness, make_event, receipts, run_flow

Told = tuple[str, int, dict[str, Any]]

NEW_YEAR_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z


@pytest.fixture
def engine(harness: Harness) -> Iterator[Harness]:
    """Return a harness whose state must be consistent in the end."""
    yield harness
    assert harness.problems() == []


def do(*told: Told, **chosen: Any) -> Processed:
    lines = [make_event(kind, NEW_YEAR_MS + day * DAY_MS, **{"receipt": True} | fields) for kind, day, fields in told]
    return run_flow(lines, **chosen)


def memory(memory_id: str, day: int, **fields: Any) -> Told:
    return "memory", day, {"id": memory_id, "content": f"walnut {memory_id}"} | fields


def erase(day: int, **fields: Any) -> Told:
    return "user.erase", day, fields


def ask(**fields: Any) -> Told:
    return "recall", 300, {"query": "walnut", "k": 50} | fields


def outcomes(done: Processed) -> list[str]:
    return [receipt["outcome"] for receipt in done.receipts]


def found(response: dict[str, Any]) -> list[str]:
    return sorted(memory["id"] for memory in response["memories"])


@pytest.mark.parametrize("after", [0, 3])
def test_the_state_is_that_of_a_log_without_the_user(engine: Harness, tmp_path: Path, after: int) -> None:
    before = [make_event("message", n, id=f"m{n}", content=f"walnut {n} in Porto", session_id="s") for n in range(9)]
    changes = [
        make_event("memory.update", 9, memory_id="m1", content="ferry", tags=["a"]),
        make_event("memory.forget", 9, memory_id="m2"),
        make_event("memory.feedback", 9, memory_id="m3", useful=True),
        make_event("graph.edges", 9, edges=[{"source": "m1", "target": "m3", "type": "about"}]),
        make_event("category.summary", 9, category="food", summary="walnuts"),
    ]
    others = [make_event("memory", n, user_id="bo", id=f"b{n}", content=f"violin {n}") for n in range(4)]
    later = [make_event("message", 20 + n, id=f"m{n}", content=f"lantern {n}", session_id="s") for n in range(after)]
    told = [*before, others[0], *changes, *others[1:]]
    without = Harness(tmp_path / "without")
    engine.run(MEMORIES, *told, make_event("user.erase", 10), *later)
    kept = {id(one) for one in (*others, *later)}
    blank = make_event("memory.forget", 0, user_id="nobody", memory_id="m")
    without.run(MEMORIES, *(one if id(one) in kept else blank for one in [*told, {}, *later]))
    assert engine.hash() == without.hash()
    assert engine.directory.counts == without.directory.counts


def test_user_with_a_lost_key_can_be_erased(engine: Harness) -> None:
    engine.run(MEMORIES, *(make_event("memory", n, id=f"m{n}", content="tea") for n in range(5)))
    partition = engine.directory.partition(0)
    opened = type(partition._sealing).open

    def fail(self: object, key: bytes, value: bytes) -> bytes:
        if key[:1] == keys.OWNERS:
            raise DecryptionFailed("no key fits")
        return opened(self, key, value)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(partition._sealing), "open", fail)
        (said,) = receipts(engine.run(MEMORIES, make_event("user.erase", 10, receipt=True)))
    assert said["outcome"] == "erased"
    assert engine.directory.counts == (0, 0)
    engine.run(MEMORIES, make_event("memory", 20, id="m1", content="tea"))
    assert engine.directory.counts == (1, 1)


def test_events_before_the_erasure_have_no_effect() -> None:
    done = do(
        memory("m1", 1), erase(10),
        memory("m2", 5), memory("m3", 10), memory("m1", 9), memory("m4", 11),
        ("memory.update", 9, {"memory_id": "m1", "tags": ["a"]}),
        ("memory.forget", 9, {"memory_id": "m4"}),
        ("memory.feedback", 10, {"memory_id": "m4", "useful": True}),
        ("episode.end", 9, {"session_id": "s"}),
        ask(), ("memory.get", 300, {"memory_id": "m4"}),
    )  # fmt: skip
    assert outcomes(done) == ["created", "erased", "erased", "erased", "erased", "created"] + ["erased"] * 4
    assert done.rejected == []
    assert found(done.responses[0]) == ["m4"]
    assert done.responses[1]["versions"][0]["seq"] == 0


def test_events_without_effect_are_counted(engine: Harness) -> None:
    late = [make_event("memory", 5, id=f"m{n}", content="tea") for n in range(3)]
    engine.run(MEMORIES, make_event("user.erase", 10), *late, make_event("memory.feedback", memory_id="m", useful=True))
    assert engine.directory.unfit == {("memory", "erased"): 3, ("memory.feedback", "erased"): 1}


def test_erasures_in_one_millisecond_apply_in_offset_order(tmp_path: Path) -> None:
    scope = {"tenant_id": "acme", "user_id": "ann", "receipt": True}
    memories = [scope | {"type": "memory", "id": f"m{n}", "content": f"walnut {n}"} for n in range(2)]
    engine = Harness(tmp_path / "s", append_ms=lambda _: NEW_YEAR_MS, record={"append_logged": False})
    gone = scope | {"type": "user.erase"}
    said = receipts(engine.run(MEMORIES, memories[0], gone, memories[1], gone))
    assert [one["outcome"] for one in said] == ["created", "erased", "created", "erased"]
    assert engine.directory.counts == (0, 0)


def test_one_environment_is_erased_alone_and_then_all() -> None:
    test = {"environment": "test"}
    done = do(
        memory("p", 1), memory("t", 1, **test), erase(10, **test), ask(), ask(**test),
        memory("t2", 9, **test), memory("p2", 9), memory("t3", 11, **test), ask(), ask(**test),
        erase(8), ask(), ask(**test),
        memory("t4", 10, **test), memory("p3", 8), memory("p4", 9), memory("o", 8, environment="other"),
        ask(), ask(**test), ask(environment="other"),
    )  # fmt: skip
    assert [found(one) for one in done.responses] == [
        ["p"], [], ["p", "p2"], ["t3"],
        [], ["t3"],  # what was erased up to a later time says nothing of before the earlier one
        ["p4"], ["t3"], [],
    ]  # fmt: skip


def _log() -> list[dict[str, Any]]:
    told = [make_event("memory", n, id=f"m{n}", content=f"walnut {n}", receipt=True) for n in range(4)]
    others = [make_event("memory", n, user_id="bo", id=f"m{n}", content=f"violin {n}") for n in range(3)]
    later = [make_event("memory", 20 + n, id=f"l{n}", content=f"lantern {n}") for n in range(2)]
    return [*told, *others, make_event("user.erase", 10, receipt=True), *later]


LOG = _log()


@pytest.mark.parametrize("cut", range(1, 10))
def test_kill_at_any_event_gives_the_same_state(engine: Harness, tmp_path: Path, cut: int) -> None:
    whole = Harness(tmp_path / "whole")
    whole.run(MEMORIES, *LOG)
    engine.write(MEMORIES, *LOG)
    engine.read(MEMORIES, cut)
    snapshot = engine.mark()
    engine.read(MEMORIES)
    engine.kill(snapshot)
    engine.read(MEMORIES)
    assert engine.hash() == whole.hash()
    engine.kill()
    assert receipts(engine.read(MEMORIES)) != []  # the erasure's
    assert engine.hash() == whole.hash()


def kept(engine: Harness) -> list[bytes]:
    return [value for key, value in engine.records() if key.startswith(keys.OUTBOX)]


def test_outputs_of_an_erased_user_are_not_resent(engine: Harness) -> None:
    told = [make_event("memory", n, id=f"walnut{n}", content="tea", receipt=True) for n in range(3)]
    engine.run(MEMORIES, *told, make_event("memory", user_id="bo", id="violin", content="tea", receipt=True))
    engine.run(MEMORIES, make_event("memory", 2, environment="test", id="oaktree", content="tea", receipt=True))
    assert len(kept(engine)) == 5
    engine.run(MEMORIES, make_event("user.erase", 10, receipt=True))
    assert not any(b"walnut" in one or b"oaktree" in one for one in kept(engine))
    engine.kill()
    again = receipts(engine.read(MEMORIES))
    assert [(one["outcome"], one["memory_id"]) for one in again] == [("created", "violin"), ("erased", None)]


def test_outputs_of_an_erased_user_name_nobody(tmp_path: Path) -> None:
    engine = Harness(tmp_path / "s", rules={"audited": True})
    ann = {"user_id": "annwalnut", "receipt": True}
    refused = make_event("memory", 2, id="oaktree1", content="tea", project_id="walnut", **ann)
    told = [
        (make_event("memory", 1, id="oaktree0", content="tea", **ann), None), (refused, Principal("bowalnut", ("q",))),
        (make_event("user.erase", 10, id="oaktree2", **ann), Principal("kimwalnut")),
        (make_event("memory", 3, id="oaktree3", content="tea", **ann), None),
        (make_event("memory.forget", 4, memory_id="oaktree0", **ann), None),
        (refused | {"id": "oaktree4"}, Principal("bowalnut", ("q",))),
    ]  # fmt: skip
    first = [output for event, sender in told for output in engine.run(MEMORIES, event, principal=sender)]

    def said(outputs: list[Output]) -> list[bytes | str]:
        bodies = [getattr(one, "body", None) or str(getattr(one, "error", "")) for one in outputs]
        return [body for body in bodies if body]

    assert len(kept(engine)) == 5
    assert [one for one in kept(engine) if any(word in one for word in (b"walnut", b"oaktree", b"YW5ud2Fs"))] == []
    engine.kill()
    assert said(engine.read(MEMORIES)) == said(first)[1:]
