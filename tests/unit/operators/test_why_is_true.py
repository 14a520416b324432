"""The reasons of an answer agree with the texts, by the table of docs/concepts/recall.md."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.operators.recall.phrases import QUOTE_CHARACTERS
from tests.groups import share
from tests.unit.operators.harness import make_event, run_flow

Memory = dict[str, Any]

MINUTE_MS, DAY_MS = 60_000, 86_400_000
BEGIN_MS = int(datetime(2026, 2, 25, 9, tzinfo=UTC).timestamp() * 1000)
PEOPLE = ("Ann", "Bo", "Cem")
CONTENT_WORDS = ("ferry", "harbour", "kettle", "violin", "moved", "moving", "painted", "suitcases")
SAID = (*CONTENT_WORDS, "the", "with", "really", "was", "Ann", "Bo", "yesterday")
FILLING = "Rain fell all day, and nobody went out. "


class Asked(NamedTuple):
    """A question, and the month and day that it gives, if it gives one."""

    text: str
    date: tuple[int, int | None] | None = None


QUESTIONS = (
    Asked("What did {one} and {other} say?"), Asked("What did {one} tell {other} about the {word}?"),
    Asked("Where did I see the {word}?"), Asked("When was the {word} {more}?"),
    Asked("What did {one} do on March 2?", (3, 2)), Asked("What did I do on 28 February?", (2, 28)),
    Asked("What happened in March?", (3, None)), Asked("{word} {more}"),
)  # fmt: skip

SENTENCE = st.tuples(
    st.lists(st.sampled_from(SAID), min_size=1, max_size=7), st.sampled_from((0, 0, 0, 3, 110)), st.sampled_from(".?!")
)


def _text(sentence: tuple[list[str], int, str]) -> str:
    words, filling, end = sentence
    return FILLING * filling + " ".join(words) + end + f" {FILLING * filling}".rstrip()


@st.composite
def stores(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Fields of messages, in sessions on days of their own, and of facts."""
    told: list[dict[str, Any]] = []
    assistant = draw(st.booleans())
    for session in range(draw(st.integers(1, 4))):
        day_ms = BEGIN_MS + draw(st.integers(0, 12)) * DAY_MS
        for at in range(draw(st.integers(1, 5))):
            who: dict[str, Any] = {"name": draw(st.sampled_from(PEOPLE))}
            if assistant:
                who = {"role": draw(st.sampled_from(("user", "assistant")))}
            message = {"content": _text(draw(SENTENCE)), "session_id": f"s{session}", **who}
            told.append({"type": "message", "timestamp": day_ms + at * MINUTE_MS, **message})
    for _ in range(draw(st.integers(0, 3))):
        fact = {"content": _text(draw(SENTENCE)), "importance": draw(st.sampled_from((0.1, 0.9)))}
        told.append({"type": "memory", "timestamp": BEGIN_MS + draw(st.integers(0, 12)) * DAY_MS, **fact})
    return [{"id": f"m{number}", **fields} for number, fields in enumerate(told)]


@settings(max_examples=share(0.5))  # each opens a state directory
@given(st.data())
def test_reasons_given_for_a_memory_are_true(data: st.DataObject) -> None:
    told = data.draw(stores())
    asked, parts = data.draw(st.sampled_from(QUESTIONS)), st.sampled_from(CONTENT_WORDS)
    one, other = data.draw(st.permutations(PEOPLE))[:2]
    question = asked.text.format(one=one, other=other, word=data.draw(parts), more=data.draw(parts))
    mode = data.draw(st.sampled_from(("hybrid", "relevance", "balanced", "episode", "decayed", "entity_focused")))
    events = [make_event(fields.pop("type"), fields.pop("timestamp"), **fields) for fields in map(dict, told)]
    fields = {"entity_urns": [one]} if mode == "entity_focused" else {}
    query = make_event("recall", BEGIN_MS + 30 * DAY_MS, query=question, mode=mode, k=9, **fields)
    (response,) = run_flow([*events, query]).responses
    store = {fields["id"]: fields for fields in told}
    for memory in response["memories"]:
        assert memory["why"]
        for reason in memory["why"]:
            assert reason["code"] not in NEVER
            check = CHECKS.get(reason["code"])
            problem = f"{question}: {memory['content'][-200:]!r} by {memory['name']}, {memory['created_at']}: {reason}"
            assert check is None or check(Case(asked, question, memory, reason, store, response)), problem


