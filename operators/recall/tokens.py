"""What a context's tokens are counted by: the exact encoding where it is at hand, else the embedder's own tokenizer,
else an estimate."""

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


def counter(exact: TokenCounter | None, embedder: Embedder) -> TokenCounter:
    """The best there is."""
    if exact is not None:
        return exact
    return embedder if isinstance(embedder, TokenCounter) else Estimate()
