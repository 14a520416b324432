"""Columns of the semantic signal, by hand; word statistics of memories against counting text by text."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.embedder import NO_FLOATS, TextVectors
from recallflow.language.analysis import DateMention
from recallflow.operators.recall import columns, words
from recallflow.operators.recall.columns import compute, date_column
from recallflow.operators.recall.question import analyse_question
from recallflow.operators.recall.weights import WEIGHTS, weights_of
from recallflow.operators.recall.words import BEFORE, K1, LENIENT_B, LENT, NAMES, B, Units, bm25_scores, phrase_column
from recallflow.state.arrays import Column
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import ENDS_ASKING, HAS_QUESTION, TELLS_TIME, Entry, Vectors
from recallflow.state.tokens import to_bytes
from tests.unit.operators.harness import indexed, make_entry

RIGHT, UP, LEFT = (1, 0), (0, 1), (-1, 0)
EVERY: Mapping[str, float] = {name: 1.0 for weights in WEIGHTS["contextual"].values() for name in weights}
QUERY = TextVectors(np.array(RIGHT, np.float32), NO_FLOATS)


def columns_of(index: OwnerIndex, question: str, participants: Sequence[str] = ()) -> dict[str, Column]:
    values = compute(index, analyse_question(question, participants), QUERY, EVERY).values
    return {name: np.asarray(column) for name, column in values.items()}


def assert_column(column: Column, expected: Sequence[float]) -> None:
    np.testing.assert_allclose(column, expected, rtol=1e-6, atol=1e-7)


def test_the_dense_column_is_the_z_score_of_the_cosines() -> None:
    # Cosines 1, 0, -1: mean 0, deviation √(2/3) = 0.816496581; a memory without a vector stands at the mean.
    entries = [make_entry(n, episode=0, created_ms=n) for n in range(4)]
    index = indexed(entries, {0: RIGHT, 1: UP, 2: LEFT})
    assert_column(columns_of(index, "?")["dense"], [1 / 0.816497581, 0, -1 / 0.816497581, 0])


TURNS = [("Ann", None), ("Bo", None)] * 2
ASKS = [HAS_QUESTION, 0, HAS_QUESTION | ENDS_ASKING, 0]
LOW = -0.05 / 0.866026404
HIGH = 0.1 / 1.000001  # of cosines 1, -1, 1, -1: z = ±1 but for the 0.000001


@pytest.mark.parametrize(
    ("authors", "flags", "episodes", "vectors", "expected"),
    [
        (TURNS, ASKS, [0] * 4, [RIGHT, LEFT] * 2, [0, HIGH, 0, HIGH]),  # behind a question only
        ([("Ann", None)] * 4, ASKS, [0] * 4, [RIGHT, LEFT] * 2, [0] * 4),  # their own question
        ([("bot", "assistant"), ("Ann", "user")] * 2, ASKS, [0] * 4, [RIGHT, LEFT] * 2, [0, 0, 0, HIGH]),  # at the end
        # Another episode: cosines -1, 1, -1, -1 have the mean -0.5 and the deviation √0.75 = 0.866025404.
        (TURNS, [HAS_QUESTION] * 4, [0, 0, 2, 2], [LEFT, RIGHT, LEFT, LEFT], [0, LOW, 0, LOW]),
    ],
    ids=["a question", "nobody else", "an assistant", "episodes"],
)
def test_answer_borrows_the_base_of_its_question(
    authors: list[tuple[str, str | None]], flags: list[int], episodes: list[int], vectors: Any, expected: list[float]
) -> None:
    entries = [
        make_entry(n, episode=episodes[n], created_ms=n, flags=flags[n], author=author, role=role)
        for n, (author, role) in enumerate(authors)
    ]
    assert_column(columns_of(indexed(entries, dict(enumerate(vectors))), "?")["answers"], expected)


FOUR, USERS = ["Ann", "Bo", "Ann", "Cy"], ["user", "assistant", "user"]
PAIR, LEES = ["Ann", "Bo"], ["Ann", "Bo Lee"]


@pytest.mark.parametrize(
    ("said_by", "participants", "question", "column", "expected"),
    [
        (FOUR, PAIR, "What did Ann say?", "speaker", [1, 0, 1, 0]),
        (FOUR, PAIR, "What did Ann tell Bo?", "speaker", None),
        (FOUR, PAIR, "What was said?", "speaker", None),
        (["Ann", "Bo Lee", "Ann", "Cy"], LEES, "What did Ann tell Bo?", "subject", [1, 0, 1, 0]),
        (["Ann", "Bo Lee", "Ann", "Cy"], LEES, "What did Bo think of Ann's bike?", "subject", [0, 1, 0, 0]),
        (FOUR, PAIR, "What did Ann say?", "subject", None),
        (FOUR, PAIR, "What was said?", "subject", None),
        # I am the one user of a chat with an assistant, if nobody is named.
        (USERS, [], "What did I buy?", "speaker", [1, 0, 1]),
        (USERS, [], "What was bought?", "speaker", None),
        (["Ann", "assistant"], ["Ann", "assistant"], "What did assistant tell me?", "speaker", [0, 1]),
        (["Ann", "Bo", "assistant"], [], "What did I buy?", "speaker", None),  # one of two
        (["Ann", "Ann"], [], "What did I buy?", "speaker", None),  # all is theirs
        (["assistant"], [], "What did I buy?", "speaker", None),
    ],
)
def test_speaker_and_subject_are_marked(
    said_by: list[str], participants: list[str], question: str, column: str, expected: list[float] | None
) -> None:
    roles = ["assistant" if author == "assistant" else "user" for author in said_by]
    said = enumerate(zip(said_by, roles, strict=True))
    index = indexed([make_entry(n, episode=0, created_ms=n, author=author, role=role) for n, (author, role) in said])
    found = columns_of(index, question, participants).get(column)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert_column(found, expected)


def test_turn_ending_with_a_question_is_marked() -> None:
    flags = [HAS_QUESTION | ENDS_ASKING, HAS_QUESTION, 0]
    entries = [make_entry(n, episode=0, created_ms=n, author="Ann", flags=f) for n, f in enumerate(flags)]
    index = indexed([*entries, make_entry(3, episode=0, created_ms=3, author="Bo", flags=flags[0])])
    assert_column(columns_of(index, "What did Ann say?", ["Ann", "Bo"])["speaker_asks"], [1, 0, 0, 0])


def facts_beside(authors: Sequence[str], *facts: str) -> OwnerIndex:
    said = [make_entry(n, episode=0, created_ms=n, author=a, role="user") for n, a in enumerate(authors)]
    told = [make_entry(len(said) + n, created_ms=100, stems=stems, kind="fact") for n, stems in enumerate(facts)]
    return indexed([*said, *told])


def by_id(index: OwnerIndex, column: Column) -> dict[str, float]:
    return dict(zip((index.ids[slot] for slot in index.conversation.slots), column.tolist(), strict=True))


def test_fact_is_about_the_people_it_names() -> None:
    people = ["Ann Lee", "Bo", "Bo"]
    index = facts_beside(people, "ann prefer tea", "bo drink tea", "bo ann", "tea")
    expected = {"m0": 1, "m1": 0, "m2": 0, "m3": 1, "m4": 0, "m5": 1, "m6": 1 / 3}  # who the last is about is not told
    asked = columns_of(index, "What does Ann drink?", people)
    assert by_id(index, asked["speaker"]) == pytest.approx(expected)
    assert by_id(index, columns_of(index, "Has Ann met Bo?", people)["subject"]) == pytest.approx(expected)


def test_a_first_name_that_two_bear_names_neither() -> None:
    people = ["Ann Lee", "Ann Ray"]
    index = facts_beside(people, "ann lee drink tea", "ann ray drink tea", "ann drink tea")
    asked = columns_of(index, "What does Ann Lee drink?", people)
    assert by_id(index, asked["speaker"]) == pytest.approx({"m0": 1, "m1": 0, "m2": 1, "m3": 0, "m4": 0.5})


def test_a_fact_of_the_user_is_about_me() -> None:
    said = [
        make_entry(0, episode=0, author="Kim", role="user"), make_entry(1, episode=0, author="bot", role="assistant"),
    ]  # fmt: skip
    index = indexed([*said, make_entry(2, stems="kim prefer tea"), make_entry(3, stems="bot make tea")])
    asked = columns_of(index, "What do I drink?", ["Kim", "bot"])
    assert by_id(index, asked["speaker"]) == {"m0": 1, "m1": 0, "m2": 1, "m3": 0}


def test_columns_without_meaning_for_facts_are_neutral() -> None:
    flags = [HAS_QUESTION, 0, 0]
    said = [
        make_entry(
            n, episode=0, created_ms=n, stems="milk" if n else "tea", flags=flag, author="Ann" if n % 2 else "Bo"
        )
        for n, flag in enumerate(flags)
    ]
    index = indexed([*said, make_entry(3, created_ms=100)])
    asked = columns_of(index, "Which tea?")
    for name in ("opens", "answers", "borrowed"):
        values = by_id(index, asked[name])
        of_fact = values.pop("m3")
        assert of_fact > 0, name
        assert of_fact == pytest.approx(sum(values.values()) / 3), name


def test_a_question_for_a_time_favours_memories_that_tell_one() -> None:
    entries = [make_entry(n, episode=0, created_ms=n, flags=f) for n, f in enumerate([TELLS_TIME, 0, 7])]
    assert_column(columns_of(indexed(entries), "When was it?")["when"], [1, 0, 1])
    assert "when" not in columns_of(indexed(entries), "What was it?")


@given(
    created_ms=st.integers(-62_135_596_800_000, 253_402_300_799_999), year=st.none() | st.integers(1, 9999),
    month=st.none() | st.integers(1, 12), day=st.none() | st.integers(1, 31), own=st.booleans(),
)  # fmt: skip
def test_the_date_column_agrees_with_the_calendar(
    created_ms: int, year: int | None, month: int | None, day: int | None, own: bool
) -> None:
    text = str(np.datetime64(created_ms, "ms"))
    its_year, its_month, its_day = map(int, text[:10].split("-"))
    if own:  # hits are rare otherwise
        year, month = (None if year is None else its_year), (None if month is None else its_month)
    fits = year in (None, its_year)
    if month is None:
        expected = 0.3 * fits
    else:
        fits = fits and month == its_month
        apart = 31 if day is None else abs(day - its_day)
        expected = fits * (2.0 if apart == 0 else 1.5 if apart <= 2 else 1.0)
    assert date_column(np.array([created_ms]), (DateMention(year, month, day),))[0] == expected


SETS = WEIGHTS["contextual"]
LN2 = math.log(2)  # the idf of a word in one of two texts, ln(1 + 1.5/1.5)


def said(*stems: str, episode: int = 0) -> list[Entry]:
    return [make_entry(n, episode=episode, created_ms=n, stems=text) for n, text in enumerate(stems)]


def test_own_is_a_logarithm_of_the_memory_s_bm25() -> None:
    # Lengths 1 and 3, mean 2: the norm of the first is 1.2·(0.25 + 0.75/2) = 0.75; ln(1 + 2.2·ln 2/1.75).
    index = indexed(said("bike", "tea tea tea"))
    assert_column(columns_of(index, "bike?")["own"], [math.log1p(2.2 * LN2 / 1.75), 0])
    assert_column(columns_of(index, "bike, bike?")["own"], [math.log1p(2.2 * LN2 / 1.75), 0])  # counts once


def test_around_column_sums_scores_of_neighbours() -> None:
    # The first of seven has the word: twice within two places of it, once within four, nothing beyond, nor of itself.
    column = columns_of(indexed(said("bike", *"xxxxxx")), "bike?")
    own = column["own"][0]
    assert own > 0
    assert_column(column["around"], [0, 2 * own, 2 * own, own, own, 0, 0])


def test_length_is_a_logarithm_less_the_mean() -> None:
    logarithms = np.log([4, 1, 2])
    index = indexed(said("a b c", "", "a"))
    assert_column(columns_of(index, "?")["length"], (logarithms - logarithms.mean()).tolist())


def asked_and_answered(*answered: str, by: str = "Ann") -> OwnerIndex:
    asking = make_entry(0, episode=0, role="assistant", author="bot", flags=ENDS_ASKING, stems="bike tea")
    answers = [
        make_entry(n, episode=0, created_ms=n, role="user", author=by, stems=stems)
        for n, stems in enumerate(answered, 1)
    ]
    return indexed([asking, *answers])


def test_a_short_answer_borrows_the_words_of_its_question() -> None:
    # "bike" in one of two texts of two words: ln(1 + 2.2·ln 2/2.2) = ln(1 + ln 2).
    found = columns_of(asked_and_answered("blue red"), "bike?")
    assert_column(found["borrowed"], [0, math.log1p(LN2)])
    found = columns_of(asked_and_answered("blue red", by="bot"), "bike?")
    assert_column(found["borrowed"], [0, 0])  # nobody answers their own question


def test_an_answer_borrows_no_more_than_it_lacks() -> None:
    found = columns_of(asked_and_answered("blue bike"), "bike? tea?")
    of_the_question, of_the_answer = found["own"]
    assert_column(found["borrowed"], [0, of_the_question - of_the_answer])
    said_itself = columns_of(asked_and_answered("bike tea"), "bike? tea?")
    assert_column(said_itself["borrowed"], [0, 0])


def test_reply_column_is_the_cosine_of_the_reply() -> None:
    # Cosines 1, -1, 1, -1: z = ±1 but for the 0.000001; the last of an episode has no reply.
    entries = [make_entry(n, episode=n // 3, created_ms=n) for n in range(4)]
    index = indexed(entries, {n: (1 if n % 2 == 0 else -1, 0) for n in range(4)})
    assert_column(columns_of(index, "?")["reply"], [-1 / 1.000001, 1 / 1.000001, 0, 0])


def chat(*people: tuple[str | None, str | None], session: str = "s") -> list[Entry]:
    return [
        make_entry(n, episode=0, created_ms=n, author=author, role=role, session_id=session if role else None)
        for n, (author, role) in enumerate(people)
    ]


BOT, ANN, BO, CY = ("assistant", "assistant"), ("Ann", "user"), ("Bo", "user"), ("Cy", "user")


def test_each_memory_is_weighed_as_its_chat_is() -> None:
    pair, assistant = SETS["pair"], SETS["assistant"]
    two = chat(("Ann", "user"), ("Bo", "user"), session="two")
    assert weights_of(indexed(two), SETS) is pair
    three = chat(("Ann", "user"), ("Bo", "user"), ("Cy", "user"))
    assert weights_of(indexed(three), SETS) is SETS["people"]
    assert weights_of(indexed(two), WEIGHTS["spelling"]) is WEIGHTS["spelling"]["people"]  # has no set for pairs
    one = [
        make_entry(n, episode=1, created_ms=n, author=author, role=author, session_id="bot")
        for n, author in enumerate(["user", "assistant"], 2)
    ]
    assert weights_of(indexed(one), SETS) is assistant
    notes, blended = indexed(chat(("Ann", "user"))), WEIGHTS["blended"]
    assert weights_of(notes, blended) is blended["notes"]
    assert weights_of(notes, blended, is_spaced=False) is blended["unspaced notes"]
    weights = weights_of(indexed([*two, *one]), SETS)
    for name in pair.keys() | assistant.keys():
        apart = pair.get(name, 0.0), assistant.get(name, 0.0)
        np.testing.assert_array_equal(weights[name], np.repeat(apart, 2))


TOLD = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["red bike", "tea", "bike red", "x", ""])), max_size=9)


@given(told=TOLD, data=st.data())
def test_columns_do_not_depend_on_arrival_or_packing(told: list[tuple[int, str]], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(told))))
    # Of episodes, the order of time is their own.
    entries = [
        make_entry(seq, id=f"m{which}", episode=told[which][0] if told[which][0] else -1, created_ms=which,
                   author="user", role="user", stems=told[which][1])
        for seq, which in enumerate(order)
    ]  # fmt: skip
    plain = [entries[order.index(which)]._replace(seq=which) for which in range(len(told))]
    ways = [indexed(plain), indexed(entries)]
    packed = OwnerIndex("model", 2)
    packed.append(indexed(plain).packed(len(plain)))
    values = []
    for index in (*ways, packed):
        found = columns_of(index, "Which red bike?")
        ids = [index.ids[slot] for slot in index.conversation.slots]
        values.append({name: dict(zip(ids, column.tolist(), strict=True)) for name, column in found.items()})
    for other in values[1:]:
        for name, column in values[0].items():
            assert other[name] == pytest.approx(column, rel=1e-9, abs=1e-9), name


MODEL = "model"
NOWHERE = TextVectors(np.zeros(2, np.float32), NO_FLOATS)

Floats = npt.NDArray[np.float64]


def word_index(said: Sequence[tuple[int, str]]) -> OwnerIndex:
    return indexed([make_entry(n, episode=e, created_ms=n, stems=s) for n, (e, s) in enumerate(said)])


def z(values: Floats, sample: Floats | None = None) -> Floats:
    typical = values if sample is None else sample
    scores: Floats = (values - typical.mean()) / (typical.std() + 1e-6)
    return scores


def every(index: OwnerIndex) -> npt.NDArray[np.int64]:
    return np.arange(index.conversation.size)


def test_the_columns_by_hand() -> None:
    # The word asked for stands in the first of four messages; the last is of another episode.
    # word: 1, 0, 0, 0; lent to those behind it at 0.95: word_before 1, 0.95, 0.95, 0.
    index = word_index([(0, "bike"), (0, "x"), (0, "x"), (1, "x")])
    found = words.columns(index, Units(np.ones(1), ("bike",)), every(index))
    np.testing.assert_allclose(found["word"].scores, z(np.array([1.0, 0, 0, 0])), rtol=1e-4)
    np.testing.assert_allclose(found["word_before"].scores, z(np.array([1.0, 0.95, 0.95, 0])), rtol=1e-4)


def test_units_weigh_by_rarity_and_leave_names_out() -> None:
    # Of three memories two hold "bike", one "tour": ln(1 + 1.5/2.5) = 0.470003629, ln(1 + 2.5/1.5) = 0.980829253.
    index = word_index([(0, "bike"), (0, "bike tour"), (0, "x")])
    found = words.units(index, analyse_question("Ann's bike tour?", ["Ann"]), NOWHERE)
    assert found.stems == ("bike", "tour")
    np.testing.assert_allclose(found.weights, np.array([0.470003629, 0.980829253]) / 1.450832882, rtol=1e-6)


def test_units_are_tokens_where_memories_have_some() -> None:
    index = OwnerIndex(MODEL, 2)
    tokens = [np.array([[1, 0]], np.float32), np.array([[0, 1], [0, 3]], np.float32)]
    stored = {(n, 0): Vectors(MODEL, np.eye(2, dtype=np.float32)[:1], to_bytes(one)) for n, one in enumerate(tokens)}
    index.add([make_entry(n, episode=n) for n in range(2)], stored)
    # Lengths 3, 0, 1: shares 0.75 and 0.25; the one without direction says nothing.
    query = TextVectors(np.zeros(2, np.float32), np.array([[3, 0], [0, 0], [0, 1]], np.float32))
    found = words.units(index, analyse_question("?", []), query)
    assert found.weights.tolist() == [0.75, 0.25]
    np.testing.assert_allclose(
        words.columns(index, found, every(index))["word"].scores, z(np.array([0.75, 0.25])), rtol=1e-3
    )


SAID_TEXTS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from(["bike", "biker", "tea", "teapot", "x"]), max_size=3)),
    min_size=1, max_size=14,
)  # fmt: skip


def by_one(index: OwnerIndex, stems: Sequence[str], weights: Floats) -> dict[str, Floats]:
    """The columns before the z-score, place by place."""
    conversation = index.conversation
    size, segment = conversation.size, conversation.episode_ordinal
    closest = index.words.closest(stems, conversation.slots, weights)

    def lent(place: int, before: int) -> Any:
        own = closest[:, place]
        near = [q for q in range(max(place - before, 0), place) if segment[q] == segment[place]]
        return weights @ np.max([own, *(LENT * closest[:, q] for q in near)], axis=0)

    reach = {"word": 0, "word_before": BEFORE}
    return {name: np.array([lent(place, reach[name]) for place in range(size)]) for name in NAMES}


@given(
    said=SAID_TEXTS, stems=st.lists(st.sampled_from(["bike", "teapot", "never"]), min_size=1, unique=True),
    data=st.data(),
)  # fmt: skip
def test_columns_agree_with_single_places(
    said: list[tuple[int, list[str]]], stems: list[str], data: st.DataObject
) -> None:
    index = word_index([(episode, " ".join(stems)) for episode, stems in said])
    weights = np.full(len(stems), 1 / len(stems))
    units = Units(weights, tuple(stems))
    expected = {name: z(values) for name, values in by_one(index, stems, weights).items()}
    whole = words.columns(index, units, every(index))
    some = np.array(sorted(data.draw(st.sets(st.sampled_from(every(index).tolist()), min_size=1))))
    part = words.columns(index, units, some)
    for name in NAMES:
        # Values that are all but equal have deviations of rounding errors; they tell nothing apart.
        np.testing.assert_allclose(whole[name].scores, expected[name], rtol=1e-3, atol=0.2)
        scores = np.asarray(part[name].scores)
        np.testing.assert_allclose(scores[some], whole[name].scores.take(some), rtol=1e-3, atol=0.2)
        assert not np.delete(scores, some).any()


def test_best_of_large_and_small_owners_score_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["bike tour", "tea", "x", "bike", "cake", "x y", "tea cake", "y"] * 4
    said = [(n // 6, text) for n, text in enumerate(texts)]
    index, question = word_index(said), analyse_question("Which bike tour?", [])
    whole = columns.compute(index, question, NOWHERE, WEIGHTS["spelling"]["people"])
    monkeypatch.setattr(columns, "CUT_ABOVE", 8)
    monkeypatch.setattr(columns, "CUT_BEST", 12)
    cut = columns.compute(index, question, NOWHERE, WEIGHTS["spelling"]["people"])
    assert (whole.complete, cut.complete) == (True, False)
    (looked_at,) = np.asarray(cut.values["word"]).nonzero()
    assert 0 < len(looked_at) <= 12
    assert int(np.argmax(whole.score())) in looked_at
    np.testing.assert_allclose(cut.score()[looked_at], whole.score()[looked_at], rtol=1e-5)


WORDS = ["red", "bike", "tea", "x"]
SAID = st.lists(st.tuples(st.integers(-1, 2), st.lists(st.sampled_from(WORDS), max_size=4)), min_size=1, max_size=14)


def idf(held: int, texts: int) -> float:
    return math.log(1 + (texts - held + 0.5) / (held + 0.5))


def expected(texts: list[list[str]], asked: list[str], b: float = B) -> list[float]:
    mean = max(sum(map(len, texts)) / len(texts), 1e-9)
    scores = []
    for text in texts:
        score = 0.0
        for word in asked:
            count = text.count(word)
            worth = idf(sum(word in other for other in texts), len(texts))
            score += worth * count / (count + K1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


@given(
    said=SAID, asked=st.lists(st.sampled_from([*WORDS, "never"]), max_size=5), bare=st.sets(st.sampled_from(WORDS)),
    data=st.data(),
)  # fmt: skip
def test_scores_are_those_of_single_texts(
    said: list[tuple[int, list[str]]], asked: list[str], bare: set[str], data: st.DataObject
) -> None:
    index = word_index([(episode, " ".join(stems)) for episode, stems in said])
    for seq in data.draw(st.sets(st.integers(0, len(said) - 1), max_size=3)):
        index.remove(seq)
    conversation, segment = index.conversation, index.conversation.episode_ordinal
    own = [said[slot][1] for slot in conversation.slots]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "_AT_ONCE", data.draw(st.sampled_from([1, 1 << 20])))
        found = bm25_scores(index, asked, bare)
    once = [*dict.fromkeys(asked)]
    places = range(len(own))
    windows = [
        [word for q in places if abs(p - q) <= 2 and segment[q] == segment[p] for word in own[q]] for p in places
    ]
    episodes = [[word for q in places if segment[q] == number for word in own[q]] for number in sorted(set(segment))]
    worth = [idf(sum(word in text for text in own), len(own)) for word in once]
    assert found.worth == pytest.approx(sum(worth))
    if own:
        for values, by_hand in (
            (found.own, expected(own, once)),
            (found.window, expected(windows, asked, LENIENT_B)),
            (found.near, expected(windows, [word for word in once if word in bare])),
        ):
            column = np.zeros(len(own))
            column[found.positions] = values
            np.testing.assert_allclose(column, by_hand, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.episode, expected(episodes, once), rtol=1e-9, atol=1e-12)
    together = np.zeros(len(own))
    for pair in dict.fromkeys(itertools.pairwise(asked)):
        holding = [pair in set(itertools.pairwise(text)) for text in own]
        if any(holding):
            together += np.array(holding) * math.log(1 + len(own) / sum(holding))
    np.testing.assert_allclose(np.asarray(phrase_column(index, asked)), together, rtol=1e-9, atol=1e-12)
