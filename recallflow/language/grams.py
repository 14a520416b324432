"""Character n-grams of words, for the comparison of spellings."""

from recallflow.language.scripts import jamo, script_of

_GRAM = 4
_SHORT_GRAM = 3  # of scripts that omit vowels


def grams(word: str) -> list[str]:
    """Return the n-grams of a word with marked ends: four characters, four letters in Korean, three in Arabic. Return
    the single characters of a word in a script without spaces."""
    size = _GRAM
    if not word.isascii():
        script = script_of(word)
        if script == "unspaced":
            return [*word]
        if script == "arabic":
            size = _SHORT_GRAM
        elif script == "hangul":
            word = jamo(word)
    marked = f"<{word}>"
    return [marked[at : at + size] for at in range(max(1, len(marked) - size + 1))]
