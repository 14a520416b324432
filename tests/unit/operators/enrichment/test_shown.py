"""Whether what a model says of texts stands in them, in any script."""

import pytest

from recallflow.operators.enrichment.shown import names_it, sources_of, stands_in

TEXT = "I’m moving to Porto — in “March”,\nwith Anna’s\u00a0dog (he is 4)."


@pytest.mark.parametrize(
    "quote",
    ["I'm moving to Porto", "porto - in 'March', with", "Anna's dog", "he is 4", "moving  to\tPorto", "Porto in March"],
)
def test_a_quote_may_differ_in_what_models_straighten(quote: str) -> None:
    assert stands_in(quote, TEXT)


@pytest.mark.parametrize("quote", ["", " ", "…", "he", "I'm not moving", "moving Porto", "in March with dog", "4.5"])
def test_other_words_are_no_quote(quote: str) -> None:
    assert not stands_in(quote, TEXT)


@pytest.mark.parametrize(
    ("quote", "text"), [("我住在里斯本", "去年起我住在里斯本。"), ("я живу", "Да, я живу тут"), ("ok", "Ok!")]
)
def test_quote_matches_any_script_and_short_texts_whole(quote: str, text: str) -> None:
    assert stands_in(quote, text)


@pytest.mark.parametrize(
    ("name", "text", "is_named"),
    [
        ("Ann", "I saw Ann's dog.", True),
        ("Ann", "I saw Anna.", False),
        ("Rio de Janeiro", "in rio de\njaneiro", True),
        ("王小明", "我的朋友王小明住在这里", True),
        ("민수", "민수는 왔다", True),
        ("", "x", False),
    ],
)
def test_a_name_stands_as_a_whole(name: str, text: str, is_named: bool) -> None:
    assert names_it(text, name) is is_named


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("She has been to Porto since 2025.", []),
        ("We saw Anna Silva there.", [0]),
        ("We saw Anna Silva and Bob.", [0, 1]),
        ("We saw Mallory.", None),
        ("It costs 12 there.", None),
        ("Там была Анна с Борисом.", [2]),
        ("It is so.", []),
    ],
)
def test_names_and_numbers_have_a_source_with_whatever_ending(text: str, used: list[int] | None) -> None:
    others = ["Anna Silva sings.", "Bob has 3 cats, and Bob is 40.", "Я видел Анну и Бориса."]
    assert sources_of(text, ["I like Porto.", "2025"], others) == used