class Case(NamedTuple):
    asked: Asked
    question: str
    memory: Memory
    reason: dict[str, Any]
    store: dict[str, dict[str, Any]]
    response: dict[str, Any]

    @property
    def wanted(self) -> set[str]:
        return _roots(self.question) & {*map(_root, (*CONTENT_WORDS, *PEOPLE, "march", "february"))}

    def offset(self, other: str) -> int | None:
        own = self.store[self.memory["id"]]
        talk = [one for one in self.store.values() if "session_id" in one]
        talk = [one for one in talk if one["session_id"] == own.get("session_id")]
        ids = [one["id"] for one in sorted(talk, key=lambda one: one["timestamp"])]
        return ids.index(other) - ids.index(own["id"]) if {other, own["id"]} <= {*ids} else None


def _root(word: str) -> str:
    return word.lower()[:3]


def _roots(text: str) -> set[str]:
    return {_root(word) for word in re.findall(r"\w+", text)}


def _words(case: Case) -> bool:
    spans = [place for word in case.reason["words"] for place in word["places"]]
    shown = [case.memory["content"][place["start"] : place["end"]] for place in spans]
    return bool(shown) and all(_root(word) in case.wanted for word in shown)


def _person(case: Case) -> bool:
    own, person = case.store[case.memory["id"]], case.reason["person"]
    if case.reason["text"] == "said by the one who asks":
        return own.get("role") == "user" and " I " in case.question
    if person not in case.question:
        return False
    if case.reason["text"] == f"said by {person}":
        return bool(own.get("name") == person)
    return case.reason["text"] == f"about {person}" and "name" not in own and person in own["content"]


def _of_date(case: Case, *, day_too: bool) -> bool:
    assert case.asked.date is not None
    month, day = case.asked.date
    at = datetime.fromisoformat(case.memory["created_at"])
    same_day = day is None or at.day == day
    told = f"from {at.day} {at:%B} {at.year}" in case.reason["text"] and case.reason["date"] == at.date().isoformat()
    return told and at.month == month and same_day == day_too


def _shown(case: Case) -> bool:
    neighbour = case.reason["neighbour"]
    quote = neighbour["quote"].removeprefix("… ").removesuffix(" …")
    return len(quote) <= QUOTE_CHARACTERS and quote in " ".join(case.store[neighbour["id"]]["content"].split())


def _nearby(case: Case) -> bool:
    offset = case.offset(case.reason["neighbour"]["id"])
    where = {-1: "right after", 1: "right before"}.get(offset or 0, "soon")
    lacks = case.wanted - _roots(case.memory["content"])
    quoted = _roots(case.reason["neighbour"]["quote"])
    placed = offset is not None and -4 <= offset <= 2 and case.reason["text"].startswith(f"said {where}")
    return placed and _shown(case) and bool(quoted & lacks)


def _answers(case: Case) -> bool:
    before = case.store[case.reason["neighbour"]["id"]]
    own = case.store[case.memory["id"]]
    others = (before.get("name"), before.get("role")) != (own.get("name"), own.get("role"))
    alike = _roots(before["content"]) | {_root(before.get("name", ""))}
    return case.offset(before["id"]) == -1 and "?" in before["content"] and others and bool(alike & case.wanted)


def _follows(case: Case) -> bool:
    return any((offset := case.offset(other)) is not None and offset < 0 for other in case.store)


def _entity(case: Case) -> bool:
    own, names = case.store[case.memory["id"]], re.findall("“(.*?)”", case.reason["text"])
    if "in the graph" in case.reason["text"]:
        return all(name in case.question or case.response["routing_info"]["mode"] == "entity_focused" for name in names)
    return bool(names) and all(name == own.get("name") or name in own["content"] for name in names)


def _recent(case: Case) -> bool:
    """Everything was looked at: the stores are small."""
    own = case.store[case.memory["id"]]["timestamp"]
    return bool(2 * sum(one["timestamp"] < own for one in case.store.values()) >= len(case.store))


def _important(case: Case) -> bool:
    own = case.store[case.memory["id"]].get("importance", 0.5)
    return bool(2 * sum(one.get("importance", 0.5) < own for one in case.store.values()) >= len(case.store))


NEVER = ("recalled", "session", "liked", "related", "linked")  # nothing was asked before, and nothing has an edge
CHECKS: dict[str, Callable[[Case], bool]] = {
    "words": _words,
    "person": _person,
    "date": lambda case: _of_date(case, day_too=True),
    "near_date": lambda case: _of_date(case, day_too=False),
    "nearby": _nearby,
    "answers": _answers,
    "meaning_before": _follows,
    "wording_before": _follows,
    "time": lambda case: "yesterday" in case.memory["content"] and case.question.startswith("When"),
    "entity": _entity,
    "recent": _recent,
    "important": _important,
    "filler": lambda case: not (case.wanted - {*map(_root, PEOPLE)}) & _roots(case.memory["content"]),
}
