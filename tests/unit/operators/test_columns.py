"""Every column of the semantic signal, with numbers worked out by hand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.embedder import NO_FLOATS, TextVectors
from recallflow.language import DateMention
from recallflow.operators.recall import bm25 as texts
from recallflow.operators.recall.bm25 import LENIENT_B, SQUASH
from recallflow.operators.recall.columns import Columns, compute, date_column
from recallflow.operators.recall.question import understand
from recallflow.operators.recall.weights import WEIGHTS
from recallflow.state.arrays import Column
from recallflow.state.index import Lengths, OwnerIndex
from recallflow.state.rows import ENDS_ASKING, HAS_QUESTION, TELLS_TIME, Entry, Vectors

MODEL = "model"
RIGHT, UP, LEFT = (1, 0), (0, 1), (-1, 0)
EVERY: Mapping[str, float] = {name: 1.0 for weights in WEIGHTS["contextual"].values() for name in weights}
QUERY = TextVectors(np.array(RIGHT, np.float32), NO_FLOATS)

MakeEntry = Callable[..., Entry]


def indexed(entries: Sequence[Entry], vectors: Mapping[int, tuple[float, float]] | None = None) -> OwnerIndex:
    index = OwnerIndex(MODEL, 2)
    rows = {(seq, 0): Vectors(MODEL, np.array([row], np.float32)) for seq, row in (vectors or {}).items()}
    index.add(entries, rows)
    return index


def columns_of(index: OwnerIndex, question: str, participants: Sequence[str] = ()) -> dict[str, Column]:
    return compute(index, understand(question, participants), QUERY, EVERY).values


def assert_column(column: Column, expected: Sequence[float]) -> None:
    np.testing.assert_allclose(column, expected, rtol=1e-6, atol=1e-7)


# ── BM25 ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def bm25(counts: Sequence[Sequence[int]], lengths: Sequence[float]) -> Column:
    """From how often each word stands in each text."""
    words = np.array(lengths, np.float64)
    table = np.array(counts, np.float64).reshape(len(counts), len(words))
    rarities = texts.idf((table > 0).sum(axis=1), len(words))
    scores = texts.bm25(table, rarities, Lengths.of(words), np.arange(len(words)), LENIENT_B)
    return scores / (scores + SQUASH)


def test_squashed_bm25_by_hand() -> None:
    # One word, in two of three texts: idf = ln(1 + (3 - 2 + 0.5)/(2 + 0.5)) = ln 1.6 = 0.470003629
    # Lengths 2, 4, 6, mean 4: k1·(1 - b + b·len/mean) = 1.2·(0.7 + 0.3·len/4) = 1.02, 1.2, 1.38
    # Parts: idf·1/(1 + 1.02) = 0.232675064, 0, idf·2/(2 + 1.38) = 0.278108656
    # b/(b + 5): 0.232675064/5.232675064 = 0.044465796, 0, 0.278108656/5.278108656 = 0.052690969
    assert_column(bm25([[1, 0, 2]], [2, 4, 6]), [0.044465796, 0.0, 0.052690969])


def test_bm25_adds_up_over_words() -> None:
    # Two texts of mean length: k1 = 1.2 alone. Word 1 in one of two: idf = ln(1 + 1.5/1.5) = ln 2 = 0.693147181;
    # word 2 in both: idf = ln(1 + 0.5/2.5) = ln 1.2 = 0.182321557.
    # Text 1: ln 2·3/4.2 + ln 1.2/2.2 = 0.495105129 + 0.082873435 = 0.577978564; text 2: 0.082873435
    expected = [0.577978564 / 5.577978564, 0.082873435 / 5.082873435]
    assert_column(bm25([[3, 0], [1, 1]], [5, 5]), expected)


def test_bm25_of_no_words_is_zero() -> None:
    assert_column(bm25([], [1, 2, 3]), [0, 0, 0])
    assert_column(bm25([[0, 0]], [0, 0]), [0, 0])
    assert_column(bm25([], []), [])


def test_text_and_author_are_one_text(make_entry: MakeEntry) -> None:
    # The lengths are 2, 4 and 6 with the author's stem, the counts of "bike" 1, 0 and 2: as in the first test above.
    # Memories outside any episode are each other's neighbours never: their windows are themselves.
    index = indexed(
        [
            make_entry(0, author_stems="ann", stems="bike"),
            make_entry(1, author_stems="bo", stems="tea tea tea"),
            make_entry(2, author_stems="bike", stems="bike b c d e"),
        ]
    )
    # In conversation order: memories outside any episode come by their sequence number, latest first.
    assert_column(columns_of(index, "Which bike?")["window"], [0.052690969, 0.0, 0.044465796])


def test_a_word_that_the_question_repeats_counts_twice(make_entry: MakeEntry) -> None:
    index = indexed([make_entry(0, stems="bike"), make_entry(1, stems="tea")])
    # ln 2/2.2 = 0.315066900; twice 0.630133801
    once, twice = 0.315066900 / 5.315066900, 0.630133801 / 5.630133801
    assert_column(columns_of(index, "bike?")["window"], [0, once])
    assert_column(columns_of(index, "bike, bike?")["window"], [0, twice])


def test_a_word_that_nobody_said_changes_nothing(make_entry: MakeEntry) -> None:
    index = indexed([make_entry(0, episode=0, stems="bike"), make_entry(1, episode=0, stems="tea")])
    assert_column(columns_of(index, "bike zeppelin")["window"], columns_of(index, "bike")["window"].tolist())


def test_a_removed_memory_is_no_document(make_entry: MakeEntry) -> None:
    kept = [make_entry(n, episode=0, created_ms=n, stems=s) for n, s in enumerate(["red bike", "tea", "bike"])]
    index = indexed([*kept, make_entry(3, episode=0, created_ms=9, stems="red bike tour")])
    index.remove(3)
    expected = columns_of(indexed(kept), "the red bike")
    for name, column in columns_of(index, "the red bike").items():
        assert_column(column, expected[name].tolist())


# ── windows ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_window_is_bm25_over_the_neighbours_as_one_text(make_entry: MakeEntry) -> None:
    # Five messages of one word each; the word asked for is the first. Within ±2 it is around places 0, 1 and 2:
    # idf = ln(1 + (5 - 3 + 0.5)/(3 + 0.5)) = ln 1.714285714 = 0.538996501. The windows' lengths are 3, 4, 5, 4, 3, mean
    # 3.8: norms 1.2·(0.7 + 0.3·len/3.8) = 1.124210526, 1.218947368, 1.313684211.
    # idf/(1 + norm): 0.253739681, 0.242906393, 0.232960271; then b/(b + 5).
    words = ["bike", "tea", "tea", "tea", "tea"]
    index = indexed([make_entry(n, episode=0, created_ms=n, stems=word) for n, word in enumerate(words)])
    columns = columns_of(index, "bike")
    expected = [0.253739681, 0.242906393, 0.232960271, 0, 0]
    assert_column(columns["window"], [b / (b + 5) for b in expected])


def test_a_window_ends_with_its_episode(make_entry: MakeEntry) -> None:
    # Two episodes of two; the word is in the first one only: windows count 1, 1, 0, 0 and are 2 long.
    # idf = ln(1 + 2.5/2.5) = ln 2, ln 2/2.2 = 0.315066900
    words = ["tea", "bike", "tea", "tea"]
    index = indexed([make_entry(n, episode=n // 2, created_ms=n, stems=word) for n, word in enumerate(words)])
    columns = columns_of(index, "bike")
    assert_column(columns["window"], [0.315066900 / 5.315066900] * 2 + [0, 0])


# ── vectors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_dense_column_is_the_z_score_of_the_cosines(make_entry: MakeEntry) -> None:
    # Cosines 1, 0, -1: mean 0, deviation √(2/3) = 0.816496581; a memory without a vector stands at the mean.
    entries = [make_entry(n, episode=0, created_ms=n) for n in range(4)]
    index = indexed(entries, {0: RIGHT, 1: UP, 2: LEFT})
    assert_column(columns_of(index, "?")["dense"], [1 / 0.816497581, 0, -1 / 0.816497581, 0])


def test_without_any_vector_the_dense_columns_say_nothing(make_entry: MakeEntry) -> None:
    columns = columns_of(indexed([make_entry(n, episode=0) for n in range(3)]), "?")
    assert_column(columns["dense"], [0, 0, 0])


def test_equal_cosines_tell_nothing_apart(make_entry: MakeEntry) -> None:
    index = indexed([make_entry(n, episode=0) for n in range(3)], dict.fromkeys(range(3), RIGHT))
    assert_column(columns_of(index, "?")["dense"], [0, 0, 0])


# ── the conversation around ───────────────────────────────────────────────────────────────────────────────────────


def test_neighbours_lend_their_base(make_entry: MakeEntry) -> None:
    # Cosines 1, -1, 1, -1 give z = ±1 (but for the 0.000001), and no word is asked for: base = ±0.1.
    flags = [HAS_QUESTION, 0, HAS_QUESTION | ENDS_ASKING, 0]
    said = zip(flags, ["Ann", "Bo", "Ann", "Bo"], strict=True)
    entries = [make_entry(n, episode=0, created_ms=n, flags=f, author=who) for n, (f, who) in enumerate(said)]
    index = indexed(entries, {n: RIGHT if n % 2 == 0 else LEFT for n in range(4)})
    columns = columns_of(index, "?")
    base = 0.1 / 1.000001
    assert_column(columns["answers"], [0, base, 0, base])  # behind a question only


def test_nobody_answers_their_own_question_and_an_assistant_asks_at_the_end(make_entry: MakeEntry) -> None:
    flags = [HAS_QUESTION, 0, HAS_QUESTION | ENDS_ASKING, 0]
    alone = [make_entry(n, episode=0, created_ms=n, flags=f, author="Ann") for n, f in enumerate(flags)]
    assert_column(columns_of(indexed(alone, dict.fromkeys(range(4), RIGHT)), "?")["answers"], [0, 0, 0, 0])
    who = [("bot", "assistant"), ("Ann", "user")] * 2
    said = zip(flags, who, strict=True)
    chat = [make_entry(n, episode=0, created_ms=n, flags=f, author=a, role=r) for n, (f, (a, r)) in enumerate(said)]
    index = indexed(chat, {n: RIGHT if n % 2 == 0 else LEFT for n in range(4)})
    assert_column(columns_of(index, "?")["answers"], [0, 0, 0, 0.1 / 1.000001])


def test_the_base_joins_cosine_and_words(make_entry: MakeEntry) -> None:
    # z = ±1 as above; "bike" in one of two texts of equal length: ln 2/2.2 = 0.315066900, squashed 0.059278069
    asking = make_entry(0, episode=0, stems="bike", flags=HAS_QUESTION, author="Ann")
    entries = [asking, make_entry(1, episode=0, stems="tea", author="Bo")]
    index = indexed(entries, {0: LEFT, 1: RIGHT})
    columns = columns_of(index, "bike")
    assert_column(columns["answers"], [0, -0.1 / 1.000001 + 0.059278069])


def test_an_episode_lends_nothing_to_the_next(make_entry: MakeEntry) -> None:
    flags, who = HAS_QUESTION, ["Ann", "Bo", "Ann", "Bo"]
    entries = [make_entry(n, episode=n // 2, created_ms=n, flags=flags, author=who[n]) for n in range(4)]
    index = indexed(entries, {0: LEFT, 1: RIGHT, 2: LEFT, 3: LEFT})
    columns = columns_of(index, "?")
    # cosines -1, 1, -1, -1: mean -0.5, deviation √0.75 = 0.866025404
    low = 0.1 * -0.5 / 0.866026404
    assert_column(columns["answers"], [0, low, 0, low])


def test_only_real_episodes_have_an_opening(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=e, created_ms=n) for n, e in enumerate([0, 0, -1, 3, 3])]
    index = indexed(entries)
    opens = dict(
        zip([index.ids[s] for s in index.conversation.slots], columns_of(index, "?")["opens"].tolist(), strict=True)
    )
    assert opens == {"m0": 1, "m1": 0, "m2": 0.5, "m3": 1, "m4": 0}  # m2 is in none, and stands at the others' mean


# ── who and when ──────────────────────────────────────────────────────────────────────────────────────────────────


def said_by(make_entry: MakeEntry, *authors: str | None, role: str | None = None) -> OwnerIndex:
    return indexed([make_entry(n, episode=0, created_ms=n, author=a, role=role) for n, a in enumerate(authors)])


def test_the_speaker_is_the_one_participant_named(make_entry: MakeEntry) -> None:
    index = said_by(make_entry, "Ann", "Bo", "Ann", "Cy")
    pair = ["Ann", "Bo"]
    assert_column(columns_of(index, "What did Ann say?", pair)["speaker"], [1, 0, 1, 0])
    assert "speaker" not in columns_of(index, "What did Ann tell Bo?", pair)
    assert "speaker" not in columns_of(index, "What was said?", pair)


def test_of_several_named_the_first_is_the_subject(make_entry: MakeEntry) -> None:
    index = said_by(make_entry, "Ann", "Bo Lee", "Ann", "Cy")
    pair = ["Ann", "Bo Lee"]
    assert_column(columns_of(index, "What did Ann tell Bo?", pair)["subject"], [1, 0, 1, 0])
    assert_column(columns_of(index, "What did Bo think of Ann's bike?", pair)["subject"], [0, 1, 0, 0])
    assert "subject" not in columns_of(index, "What did Ann say?", pair)
    assert "subject" not in columns_of(index, "What was said?", pair)


def test_a_speaker_who_ends_in_a_question_is_marked(make_entry: MakeEntry) -> None:
    flags = [HAS_QUESTION | ENDS_ASKING, HAS_QUESTION, 0]
    entries = [make_entry(n, episode=0, created_ms=n, author="Ann", flags=f) for n, f in enumerate(flags)]
    index = indexed([*entries, make_entry(3, episode=0, created_ms=3, author="Bo", flags=flags[0])])
    assert_column(columns_of(index, "What did Ann say?", ["Ann", "Bo"])["speaker_asks"], [1, 0, 0, 0])


def chat(make_entry: MakeEntry, *said: tuple[str, str]) -> OwnerIndex:
    return indexed([make_entry(n, episode=0, created_ms=n, author=a, role=r) for n, (a, r) in enumerate(said)])


def test_i_am_the_one_user_of_a_chat_with_an_assistant(make_entry: MakeEntry) -> None:
    index = chat(make_entry, ("user", "user"), ("assistant", "assistant"), ("user", "user"))
    assert_column(columns_of(index, "What did I buy?")["speaker"], [1, 0, 1])
    assert "speaker" not in columns_of(index, "What was bought?")


@pytest.mark.parametrize(
    "said",
    [
        [("Ann", "user"), ("Bo", "user"), ("assistant", "assistant")],  # who of the two is I?
        [("Ann", "user"), ("Ann", "user")],  # all is theirs: it would tell nothing apart
        [("assistant", "assistant")],
    ],
)
def test_i_am_nobody_where_it_could_be_anyone(make_entry: MakeEntry, said: list[tuple[str, str]]) -> None:
    assert "speaker" not in columns_of(chat(make_entry, *said), "What did I buy?")


def test_a_name_in_the_question_comes_before_i(make_entry: MakeEntry) -> None:
    index = chat(make_entry, ("Ann", "user"), ("Bot", "assistant"))
    assert_column(columns_of(index, "What did Bot tell me?", ["Ann", "Bot"])["speaker"], [0, 1])


def facts_beside(make_entry: MakeEntry, authors: Sequence[str], *facts: str) -> OwnerIndex:
    said = [make_entry(n, episode=0, created_ms=n, author=a, role="user") for n, a in enumerate(authors)]
    told = [make_entry(len(said) + n, created_ms=100, stems=stems, kind="fact") for n, stems in enumerate(facts)]
    return indexed([*said, *told])


def by_id(index: OwnerIndex, column: Column) -> dict[str, float]:
    return dict(zip((index.ids[slot] for slot in index.conversation.slots), column.tolist(), strict=True))


def test_a_fact_is_about_whom_it_names(make_entry: MakeEntry) -> None:
    people = ["Ann Lee", "Bo", "Bo"]
    index = facts_beside(make_entry, people, "ann prefer tea", "bo drink tea", "bo ann", "tea")
    expected = {"m0": 1, "m1": 0, "m2": 0, "m3": 1, "m4": 0, "m5": 1, "m6": 1 / 3}  # who the last is about is not told
    asked = columns_of(index, "What does Ann drink?", people)
    assert by_id(index, asked["speaker"]) == pytest.approx(expected)
    assert by_id(index, columns_of(index, "Has Ann met Bo?", people)["subject"]) == pytest.approx(expected)


def test_a_first_name_that_two_bear_names_neither(make_entry: MakeEntry) -> None:
    people = ["Ann Lee", "Ann Ray"]
    index = facts_beside(make_entry, people, "ann lee drink tea", "ann ray drink tea", "ann drink tea")
    asked = columns_of(index, "What does Ann Lee drink?", people)
    assert by_id(index, asked["speaker"]) == pytest.approx({"m0": 1, "m1": 0, "m2": 1, "m3": 0, "m4": 0.5})


def test_a_fact_of_the_user_is_about_me(make_entry: MakeEntry) -> None:
    said = [
        make_entry(0, episode=0, author="Kim", role="user"),
        make_entry(1, episode=0, author="bot", role="assistant"),
    ]
    index = indexed([*said, make_entry(2, stems="kim prefer tea"), make_entry(3, stems="bot make tea")])
    asked = columns_of(index, "What do I drink?", ["Kim", "bot"])
    assert by_id(index, asked["speaker"]) == {"m0": 1, "m1": 0, "m2": 1, "m3": 0}


def test_facts_beside_the_users_turns_alone_tell_nobody_apart(make_entry: MakeEntry) -> None:
    assert "speaker" not in columns_of(facts_beside(make_entry, ["user"], "tea"), "What do I drink?", ["user"])


def test_what_a_fact_cannot_have_counts_neither_for_nor_against_it(make_entry: MakeEntry) -> None:
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


def test_a_question_for_a_time_favours_memories_that_tell_one(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=0, created_ms=n, flags=f) for n, f in enumerate([TELLS_TIME, 0, 7])]
    assert_column(columns_of(indexed(entries), "When was it?")["when"], [1, 0, 1])
    assert "when" not in columns_of(indexed(entries), "What was it?")


def times(*written: str) -> npt.NDArray[np.int64]:
    return np.array(written, "datetime64[ms]").astype(np.int64)


@pytest.mark.parametrize(
    ("mention", "expected"),
    [
        #                          30 Apr 23:59:59.999, 1 May 0:00, 10 May, 12 May 23:59:59.999, 13 May, 31 May, 1 June
        (DateMention(2023, 5, None), [0, 1, 1, 1, 1, 1, 0]),
        (DateMention(None, 5, None), [0, 1, 1, 1, 1, 1, 0]),
        (DateMention(2023, 5, 10), [0, 1, 2, 1.5, 1, 1, 0]),
        (DateMention(2023, 5, 1), [0, 2, 1, 1, 1, 1, 0]),  # 30 April is near, but another month
        (DateMention(2023, 5, 31), [0, 1, 1, 1, 1, 2, 0]),
        (DateMention(2023, 4, 29), [1.5, 0, 0, 0, 0, 0, 0]),
        (DateMention(2023, None, None), [0.3] * 7),
        (DateMention(2022, None, None), [0] * 7),
        (DateMention(2022, 5, 10), [0] * 7),
    ],
)
def test_the_date_column_by_hand(mention: DateMention, expected: list[float]) -> None:
    created_ms = times(
        "2023-04-30T23:59:59.999",
        "2023-05-01T00:00:00",
        "2023-05-10T12:00:00",
        "2023-05-12T23:59:59.999",
        "2023-05-13T00:00:00",
        "2023-05-31T23:59:59.999",
        "2023-06-01T00:00:00",
    )
    assert_column(date_column(created_ms, (mention,)), expected)


def test_dates_before_1970_leap_days_and_year_edges() -> None:
    created_ms = times(
        "1969-12-31T23:59:59.999", "1970-01-01T00:00:00", "2024-02-29T23:59:59.999", "1900-03-01T00:00:00"
    )
    assert_column(date_column(created_ms, (DateMention(1969, 12, 31),)), [2, 0, 0, 0])
    assert_column(date_column(created_ms, (DateMention(1970, None, None),)), [0, 0.3, 0, 0])
    assert_column(date_column(created_ms, (DateMention(None, 2, 29),)), [0, 0, 2, 0])
    assert_column(date_column(created_ms, (DateMention(1900, 3, 1),)), [0, 0, 0, 2])


def test_the_best_of_several_dates_counts() -> None:
    created_ms = times("2023-05-10", "2023-06-10", "2022-07-01")
    mentions = (DateMention(2023, 5, 9), DateMention(None, 6, None), DateMention(2022, None, None))
    assert_column(date_column(created_ms, mentions), [1.5, 1, 0.3])


@given(
    created_ms=st.integers(-62_135_596_800_000, 253_402_300_799_999),
    year=st.none() | st.integers(1, 9999),
    month=st.none() | st.integers(1, 12),
    day=st.none() | st.integers(1, 31),
    own=st.booleans(),
)
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


def test_a_date_in_the_question_weighs_event_times(make_entry: MakeEntry) -> None:
    entries = [make_entry(n, episode=0, created_ms=int(at)) for n, at in enumerate(times("2023-05-08", "2023-06-08"))]
    assert_column(columns_of(indexed(entries), "What was on May 9th 2023?")["date"], [1.5, 0])
    assert "date" not in columns_of(indexed(entries), "What was that?")


# ── the sum ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_score_is_the_weighted_sum_of_the_columns() -> None:
    columns = Columns({"a": np.array([1.0, 2.0]), "b": np.array([10.0, -1.0])}, {"a": 0.5, "b": 2.0, "unused": 9.0})
    assert_column(columns.score(), [20.5, -1.0])
    assert columns.contributions(np.array([1, 0])).tolist() == [[1.0, 0.5], [-2.0, 20.0]]


@pytest.mark.parametrize("weights", [weights for sets in WEIGHTS.values() for weights in sets.values()])
def test_only_weighted_columns_are_part_of_the_sum(make_entry: MakeEntry, weights: Mapping[str, float]) -> None:
    index = said_by(make_entry, "Ann", "Bo")
    question = understand("When did Ann say that, in May 2023?", ["Ann", "Bo"])
    columns = compute(index, question, QUERY, weights)
    assert columns.values.keys() == weights.keys() - {"subject"}
    assert columns.contributions(np.array([1, 0])).sum(axis=0).tolist() == pytest.approx(columns.score()[[1, 0]])


def test_all_columns_follow_conversation_order(make_entry: MakeEntry) -> None:
    """The same memories in another order of arrival give the same values: slots never show."""
    told: list[dict[str, Any]] = [
        {"author": "Ann", "author_stems": "ann", "stems": "red bike", "flags": HAS_QUESTION, "created_ms": 3},
        {"author": "Bo", "author_stems": "bo", "stems": "tea", "flags": TELLS_TIME, "created_ms": 1},
        {"author": "Ann", "author_stems": "ann", "stems": "bike tour", "flags": 7, "created_ms": 2},
    ]
    vectors = [RIGHT, UP, LEFT]

    def values(order: Sequence[int]) -> dict[str, list[float]]:
        entries = [make_entry(seq, episode=0, **told[which]) for seq, which in enumerate(order)]
        index = indexed(entries, {seq: vectors[which] for seq, which in enumerate(order)})
        columns = columns_of(index, "When did Ann ride the red bike in 1970?", ["Ann", "Bo"])
        return {name: column.tolist() for name, column in columns.items()}

    straight = values([0, 1, 2])
    assert straight.keys() == EVERY.keys() - {"subject"}
    for order in ([2, 1, 0], [1, 0, 2], [0, 2, 1]):
        assert values(order).keys() == straight.keys()
        for name, column in values(order).items():
            np.testing.assert_allclose(column, straight[name], rtol=1e-6, atol=1e-9, err_msg=name)
