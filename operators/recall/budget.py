"""Budgets of tokens, and what counts them."""

import re

from recallflow.embedder import Embedder, TokenCounter

CHARACTERS_PER_TOKEN = 4
# Han, kana, Hangul and their punctuation: about a token each, as no encoding has words of them.
_CJK = re.compile(
    "[\u1100-\u11ff\u3000-\u30ff\u3100-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\uff00-\uffef\U00020000-\U0003134f]"
)


class Estimate:
    """A token for every four characters, rounded up, and for every character of Chinese, Japanese and Korean."""

    counted_by = "estimate"

    def count_tokens(self, text: str) -> int:
        cjk = len(_CJK.findall(text))
        return cjk + -(-(len(text) - cjk) // CHARACTERS_PER_TOKEN)


def token_counter(exact: TokenCounter | None, embedder: Embedder) -> TokenCounter:
    """The best there is: the exact encoding, the embedder's own tokenizer, or an estimate."""
    if exact is not None:
        return exact
    return embedder if isinstance(embedder, TokenCounter) else Estimate()


class Budget:
    """The tokens that a context may have, and those that it has."""

    def __init__(self, max_tokens: int, counter: TokenCounter) -> None:
        self.spent = 0
        self._max = max_tokens
        self._counter = counter

    def spend(self, text: str, end: float) -> bool:
        """Spends a text's tokens if the whole text fits below this share of the budget, and returns whether it does. A
        text without tokens says nothing, and does not fit."""
        tokens = self._counter.count_tokens(text)
        if not tokens or self.spent + tokens > self._max * end:
            return False
        self.spent += tokens
        return True

    def is_open(self, end: float) -> bool:
        """Whether the shortest text would still fit."""
        return self.spent + 1 <= self._max * end
