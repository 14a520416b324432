"""Columns of the question's words, of replies and of kinds of chat, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.operators.recall.columns import compute
from recallflow.operators.recall.question import understand
from recallflow.operators.recall.weights import WEIGHTS, weights_of
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import ENDS_ASKING, Entry
from tests.unit.operators.harness import indexed, make_entry
from tests.unit.operators.test_columns import QUERY, assert_column, columns_of

SETS = WEIGHTS["contextual"]
LN2 = math.log(2)  # the idf of a word in one of two texts, ln(1 + 1.5/1.5)


def said(*stems: str, episode: int = 0) -> list[Entry]:
    return [make_entry(n, episode=episode, created_ms=n, stems=text) for n, text in enumerate(stems)]


def test_own_is_a_logarithm_of_the_memory_s_bm25() -> None:
    # Lengths 1 and 3, mean 2: the norm of the first is 1.2·(0.25 + 0.75/2) = 0.75; ln(1 + 2.2·ln 2/1.75).
    index = indexed(said("bike", "tea tea tea"))
    assert_column(columns_of(index, "bike?")["own"], [math.log1p(2.2 * LN2 / 1.75), 0])
    assert_column(columns_of(index, "bike, bike?")["own"], [math.log1p(2.2 * LN2 / 1.75), 0])  # counts once


def test_near_leaves_names_out() -> None:
    # One window of two texts, each of two words: "bike" is in both windows, idf = ln(1 + 0.5/2.5); norm 1.2.
    entries = [make_entry(n, episode=0, created_ms=n, author_stems="ann", stems=s) for n, s in enumerate("xy")]
    index = indexed([*entries, make_entry(2, episode=1, stems="bike tea")])
    found = columns_of(index, "Ann's bike?", ["Ann"])
    assert found["own"][0] > 0
    assert found["near"][0] == found["near"][1] == 0
    assert found["near"][2] > 0


def test_an_episode_counts_as_one_text() -> None:
    # Two episodes of two words each: norm 1.2, ln 2/2.2 times 2.2 is ln 2.
    entries = [make_entry(n, episode=n // 2, created_ms=n, stems=s) for n, s in enumerate(["x", "bike", "x", "x"])]
    assert_column(columns_of(indexed(entries), "bike?")["episode"], [math.log1p(LN2)] * 2 + [0, 0])


def test_around_column_sums_scores_of_neighbours() -> None:
    # The first of seven has the word: twice within two places of it, once within four, nothing beyond, nor of itself.
    column = columns_of(indexed(said("bike", *"xxxxxx")), "bike?")
    own = column["own"][0]
    assert own > 0
    assert_column(column["around"], [0, 2 * own, 2 * own, own, own, 0, 0])


def test_memory_without_neighbours_gets_average_around_score() -> None:
    entries = said("bike", "x")
    index = indexed([*entries, make_entry(2, episode=-1, stems="bike")])
    column = columns_of(index, "bike?")
    at = index.conversation.places.tolist()
    first, second, alone = (column["around"][place] for place in at)
    assert first == 0 < second
    assert alone == pytest.approx((first + second) / 2)


def test_a_phrase_is_of_neighbours_that_are_neighbours() -> None:
    # "red bike" is in one of four: ln(1 + 4/1); the question's words: "red" is in two, ln(1 + 2.5/2.5), "bike" in
    # three, ln(1 + 1.5/3.5).
    index = indexed(said("red bike", "bike red", "x bike", "x"))
    expected = math.log(5) / (math.log(2) + math.log(1 + 1.5 / 3.5))
    assert_column(columns_of(index, "red bike?")["phrase"], [expected, 0, 0, 0])
    assert_column(columns_of(index, "bike?")["phrase"], [0, 0, 0, 0])


def test_length_is_a_logarithm_less_the_mean() -> None:
    logarithms = np.log([4, 1, 2])
    index = indexed(said("a b c", "", "a"))
    assert_column(columns_of(index, "?")["length"], (logarithms - logarithms.mean()).tolist())


def asked_and_answered(*answered: str, by: str = "Ann") -> OwnerIndex:
    """An assistant asks about a bike, and is answered."""
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


def test_long_answers_borrow_less_from_their_question() -> None:
    short, long = (asked_and_answered(" ".join(["blue"] * words)) for words in (10, 40))
    for index, share in ((short, 1.0), (long, 0.25)):
        found = columns_of(index, "bike?")
        assert_column(found["borrowed"], [0, share * found["own"][0]])


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


@pytest.mark.parametrize(
    ("people", "column", "expected"),
    [
        ([("user", "user"), BOT, (None, None)], "assistant", [0, 1, 0]),
        ([ANN, BO, BOT], "assistant", [0, 0, 0]),  # it talks to two
        ([ANN, BO], "speaker_of_two", [1, 0]),
        ([ANN, BO, CY], "speaker_of_two", [0, 0, 0]),
    ],
)
def test_column_is_of_one_kind_of_chat(
    people: list[tuple[str | None, str | None]], column: str, expected: list[float]
) -> None:
    names = [author for author, role in people if author and role == "user"]
    assert_column(columns_of(indexed(chat(*people)), "What does Ann like?", names)[column], expected)


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
    weights = weights_of(indexed([*two, *one]), SETS)
    for name in pair.keys() | assistant.keys():
        apart = pair.get(name, 0.0), assistant.get(name, 0.0)
        np.testing.assert_array_equal(weights[name], np.repeat(apart, 2))
    index = indexed([*two, *one])
    found = compute(index, understand("Which bike?", []), QUERY, weights)
    assert found.contributions(np.array([3, 0])).sum(axis=0) == pytest.approx(found.score()[[3, 0]])


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
