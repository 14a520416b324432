"""The checker itself: each kind of harm is seen, and a seed's schedule comes again."""

from itertools import islice
from typing import Any

import orjson
import pytest

from benchmarks.torture.__main__ import schedule
from benchmarks.torture.checker import Findings, count
from benchmarks.torture.faults import FAULTS
from benchmarks.torture.log import ANSWER, LETTER, RECEIPT, Sent
from benchmarks.torture.model import Mind, same_text
from benchmarks.torture.reader import Output

ASKED = Sent("query", "ann", {"id": "q1"}, [ANSWER], position="query:0:5")
TOLD = Sent("memory", "ann", {"id": "m1"}, [RECEIPT], position="memory:0:7")
REFUSED = Sent("memory", "", None, [LETTER], value=b"{", position="memory:0:8")


def output(kind: str, name: str) -> Output:
    body = {"response": {"query_id": name}, "receipt": {"position": name}}.get(kind)
    headers = (("error.source", name.encode()),) if kind == "dead-letter" else ()
    return Output(kind, f"{kind}:0", 0, b"acme/ann", orjson.dumps(body) if body else b"{", headers)


SOUND = [output("response", "q1"), output("receipt", "memory:0:7"), output("dead-letter", "memory:0:8")]


def judged(outputs: list[Output]) -> dict[str, int]:
    found = count([ASKED, TOLD, REFUSED], outputs, Findings())
    return {name: len(getattr(found, name)) for name in ("lost", "twice", "unasked", "wrong") if getattr(found, name)}


def test_a_sound_run_is_clean() -> None:
    assert judged(SOUND) == {}


@pytest.mark.parametrize("place", range(3))
def test_what_is_missing_is_lost_and_what_is_there_again_is_twice(place: int) -> None:
    assert judged(SOUND[:place] + SOUND[place + 1 :]) == {"lost": 1}
    assert judged([*SOUND, SOUND[place]]) == {"twice": 1}


def test_what_nobody_asked_for_and_what_came_out_otherwise_is_seen() -> None:
    assert judged([*SOUND, output("response", "q9")]) == {"unasked": 1}
    assert judged([*SOUND, output("receipt", "memory:0:99")]) == {"unasked": 1}
    assert judged([SOUND[0], output("dead-letter", "memory:0:7"), SOUND[2]]) == {"wrong": 1}
    assert judged([*SOUND, output("dead-letter", "memory:0:7")]) == {"wrong": 1}


def test_the_model_knows_the_contract() -> None:
    mind = Mind()
    told: dict[str, Any] = {"type": "memory", "id": "m", "content": "one"}
    assert mind.apply(told)
    assert mind.apply({"type": "memory.update", "memory_id": "m", "content": "two"})
    assert mind.memories["m"].versions == ["one", "two"]
    assert mind.apply({"type": "memory.forget", "memory_id": "m"})
    assert not mind.apply({"type": "memory.update", "memory_id": "m", "content": "three"})
    assert mind.forgotten == {"m"}


def test_a_text_that_was_cut_has_to_say_so() -> None:
    assert same_text("walnut", {"content": "walnut"})
    assert not same_text("walnut", {"content": "wal"})
    assert same_text("walnut", {"content": "wal", "truncated": True})
    assert not same_text("walnut", {"content": "harbour", "truncated": True})


def test_a_seed_has_one_schedule_in_which_each_fault_comes_before_any_comes_again() -> None:
    first, same, other = ([*islice(schedule(seed, [*FAULTS]), 3 * len(FAULTS))] for seed in (1, 1, 2))
    assert first == same != other
    assert all(
        {name for name, _ in first[n : n + len(FAULTS)]} == set(FAULTS) for n in range(0, len(first), len(FAULTS))
    )
