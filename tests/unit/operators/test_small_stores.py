"""Stores of a few memories: those that share the question's words come first."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.flows.embedded import Processed
from tests.groups import share
from tests.unit.operators.harness import run_flow

# All but `recency`, which asks for age alone; the last ones weigh age against meaning, and win by it where ages differ.
WHATEVER_THE_AGE = ("hybrid", "relevance", "episode", "auto")
BY_MEANING = (*WHATEVER_THE_AGE, "balanced", "decayed", "entity_focused")
BEGIN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FACT = {"content": "Kim prefers window seats on trains", "id": "fact"}
DAY = {"content": "I had a long day.", "id": "day", "name": "Kim", "session_id": "s", "role": "user"}
OTHERS = [
    {"content": "How was yours?", "id": "yours", "name": "Lee", "session_id": "s"},
    {"content": "Long as well, the meeting took for ever.", "id": "meeting", "name": "Kim", "session_id": "s"},
    {"content": "Lee collects stamps", "id": "stamps"},
    {"content": "Poor you. Shall we eat out?", "id": "eat", "name": "Lee", "session_id": "s"},
]


def told(memory: dict[str, Any], at_ms: int) -> dict[str, Any]:
    kind = {"type": "message"} if "session_id" in memory else {"type": "memory", "kind": "fact"}
    return kind | {"tenant_id": "acme", "user_id": "kim", "timestamp": BEGIN_MS + at_ms} | memory


def ask(query: str, at_ms: int, mode: str) -> dict[str, Any]:
    asked = {"type": "recall", "tenant_id": "acme", "user_id": "kim", "timestamp": BEGIN_MS + at_ms, "id": mode}
    return asked | {"query": query, "mode": mode}


def ranked(done: Processed) -> dict[str, list[str]]:
    """By mode."""
    assert not done.rejected
    return {one["query_id"]: [memory["id"] for memory in one["memories"]] for one in done.responses}


@pytest.mark.parametrize("fact_first", [True, False])
@pytest.mark.parametrize("others", [0, 1, 2, 4])
def test_answering_fact_precedes_messages_of_its_person(others: int, fact_first: bool) -> None:
    pair = [FACT, DAY] if fact_first else [DAY, FACT]
    memories = [told(one, at * HOUR_MS) for at, one in enumerate([*pair, *OTHERS[:others]])]
    questions = [ask("Does Kim prefer window seats on trains?", DAY_MS, mode) for mode in BY_MEANING]
    for mode, ids in ranked(run_flow([*memories, *questions])).items():
        assert ids[0] == "fact", mode


SUBJECTS = ("walnuts", "violin", "Porto", "kayak", "saffron", "marathon")
UNRELATED = ("The meeting ran late again.", "Nice weather out there.", "Thanks a lot!", "Where were we?", "Okay then.")
AS_FACT, KIM, LEE = range(3)


@settings(max_examples=share(0.5))
@given(
    subject=st.sampled_from(SUBJECTS),
    who=st.sampled_from([AS_FACT, KIM]),
    at_hour=st.integers(0, 24 * 90),
    unrelated=st.lists(
        st.tuples(st.sampled_from(UNRELATED), st.sampled_from([AS_FACT, KIM, LEE]), st.integers(0, 24 * 90)),
        min_size=1,
        max_size=9,
        unique_by=lambda one: one[0],
    ),
    named=st.booleans(),
    of_one_day=st.booleans(),
)
def test_all_words_of_the_question_are_never_behind_none(
    subject: str, who: int, at_hour: int, unrelated: list[tuple[str, int, int]], named: bool, of_one_day: bool
) -> None:
    words = f"Kim adores {subject} cake" if who == AS_FACT else f"I adore {subject} cake"
    every = [("answer", words, who, at_hour), *((f"u{n}", *one) for n, one in enumerate(unrelated))]
    memories = []
    for name, content, author, told_at in every:
        hour = told_at % 24 if of_one_day else told_at
        memory: dict[str, Any] = {"id": name, "content": content}
        if author != AS_FACT:
            memory |= {"session_id": f"s{hour // 24}", "name": "Kim" if author == KIM else "Lee"}
        memories.append(told(memory, hour * HOUR_MS))
    query = f"Does Kim adore {subject} cake?" if named else f"Who adores {subject} cake?"
    questions = [ask(query, 100 * DAY_MS, mode) for mode in (BY_MEANING if of_one_day else WHATEVER_THE_AGE)]
    for mode, ids in ranked(run_flow([*memories, *questions])).items():
        assert ids[0] == "answer", (mode, ids)
