"""Reasons for a memory in an answer: true, never empty, with the places of words."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.embedder import Kind, Matrix
from recallflow.language.analysis import analyse
from recallflow.operators.recall import rank_and_judge
from recallflow.operators.recall.phrases import PLAIN, QUOTE_CHARACTERS
from recallflow.operators.recall.weights import WEIGHTS
from recallflow.operators.recall.why import BOOSTS, COLUMNS, FACTORS
from recallflow.operators.redaction import REDACTED
from recallflow.queries import WEIGHTS as FACTOR_WEIGHTS
from recallflow.state import keys
from tests.groups import share
from tests.unit.operators.harness import DAY_MS, MEMORIES, MINUTE_MS, Harness, answers, make_event, run_flow

CHAT = (
    ("Bo", "q", "What do two people eat out there in the evening?"),
    ("Ann", "a", "Waffles with brown cheese, twice a day."),
    ("Ann", "move", "I moved to Porto in March, after moving twice before."), ("Bo", "cat", "My cat sleeps all day."),
)  # fmt: skip


class Pictures:
    """A model that knows which of its words a text holds, and no spelling: each is a direction."""

    name, dimension = "pictures", 4
    kind: Kind = "static"
    directions = ("sea", "ocean", "bread", "loaf")  # each two mean the same

    def embed(self, texts: Sequence[str]) -> Matrix:
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(rows, texts, strict=True):
            held = [at // 2 for at, word in enumerate(self.directions) if word in text.lower()]
            row[held[0] if held else 3] = 1.0
        return rows


def chat() -> list[dict[str, Any]]:
    return [
        make_event("message", at * MINUTE_MS, id=id_, name=name, content=text)
        for at, (name, id_, text) in enumerate(CHAT)
    ]


def ask(query: str, **fields: Any) -> dict[str, Any]:
    (response,) = run_flow([*chat(), make_event("recall", DAY_MS, query=query, **fields)]).responses
    return response


def of(response: dict[str, Any], memory_id: str) -> dict[str, dict[str, Any]]:
    (memory,) = [memory for memory in response["memories"] if memory["id"] == memory_id]
    return {reason["code"]: reason for reason in memory["why"]}


def test_every_column_factor_and_boost_is_explained() -> None:
    assert {name for sets in WEIGHTS.values() for weights in sets.values() for name in weights} == {*COLUMNS}
    assert {name for weights in FACTOR_WEIGHTS.values() for name in weights} <= {*FACTORS}
    assert {*BOOSTS.values()} - {None} <= {*PLAIN}


def test_a_bent_word_is_shown_as_the_memory_writes_it() -> None:
    reason = of(ask("When did Ann move?"), "move")["words"]
    places = [{"start": 2, "end": 7}, {"start": 33, "end": 39}]
    assert reason == {"code": "words", "text": "says “moved”", "words": [{"word": "moved", "places": places}]}


def test_reason_names_the_author() -> None:
    response = ask("What did Ann eat in Porto?")
    assert of(response, "move")["person"] == {"code": "person", "text": "said by Ann", "person": "Ann"}
    assert "person" not in of(response, "cat")


def test_requested_day_ranks_above_its_neighbours() -> None:
    begin_ms = 1_772_366_400_000  # 1 March 2026, 12:00
    said = [
        make_event("message", begin_ms + n * DAY_MS, id=f"{n + 1}", session_id=f"s{n}", name="Ann", content=text)
        for n, text in enumerate(["We watered plants and analyse a book."] * 40)
    ]
    (response,) = run_flow(
        [*said, make_event("recall", begin_ms + 60 * DAY_MS, query="What was on March 12?")]
    ).responses
    assert response["memories"][0]["id"] == "12"
    assert of(response, "12")["date"]["date"] == "2026-03-12"
    assert [memory["id"] for memory in response["memories"] if "date" in of(response, memory["id"])] == ["12"]
    assert of(response, "13")["near_date"]["date"] == "2026-03-13"


def test_an_answer_quotes_the_question_that_it_answers() -> None:
    reason = of(ask("What do people eat there?"), "a")["answers"]
    asked = "What do two people eat out there in the evening?"
    assert reason == {"code": "answers", "text": f"answers: “{asked}”", "neighbour": {"id": "q", "quote": asked}}


def test_word_far_into_a_text_is_shown_and_quoted() -> None:
    long = (
        "Rain fell all day and nobody went out. " * 150
        + "The night bus leaves from platform 14. "
        + "It rained. " * 200
    )
    told = [("Ann", "long", long), ("Bo", "short", "Good to know, thanks.")]
    said = [make_event("message", n, id=id_, name=name, content=text) for n, (name, id_, text) in enumerate(told)]
    (response,) = run_flow([*said, make_event("recall", DAY_MS, query="When does the night bus leave?")]).responses
    (place,) = of(response, "long")["words"]["words"][0]["places"]
    assert long[place["start"] : place["end"]] == "night"
    quote = "The night bus leaves from platform 14."
    assert of(response, "short")["nearby"]["text"] == f"said right after “{quote}”"


def test_undecryptable_text_is_neither_searched_nor_quoted(tmp_path: Path, lose: Callable[[bytes, str], None]) -> None:
    engine = Harness(tmp_path, one_log=True)
    engine.run(MEMORIES, *chat())
    lose(keys.ROW, "evening")
    asked = make_event("recall", DAY_MS, query="What do people eat in the evening?")
    (response,) = answers(engine.run(MEMORIES, asked))
    assert "evening" not in str(response["memories"])
    assert "neighbour" not in of(response, "a")["answers"]
    (sealed,) = [memory for memory in response["memories"] if memory["content"] == REDACTED]
    assert "sealed" in of(response, sealed["id"])


def test_similar_meaning_is_said_only_where_it_helped(tmp_path: Path) -> None:
    engine = Harness(tmp_path, Pictures(), one_log=True)
    said = ("The ocean was cold", "We baked a loaf", "The bus was late", "Nothing else")
    told = [make_event("memory", n, id=f"m{n}", content=text) for n, text in enumerate(said)]
    *_, response = answers(engine.run(MEMORIES, *told, make_event("recall", DAY_MS, query="What about the sea?", k=4)))
    assert [memory["id"] for memory in response["memories"] if "meaning" in of(response, memory["id"])] == ["m0"]
    assert of(response, "m2").keys() & {"meaning", "words", "wording"} == set()


def test_a_column_of_negative_weight_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {chat: dict.fromkeys(weights, -1.0) for chat, weights in WEIGHTS["spelling"].items()}
    monkeypatch.setattr(rank_and_judge, "sets_for", lambda *_, **__: sets)
    response = ask("What do people eat in Porto?", mode="relevance", k=9)
    assert not any(of(response, memory["id"]).keys() & {"meaning", "words"} for memory in response["memories"])


def test_nearness_to_an_entity_names_it() -> None:
    told = [
        make_event("memory", 0, id="near", content="She paints boats", entities=[{"name": "Porto"}]),
        make_event("memory", 1, id="far", content="The kettle is broken"),
    ]
    asked = make_event("recall", DAY_MS, query="anything", mode="entity_focused", entity_urns=["Porto"])
    (response,) = run_flow([*told, asked]).responses
    assert of(response, "near")["entity"] == {"code": "entity", "text": "linked to “Porto”"}
    assert "entity" not in of(response, "far")


ORDINARY = ["Ann", "moved", "moving", "Porto", "happy", "happily", "ferry", "ferries", "what?", "the", "of"]
VOCABULARY = [*ORDINARY, "Ánn", "’s", "❤️", "波尔图", "ſea", "ﬁne"]
SENTENCE = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=9).map(" ".join)


@settings(max_examples=share(0.5))  # each opens a state directory
@given(st.lists(SENTENCE, min_size=1, max_size=6), SENTENCE)
def test_places_point_at_words_of_the_question(said: list[str], query: str) -> None:
    told = [make_event("message", n, name=("Ann", "Bo")[n % 2], content=text) for n, text in enumerate(said)]
    (response,) = run_flow([*told, make_event("recall", DAY_MS, query=query)]).responses
    asked = {*analyse(query).stems}
    for memory in response["memories"]:
        assert memory["why"]
        for reason in memory["why"]:
            for word in reason.get("words", ()):
                for place in word["places"]:
                    shown = memory["content"][place["start"] : place["end"]]
                    assert shown
                    # Beside another script, accents are left out.
                    assert {*analyse(shown).stems, *analyse(f"{shown} щ").stems} & asked
                assert word["word"] == memory["content"][word["places"][0]["start"] : word["places"][0]["end"]]


def test_reasons_and_parts_of_scores_are_absent_unless_requested() -> None:
    told = make_event("memory", 1, id="a", content="Ann moved to Porto")
    query = make_event("recall", DAY_MS, query="Where does Ann live?", explain=False)
    (memory,) = run_flow([told, query]).responses[0]["memories"]
    assert not {"why", "explanation"} & memory.keys()


Memory = dict[str, Any]

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

SAID_SENTENCE = st.tuples(
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
            message = {"content": _text(draw(SAID_SENTENCE)), "session_id": f"s{session}", **who}
            told.append({"type": "message", "timestamp": day_ms + at * MINUTE_MS, **message})
    for _ in range(draw(st.integers(0, 3))):
        fact = {"content": _text(draw(SAID_SENTENCE)), "importance": draw(st.sampled_from((0.1, 0.9)))}
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


def _in_upper_half(case: Case, field: str) -> bool:
    """Compare with all memories: everything was looked at, as the stores are small."""
    values = {name: one.get(field, 0.5) for name, one in case.store.items()}
    return bool(2 * sum(value < values[case.memory["id"]] for value in values.values()) >= len(values))


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
    "recent": lambda case: _in_upper_half(case, "timestamp"),
    "important": lambda case: _in_upper_half(case, "importance"),
    "filler": lambda case: not (case.wanted - {*map(_root, PEOPLE)}) & _roots(case.memory["content"]),
}
