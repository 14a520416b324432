"""Characters: their scripts, their normal forms, and n-grams."""

import re
import unicodedata

import regex

# Scripts without spaces between words.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u3005-\u3007\u303b\u30fc\uff66-\uff9f"
UNSPACED_LETTER = regex.compile(f"[{UNSPACED}]")
# Next to these characters a word may start or end without a space: the same scripts, and Korean, which has particles.
ADJOINING = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u303b\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003134f"
)
# A letter, digit or mark outside Latin script. Without one, `\w+` finds the words of a text.
BEYOND_LATIN = re.compile(r"[^\W\x00-\u024f\u1e00-\u1eff]|[\u0300-\u036f]")
KANA = re.compile("[\u3040-\u30ff]")
_SPACED = "arabic", "armenian", "cyrillic", "devanagari", "greek", "hangul", "tamil", "latin"
_SCRIPT = regex.compile("|".join([*(rf"(?P<{one}>\p{{{one}}})" for one in _SPACED), f"(?P<unspaced>[{UNSPACED}])"]))
_MARKS = regex.compile(r"[\u0300-\u036f]")
_INVISIBLE = regex.compile(r"[\p{Cf}\ufe00-\ufe0f]")  # soft hyphens, joiners, directions: they separate no words
_SIGNS = str.maketrans(dict.fromkeys("™℠®©", " "))  # NFKC would replace them by letters
_LATIN_FORMS = str.maketrans({"ß": "ss", "ı": "i", "ø": "o", "ł": "l", "đ": "d", "œ": "oe", "æ": "ae"})
_ARABIC_FORMS = str.maketrans(dict.fromkeys("أإآٱ", "ا") | {"ؤ": "و", "ئ": "ي", "ک": "ك", "ی": "ي"})
_ARABIC_MARKS = re.compile("[\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0640]")
_FINAL_HA = re.compile(r"ه\b")  # often written in place of a final ta marbuta
_NASAL = re.compile("[\u0919\u091e\u0923\u0928\u092e]\u094d(?=[\u0915-\u092e])")  # often written as a dot
_HANGUL = re.compile("[\uac00-\ud7a3]")
_ARABIC = re.compile("[\u0600-\u06ff]")
_DEVANAGARI = re.compile("[\u0900-\u097f]")
# More marks on a character than any language uses (Unicode's stream-safe format): they normalise in quadratic time.
_STACKED = regex.compile(r"(?<=\p{M}{30})\p{M}+")
EXPANSION_MOST = 4  # normalisation cuts a text at this multiple of its length; one character can become 18
_DIGIT = re.compile("[٠-٩۰-۹०-९]")
_DIGITS = {ord(character): str(unicodedata.digit(character)) for character in "٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹०१२३४५६७८९"}
_GRAM = 4
_SHORT_GRAM = 3  # of scripts that omit vowels


def normalised(text: str) -> str:
    """Return the text with one form of each character (NFKC), and without invisible characters."""
    if text.isascii():
        return text
    text = _STACKED.sub("", _INVISIBLE.sub("", text))
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text.translate(_SIGNS))[: EXPANSION_MOST * len(text)]
    text = text.replace("İ", "i")
    return text.translate(_DIGITS) if _DIGIT.search(text) else text


def plain(text: str) -> str:
    """Return the text in lower case without marks that informal writing omits: accents and dots in Latin script, vowel
    marks and forms of alef in Arabic, nukta and candrabindu in Devanagari."""
    text = normalised(text).lower()
    return text if text.isascii() else folded(text)


def folded(text: str) -> str:
    """Return `plain` of a text that is already normalised and in lower case."""
    if text.isascii():
        return text
    if not BEYOND_LATIN.search(text):
        return without_accents(text)
    if _ARABIC.search(text):
        text = _FINAL_HA.sub("ة", _ARABIC_MARKS.sub("", text).translate(_ARABIC_FORMS))
    if _DEVANAGARI.search(text):
        text = _NASAL.sub("\u0902", text.replace("\u093c", "").replace("\u0901", "\u0902"))
    return text.replace("ё", "е")


def without_accents(text: str) -> str:
    """Return the text with basic Latin letters in place of accented ones."""
    return _MARKS.sub("", unicodedata.normalize("NFD", text.translate(_LATIN_FORMS)))


def is_character(word: str) -> bool:
    """Return whether the word is a single character of a script without spaces."""
    return len(word) == 1 and UNSPACED_LETTER.match(word) is not None


def script_of(word: str) -> str:
    """Return the script of the word's first letter; an empty string for numbers and unsupported scripts."""
    found = _SCRIPT.search(word)
    return found.lastgroup or "" if found else ""


def grams(word: str) -> list[str]:
    """Return the n-grams of a word with marked ends: of four characters; in Korean of four letters, in Arabic of three.
    Return the single characters of a word in a script without spaces."""
    size = _GRAM
    if not word.isascii():
        script = script_of(word)
        if script == "unspaced":
            return [*word]
        if script == "arabic":
            size = _SHORT_GRAM
        elif script == "hangul" and _HANGUL.search(word):
            word = unicodedata.normalize("NFD", word)  # to letters: inflection changes letters within a syllable
    marked = f"<{word}>"
    return [marked[at : at + size] for at in range(max(1, len(marked) - size + 1))]
