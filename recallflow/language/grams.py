"""The parts of a word that its spelling is compared by."""

from recallflow.language.scripts import jamo, script_of

_GRAM = 4
_SHORT_GRAM = 3  # of scripts that leave vowels out


def grams(word: str) -> list[str]:
    """Each four neighbouring characters, ends marked; letters in Korean, three in Arabic, and single characters of a
    word in a script without blanks."""
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
