"""The fleet's checker sees each kind of harm; a seed has one schedule; silence is told of the right partitions."""

from itertools import islice

import orjson
import pytest

from benchmarks.fleet.chaos import BACK, KILL, LOSE, Episode, Span, schedule
from benchmarks.fleet.checker import differences, once
from benchmarks.fleet.ownership import Seen, moved
from benchmarks.fleet.probes import Probe
from benchmarks.fleet.silence import ALONG, measure
from benchmarks.torture.checker import Findings, count
from benchmarks.torture.log import ANSWER, Sent
from benchmarks.torture.model import Mind
from benchmarks.torture.reader import Output

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
def test_an_answer_that_is_lost_or_in_two_partitions_is_seen(outputs: list[Output], harm: dict[str, int]) -> None:
    found = count(ASKED, outputs, Findings())
    once(outputs, found)
    assert {name: len(getattr(found, name)) for name in ("lost", "twice", "unasked", "wrong")} == (
        {"lost": 0, "twice": 0, "unasked": 0, "wrong": 0} | harm
    )


def test_a_list_with_a_memory_too_many_too_few_or_another_is_wrong() -> None:
    told = mind(a="walnut", b="harbour")
    right = [{"id": "b", "content": "harbour"}, {"id": "a", "content": "walnut"}]
    assert [*differences(told, right)] == []
    assert len([*differences(told, right[:1])]) == 1
    assert len([*differences(told, [*right, right[0]])]) == 1
    assert len([*differences(told, [right[0], {"id": "a", "content": "ferry"}])]) == 1
    told.apply({"type": "memory.forget", "memory_id": "a"})
    assert len([*differences(told, right)]) == 1


def test_a_seed_has_one_schedule_that_never_takes_all_members() -> None:
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


def test_what_moved_is_what_was_not_one_members_all_the_time() -> None:
    assert moved(SEEN, 1.0, 11.0) == set()
    assert moved(SEEN, 1.0, 13.0) == {0, 2}
    assert moved(SEEN, 12.5, 30.0) == {1}


def test_silence_is_told_by_its_cause() -> None:
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
