"""Understanding of questions: people, dates, words and intent."""

import re
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recallflow import limits
from recallflow.language.analysis import DateMention
from recallflow.language.tables import Intent
from recallflow.operators.recall import question, ranking
from recallflow.operators.recall.question import MODE_OF, analyse_question, intent_of

PAIR = ["Ann", "Bo"]


def date(year: int | None = None, month: int | None = None, day: int | None = None) -> DateMention:
    return DateMention(year, month, day)


def named(text: str, participants: list[str]) -> tuple[str, ...]:
    return analyse_question(text, participants).named


def dates(text: str) -> tuple[DateMention, ...]:
    return analyse_question(text, []).dates


FULL_NAMES, ALIKE = ["Ann Smith", "Bo Lee"], ["Ann Smith", "Ann Jones", "Bo Lee"]


@pytest.mark.parametrize(
    ("text", "participants", "expected"),
    [
        ("What did Ann buy?", PAIR, ["Ann"]),
        ("What did ann buy?", PAIR, ["Ann"]),
        ("WHAT DID ANN BUY?", PAIR, ["Ann"]),
        ("What is Ann's hobby?", PAIR, ["Ann"]),
        ("What is Ann’s hobby?", PAIR, ["Ann"]),
        ("Did Ann meet Bo?", PAIR, ["Ann", "Bo"]),
        ("Where did they go?", PAIR, []),
        ("Who told Anna about the annual plan?", PAIR, []),  # part of a word is not a name
        ("Which Boston trip?", PAIR, []),
        ("Did (Bo) win?", PAIR, ["Bo"]),
        # A first name stands for the only one who bears it.
        ("What did Ann Smith buy?", FULL_NAMES, ["Ann Smith"]),
        ("What did Ann buy?", FULL_NAMES, ["Ann Smith"]),
        ("What did Smith buy?", FULL_NAMES, []),
        ("Has Bo been there?", FULL_NAMES, ["Bo Lee"]),
        ("What did Ann buy?", ALIKE, []),
        ("What did Ann Jones buy?", ALIKE, ["Ann Jones"]),
        ("Did Ann call Bo?", ALIKE, ["Bo Lee"]),
        ("What did Ann buy?", ["ANN Smith", "Ann Jones"], []),
        # An ordinary word is a name only with a capital.
        ("Who will call?", ["Will"], []),
        ("What did Will say?", ["Will"], ["Will"]),
        ("What may Ann do?", ["May"], []),
        ("What did May say?", ["May"], ["May"]),
        ("Who went on the march?", ["March"], []),
        ("Who rides in april?", ["April"], []),
        ("Who told April?", ["April"], ["April"]),
        ("Was mark there?", ["Mark"], ["Mark"]),  # no function word and no month
    ],
)
def test_participants_are_found_by_their_names(text: str, participants: list[str], expected: list[str]) -> None:
    assert named(text, participants) == tuple(expected)


@pytest.mark.parametrize("name", ["Zoë", "Łukasz", "김철수", "O'Neil", "Jean-Luc", "user_17", "a.b", "J.D.", "x👍"])
def test_name_of_any_alphabet_is_found_as_written(name: str) -> None:
    assert named(f"What did {name} say?", [name]) == (name,)
    assert named(f"What did {name}x say?", [name]) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What did I buy?", True), ("what did i buy", True), ("Where's my bike?", True), ("Who told me?", True),
        ("I'm late, why?", True), ("Is it mine?", True), ("Did I hurt myself?", True), ("What did Ann buy?", False),
        ("Is this the mining office in Miami?", False), ("Was it him?", False),
    ],
)  # fmt: skip
def test_first_person(text: str, expected: bool) -> None:
    assert analyse_question(text, PAIR).first_person is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What happened on 8 May 2023?", [date(2023, 5, 8)]),
        ("What happened on May 8, 2023?", [date(2023, 5, 8)]),
        ("What happened on May 8th?", [date(None, 5, 8)]),
        ("What happened on the 8th of May?", [date(None, 5, 8)]),
        ("What happened on the 8th May?", [date(None, 5, 8)]),
        ("What happened on May the 21st?", [date(None, 5, 21)]),
        ("the 2nd of March", [date(None, 3, 2)]),
        ("on March 3rd", [date(None, 3, 3)]),
        ("the 31st of December 1999", [date(1999, 12, 31)]),
        ("in May 2023", [date(2023, 5)]),
        ("in May", [date(None, 5)]),
        ("in July", [date(None, 7)]),
        ("What did Ann do in september?", [date(None, 9)]),
        ("on Sept. 3", [date(None, 9, 3)]),
        ("on 3 Sep", [date(None, 9, 3)]),
        ("in Jan 2024", [date(2024, 1)]),
        ("in 2023", [date(2023)]),
        # no day of a month
        ("Did in May 45 people come?", [date(None, 5)]),
        ("Did in July 32 people come?", [date(None, 7)]),
        ("in June 0", [date(None, 6)]),
        # a time, and not a day
        ("in May 10:30", [date(None, 5)]),
        # several dates, and numbers
        ("What was on 12.03.2026?", []),  # the order of these numbers is not known
        ("And on 04/05/2026?", []),
        ("What was on 2026/03/12?", []),
        ("How was the season 2019/20?", [date(2019)]),
        ("What was in 2019-2021?", [date(2019), date(2021)]),
        ("What was on 2023-05-08?", [date(2023, 5, 8)]),
        ("Between 2023-05-08 and 2024-01-31?", [date(2023, 5, 8), date(2024, 1, 31)]),
        ("2023-05-08 or in June?", [date(2023, 5, 8), date(None, 6)]),
        ("In June or July?", [date(None, 6), date(None, 7)]),
        ("In 2021 or 2022?", [date(2021), date(2022)]),
        ("From 3 June to July 4th 2022", [date(2022, 6, 3), date(2022, 7, 4)]),
        ("June of 2021 or 2022", [date(2021, 6), date(2022, 6)]),
        # words and numbers that are no dates
        ("May I see it?", []),
        ("May Ann come?", []),
        ("March on!", []),
        ("What may happen?", []),
        ("Where did they march?", []),
        ("may 8 people come?", []),
        ("Who decided to jan the door?", []),  # short forms need a capital
        ("Is the dec clean?", []),
        ("Did Maya meet Junes?", []),
        ("Which Marching band, which Mayor?", []),
        ("room 305, 1066 and 12345", []),
        ("order 20231 and 2099x", []),
    ],
)
def test_dates_of_a_question(text: str, expected: list[DateMention]) -> None:
    assert dates(text) == tuple(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("When did Ann leave?", True), ("'When was that?'", True), ("What day was it?", True),
        ("Which year did Bo move?", True), ("In what month did Bo move?", True), ("On which date is it?", True),
        ("How long did it take?", True), ("Do you know when Ann did it?", False),
        ("Do you know when did Ann leave?", True), ("Tell me when is the concert", True),
        ("What did Ann do when Bo left?", False), ("How far is it?", False), ("What whenever?", False),
    ],
)  # fmt: skip
def test_asks_when(text: str, expected: bool) -> None:
    assert analyse_question(text, PAIR).asks_when is expected


