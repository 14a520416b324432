"""The checker of the fleet benchmark finds each kind of harm; its schedules and silences follow from their inputs."""

from itertools import islice
from typing import Any

import orjson
import pytest

from benchmarks.fleet.checker import Findings, count, differences, once
from benchmarks.fleet.members import BACK, KILL, LOSE, Episode, Seen, Span, moved, schedule
from benchmarks.fleet.probes import ALONG, Probe, measure
from benchmarks.fleet.records import ANSWER, LETTER, RECEIPT, Mind, Output, Sent, same_text

ASKED = [Sent("query", "ann", {"id": f"q{n}"}, [ANSWER], position=f"query:{n}:0") for n in range(3)]


def answer(number: int, partition: int = 0) -> Output:
    headers = (("recallflow-source", f"query:{number}:0".encode()), ("recallflow-output", b"0"))
    body = orjson.dumps({"query_id": f"q{number}"})
    return Output("response", f"response:{partition}", 0, b"acme/ann", body, headers)


def mind(**memories: str) -> Mind:
    """An owner's memories by id."""
    made = Mind()
    for memory_id, content in memories.items():
        made.apply({"type": "memory", "id": memory_id, "content": content})
    return made


ANSWERS = [answer(number) for number in range(3)]
HARM = [(ANSWERS, {}), (ANSWERS[1:], {"lost": 1}), ([*ANSWERS, answer(1, partition=5)], {"twice": 2})]


@pytest.mark.parametrize(("outputs", "harm"), HARM)
def test_lost_answers_and_answers_in_two_partitions_are_found(outputs: list[Output], harm: dict[str, int]) -> None:
    found = count(ASKED, outputs, Findings())
    once(outputs, found)
    assert {name: len(getattr(found, name)) for name in ("lost", "twice", "unasked", "wrong")} == (
        {"lost": 0, "twice": 0, "unasked": 0, "wrong": 0} | harm
    )


def test_list_that_differs_from_the_model_is_wrong() -> None:
    told = mind(a="walnut", b="harbour")
    right = [{"id": "b", "content": "harbour"}, {"id": "a", "content": "walnut"}]
    assert [*differences(told, right)] == []
    assert len([*differences(told, right[:1])]) == 1
    assert len([*differences(told, [*right, right[0]])]) == 1
    assert len([*differences(told, [right[0], {"id": "a", "content": "ferry"}])]) == 1
    told.apply({"type": "memory.forget", "memory_id": "a"})
    assert len([*differences(told, right)]) == 1


def test_schedule_of_a_seed_leaves_a_member_running() -> None:
    first, same, other = ([*schedule(seed, 3, 12, 6.0, lose_disk=True)] for seed in (1, 1, 2))
    assert first == same != other
    assert sum(fault.kind in (KILL, LOSE) for fault in first) == 12
    assert sum(fault.kind == LOSE for fault in first) == 4
    assert all(len(set(fault.members)) == len(fault.members) < 3 for fault in first)
    assert all(fault.members == (0,) for fault in islice(schedule(3, 1, 9, 6.0, lose_disk=False), 9))


SEEN = [
    Seen(0.0, {0: "a", 1: "b", 2: "b", 3: "b"}),
    Seen(12.0, {0: "b", 1: "b", 2: "c", 3: "b"}),  # a is gone, and another one was moved along
    Seen(21.0, {0: "b", 1: "d", 2: "c", 3: "b"}),  # somebody is back
]


def test_partition_with_two_owners_has_moved() -> None:
    assert moved(SEEN, 1.0, 11.0) == set()
    assert moved(SEEN, 1.0, 13.0) == {0, 2}
    assert moved(SEEN, 12.5, 30.0) == {1}


def test_silence_is_measured_by_cause() -> None:
    episode = Episode(Span(KILL, 10.0, 20.0), Span(BACK, 20.0, 30.0))
    took_s = {(0, 10): 3.0, (2, 11): 0.5, (1, 20): 0.25, (0, 20): 0.1, (3, 15): 0.02}
    probes = [
        Probe(partition, float(at_s), at_s + took_s.get((partition, at_s), 0.01))
        for at_s in range(30)
        for partition in range(4)
    ]
    found = measure(probes, Span("idle", 0.0, 10.0), [episode], SEEN)
    rounded = {cause: [round(ms) for ms in times] for cause, times in found.longest.items()}
    assert rounded == {KILL: [3_000], ALONG: [500], BACK: [250]}
    assert round(found.idle_p95) == round(found.still_p50) == 10


QUERY = Sent("query", "ann", {"id": "q1"}, [ANSWER], position="query:0:5")
TOLD = Sent("memory", "ann", {"id": "m1"}, [RECEIPT], position="memory:0:7")
REFUSED = Sent("memory", "", None, [LETTER], value=b"{", position="memory:0:8")


def output(kind: str, name: str) -> Output:
    body = {"response": {"query_id": name}, "receipt": {"position": name}}.get(kind)
    headers = (("error.source", name.encode()),) if kind == "dead-letter" else ()
    return Output(kind, f"{kind}:0", 0, b"acme/ann", orjson.dumps(body) if body else b"{", headers)


SOUND = [output("response", "q1"), output("receipt", "memory:0:7"), output("dead-letter", "memory:0:8")]


def judged(outputs: list[Output]) -> dict[str, int]:
    found = count([QUERY, TOLD, REFUSED], outputs, Findings())
    return {name: len(getattr(found, name)) for name in ("lost", "twice", "unasked", "wrong") if getattr(found, name)}


def test_complete_outputs_are_clean() -> None:
    assert judged(SOUND) == {}


@pytest.mark.parametrize("place", range(3))
def test_missing_and_repeated_outputs_are_found(place: int) -> None:
    assert judged(SOUND[:place] + SOUND[place + 1 :]) == {"lost": 1}
    assert judged([*SOUND, SOUND[place]]) == {"twice": 1}


def test_unrequested_and_unexpected_outputs_are_found() -> None:
    assert judged([*SOUND, output("response", "q9")]) == {"unasked": 1}
    assert judged([*SOUND, output("receipt", "memory:0:99")]) == {"unasked": 1}
    assert judged([SOUND[0], output("dead-letter", "memory:0:7"), SOUND[2]]) == {"wrong": 1}
    assert judged([*SOUND, output("dead-letter", "memory:0:7")]) == {"wrong": 1}


def test_model_applies_updates_and_forgets() -> None:
    mind = Mind()
    told: dict[str, Any] = {"type": "memory", "id": "m", "content": "one"}
    assert mind.apply(told)
    assert mind.apply({"type": "memory.update", "memory_id": "m", "content": "two"})
    assert mind.memories["m"].versions == ["one", "two"]
    assert mind.apply({"type": "memory.forget", "memory_id": "m"})
    assert not mind.apply({"type": "memory.update", "memory_id": "m", "content": "three"})
    assert mind.forgotten == {"m"}


def test_shortened_text_requires_the_truncated_flag() -> None:
    assert same_text("walnut", {"content": "walnut"})
    assert not same_text("walnut", {"content": "wal"})
    assert same_text("walnut", {"content": "wal", "truncated": True})
    assert not same_text("walnut", {"content": "harbour", "truncated": True})
