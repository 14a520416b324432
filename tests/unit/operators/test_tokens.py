"""What tokens are counted by, and the estimate."""

import pytest

from recallflow.connectors.embedders import load_embedder
from recallflow.embedder import Kind
from recallflow.operators.recall.budget import Estimate, token_counter


class Counts:
    counted_by = "mine"

    def count_tokens(self, text: str) -> int:
        return len(text.split())


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        (" ", 1),
        ("a", 1),
        ("four", 1),
        ("fours", 2),
        ("Ann likes tea.", 4),  # 14 characters
        ("安娜", 2),
        ("安娜 likes tea", 5),  # two, and 10 characters
        ("アンナはお茶が好き。", 10),
        ("안나는 차를", 6),  # five, and a blank
        ("𠀀", 1),
        ("👍", 1),
    ],
)
def test_an_estimate_is_four_characters_a_token_and_one_for_cjk(text: str, tokens: int) -> None:
    assert Estimate().count_tokens(text) == tokens


def test_an_exact_counter_comes_before_the_embedders_and_that_before_the_estimate() -> None:
    class Embedder(Counts):
        counted_by = "the embedder"
        name, dimension = "e", 1
        kind: Kind = "contextual"
        embed = load_embedder("hash").embed

    hashing = load_embedder("hash")
    assert token_counter(Counts(), Embedder()).counted_by == "mine"
    assert token_counter(None, Embedder()).counted_by == "the embedder"
    assert token_counter(None, hashing).counted_by == "estimate"
    assert token_counter(Counts(), hashing).counted_by == "mine"