NASTY = st.text(st.sampled_from("aB .'’?()[\\*+$^|8é日\n\u00ad"), min_size=1, max_size=6)


@given(text=st.text(max_size=40) | NASTY, participants=st.lists(NASTY | st.text(min_size=1, max_size=8), max_size=4))
@example(text="ÇÈ", participants=["8", "?"])
def test_any_question_about_anyone_is_understood(text: str, participants: list[str]) -> None:
    question = analyse_question(text, participants)
    assert set(question.named) <= set(participants)
    assert {*question.stems_without_names} <= {*question.stems, *analyse_question(question.first_person_text, []).stems}
    if not question.named:
        assert question.first_person_text == " ".join(text.split())
        assert question.stems_without_names == question.stems


def test_months_and_years_are_paired_up_to_a_limit() -> None:
    text = " ".join([*(f"{month} {year}" for month in ("June", "July", "August") for year in range(1990, 2030))] * 10)
    found = dates(text)
    assert len(found) == len(set(found)) == limits.QUERY_DATES
    assert found[0] == date(1990, 6, None)
    assert len(dates(" ".join(f"2023-05-{day:02}" for day in range(1, 29)))) == limits.QUERY_DATES


def test_no_more_participants_are_named_than_a_question_may_name() -> None:
    names = [f"Participant{n:04}" for n in range(limits.NAMED_MAX + 5)]
    assert named(" and ".join(names), names) == tuple(names[: limits.NAMED_MAX])


def test_patterns_are_compiled_only_for_names_spelt_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "_patterns", {"Ann": re.compile("ANN")})  # a KeyError for any other
    strangers = [f"an{n}" for n in range(1_000)]
    asked = analyse_question("Did ANN and Bob see an0x, an1_y or fan2?", [*strangers, "Ann", "Bob"])
    assert asked.named == ("Ann", "Bob")


def test_query_words_are_limited_and_repeats_count() -> None:
    words = [f"word{n}" for n in range(limits.QUERY_WORDS + 50)]
    found = analyse_question(" ".join([*words, *words]), [])
    assert len(set(found.stems)) == limits.QUERY_WORDS
    assert len(found.stems) == 2 * limits.QUERY_WORDS


QUESTIONS: dict[str, Intent] = {
    "When did Ann move to Porto?": "temporal", "What year was the race?": "temporal",
    "How long has Bo been painting?": "temporal", "What did we talk about on 8 May 2023?": "temporal",
    "What has Ann been reading lately?": "temporal", "What did Bo say last week?": "temporal",
    "What happened three days ago?": "temporal", "Who is Bo's sister?": "entity", "“Who” else was there?": "entity",
    "Tell me about Carl": "entity", "What do you know about the churn model?": "entity",
    "What is Ann's favourite colour?": "preference", "Does she prefer tea or coffee?": "preference",
    "What kind of books does Ann like?": "preference", "What does my brother really hate?": "preference",
    "Which music would Bo's aunt like?": "preference", "What does Ann enjoy most?": "preference",
    "How do I deploy the dashboard?": "procedural", "how to reset the alarm": "procedural",
    "What are the steps for a rollback?": "procedural", "Walk me through the release": "procedural",
    "Summarise what Ann said": "summary", "Give me a recap of the meeting": "summary",
    "TL;DR of the thread": "summary", "What were the main points?": "summary", "Where does Ann work?": "factual",
    "What was the man who called selling?": "factual", "What would it be like to be there?": "factual",
    "How do you feel about it?": "factual", "Which gist did she fork?": "summary",
    # a requested action precedes a date, a preference or a person
    "Summarise what Ann said in May 2023": "summary", "How do I book the trip of 8 May?": "procedural",
    "When did Bo say which tea he likes?": "temporal", "Who likes tea?": "preference",
}  # fmt: skip


@pytest.mark.parametrize("text", QUESTIONS)
def test_the_intent_of_a_question(text: str) -> None:
    assert intent_of(analyse_question(text, ["Ann", "Bo"])) == QUESTIONS[text]


def test_each_intent_has_a_mode() -> None:
    assert MODE_OF.keys() == set(get_args(Intent))
    assert set(MODE_OF.values()) <= ranking.MODES.keys()
