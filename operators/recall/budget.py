"""Token budgets and token counters."""

import re

from recallflow.embedder import Embedder, TokenCounter

CHARACTERS_PER_TOKEN = 4
# Han, kana, Hangul and their punctuation: about one token per character, because encodings hold no whole words of them.
_CJK = re.compile(
    "[\u1100-\u11ff\u3000-\u30ff\u3100-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\uff00-\uffef\U00020000-\U0003134f]"
)


class Estimate:
    """Estimates one token per four characters, rounded up, and one per Chinese, Japanese or Korean character."""

    counted_by = "estimate"

    def count_tokens(self, text: str) -> int:
        cjk = len(_CJK.findall(text))
        return cjk + -(-(len(text) - cjk) // CHARACTERS_PER_TOKEN)


def token_counter(exact: TokenCounter | None, embedder: Embedder) -> TokenCounter:
    """Return the most exact counter: the exact encoding, else the embedder's tokenizer, else an estimate."""
    if exact is not None:
        return exact
    return embedder if isinstance(embedder, TokenCounter) else Estimate()


class Budget:
    """The token budget of a context, and the tokens spent so far."""

    def __init__(self, max_tokens: int, counter: TokenCounter) -> None:
        self.spent = 0
        self._max = max_tokens
        self._counter = counter

    def spend(self, text: str, end: float) -> bool:
        """Spend a text's tokens if the whole text fits, and return whether it does. A text without tokens does not fit.

        Args:
            end: share of the budget, 0 to 1, up to which the text may fill it.
        """
        tokens = self._counter.count_tokens(text)
        if not tokens or self.spent + tokens > self._max * end:
            return False
        self.spent += tokens
        return True

    def replace(self, part: str, whole: str, end: float) -> bool:
        """Spend the tokens that a whole text has more than its part, if they fit, and return whether they do."""
        more = self._counter.count_tokens(whole) - self._counter.count_tokens(part)
        if self.spent + more > self._max * end:
            return False
        self.spent += more
        return True

    def is_open(self, end: float) -> bool:
        """Return whether a text of one token fits."""
        return self.spent + 1 <= self._max * end
