"""The signal of a question asked again: kept until the memories change, and within its bytes."""

import numpy as np
import pytest

from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.shared import CandidatesCache
from recallflow.state.index import Conversation, OwnerIndex
from tests.unit.operators.harness import make_entry, make_event, run_flow


def columns(size: int = 10) -> Columns:
    return Columns({"dense": np.zeros(size)}, {"dense": 1.0})


@pytest.fixture
def index() -> OwnerIndex:
    index = OwnerIndex("model", 2)
    index.add([make_entry(n) for n in range(3)], {})
    return index


def other() -> Conversation:
    return OwnerIndex("model", 2).conversation


def test_the_same_question_about_the_same_memories_is_known(index: OwnerIndex) -> None:
    cache, kept = CandidatesCache(), columns()
    cache.put(index.conversation, "tea?", kept)
    assert cache.get(index.conversation, "tea?") is kept
    assert cache.get(index.conversation, "tea") is None
    assert cache.get(other(), "tea?") is None


def test_any_change_of_the_memories_ends_it(index: OwnerIndex) -> None:
    cache = CandidatesCache()
    cache.put(index.conversation, "tea?", columns())
    index.add([make_entry(9)], {})
    assert cache.get(index.conversation, "tea?") is None
    cache.put(index.conversation, "tea?", columns())
    index.remove(1)
    assert cache.get(index.conversation, "tea?") is None


def test_an_address_used_again_brings_nothing_back() -> None:
    cache, seen, again = CandidatesCache(), set[int](), 0
    while again < 3:
        conversation = other()
        again += id(conversation) in seen
        assert cache.get(conversation, "tea?") is None
        cache.put(conversation, "tea?", columns())
        seen.add(id(conversation))
        del conversation


def test_the_least_recently_used_goes_first_and_the_bytes_hold(index: OwnerIndex) -> None:
    cache, conversation = CandidatesCache(budget_bytes=3_310), index.conversation
    for text in ("a", "b"):
        cache.put(conversation, text, columns())
    assert cache.total_bytes > 2 * (1_000 + columns().values["dense"].nbytes)  # texts and objects count as well
    cache.get(conversation, "a")
    cache.put(conversation, "c", columns(140))
    assert [cache.get(conversation, text) is not None for text in ("a", "b", "c")] == [True, False, True]
    held = cache.total_bytes
    assert held <= 3_310
    cache.put(conversation, "c", columns(5))
    assert cache.total_bytes == held - 135 * 8
    held = cache.total_bytes
    cache.put(conversation, "large", columns(400))  # nothing goes for what cannot be kept
    assert cache.get(conversation, "large") is None
    assert cache.total_bytes == held


def test_an_answer_from_the_cache_is_the_answer() -> None:
    texts = ["The red bike is new", "We had tea", "Bo rides far", "Tea is fine"]
    told = [make_event("message", n, id=f"m{n}", content=text) for n, text in enumerate(texts)]
    ask = make_event("recall", 900_000, query="Who had green tea?", mode="relevance")
    later = make_event("message", 5, id="m5", content="Bo had green tea, green tea")
    forgotten = make_event("memory.forget", 6, memory_id="m1")
    first, again, after, last = run_flow([*told, ask, ask, later, ask, forgotten, ask]).responses
    hits = [response["routing_info"]["cache_hits"]["candidates"] for response in (first, again, after, last)]
    assert hits == [0, 1, 0, 0]
    assert again["memories"] == first["memories"]
    assert after["memories"][0]["id"] == "m5"
    assert "m1" not in [memory["id"] for memory in last["memories"]]
