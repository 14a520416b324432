"""Static word vectors of everyday words in thirteen languages.

The table in the package (made by `python -m tools.word_vectors`) holds a vector for each of 27,000 English words:
"dog" is close to "pet". A word of another language has the vectors of the English words that translate it. A word that
the table lacks has no vector: names, rare words and typing errors are compared by their spelling."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from importlib import resources
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recallflow.caching import BoundedCache
from recallflow.language.analysis import detect, has_foreign_word
from recallflow.language.scripts import BEYOND_LATIN, folded, normalised, script_of
from recallflow.language.tables import BY_SCRIPT, ENGLISH, LATIN, Table
from recallflow.language.words import (
    ANY_WORD,
    LATIN_WORD,
    ascii_words,
    has_meaning,
    latin_stems,
    runs,
    stemmer,
    unspaced_table,
)

TABLE = resources.files("recallflow.language") / "word_vectors.npz"
# The bit of nouns for persons; the other bits mean personal attributes (tools/vocabulary/marks.toml).
PERSON = 1
LOOKUP_VERSION = b"2"  # increment it if a text's words or their rows change: stored vectors would not fit new ones
# Arrays of a language other than English: its forms, then the stems that are no forms; the first row of each form;
# further rows, as pairs of a form's index and a row; for each stem, the index of the first form with this stem.
# Stems are stored, because Snowball would need up to 0.3 s for the forms of a language.
PARTS = ("forms", "rows", "further", "stemmed")
_CACHE_BYTES = 8 * 1024 * 1024
_BLOCK = 64  # texts summed in one operation: their vectors fit into the processor's cache
_LONGEST = 8  # characters of the longest dictionary word in a script without spaces
# Minimum length of a part of a longer word: a shorter one is rarely a word ("car" is no component of "carpet").
_PREFIX, _SUFFIX = 5, 4
_HANGUL_PREFIX = 2
_COMPOUNDING = "de"  # the language with compounds such as Stromrechnung
FUNCTION_WORD, KNOWN_FORM, KNOWN_STEM = 4, 2, 1  # scores of a language for a word: an equal stem may be chance
ENGLISH_LETTERS = "ai"  # words of one letter
Rows = tuple[int, ...]
Matrix = npt.NDArray[np.float32]


class WordRows(NamedTuple):
    """The words of a text, the rows of each word in the table, and the language in which they were looked up."""

    table: Table
    words: list[str]
    rows: list[Rows]


class WordVectors:
    """The table, and the lookup of a text's words in it. Threads may share it. The vectors are `codes` (words,
    dimension) int8 times `scales` (words, 1); a vector's L2 norm is its word's weight. `marks` are bits, by row."""

    def __init__(self) -> None:
        with TABLE.open("rb") as file, np.load(file) as stored:
            self.codes: npt.NDArray[np.int8] = stored["codes"]
            self.scales: Matrix = stored["scales"].astype(np.float32)[:, np.newaxis]
            # A tuple per row, shared by all languages: tens of thousands of new tuples would start garbage collections.
            self._single: list[Rows] = [(row,) for row in range(len(self.codes))]
            self.english = dict(zip(_unpacked(stored["words"]), self._single, strict=False))
            self.marks: list[int] = stored["marks"].tolist()
            stems = zip(_unpacked(stored["stems"]), stored["stem_rows"].tolist(), strict=True)
            self._english_stems = {stem: self._single[row] for stem, row in stems}
        self.dimension = self.codes.shape[1]
        self._lexicons: dict[str, dict[str, Rows]] = {}
        self._rows_of_english: BoundedCache[str, Rows] = BoundedCache(self._english_rows, _CACHE_BYTES)
        self._scores_of: BoundedCache[str, tuple[tuple[int, int], ...]] = BoundedCache(
            self._language_scores, _CACHE_BYTES
        )
        self._rows_of: dict[str, BoundedCache[str, Rows]] = {}

    @cached_property
    def digest(self) -> str:
        """Return the part of the embedder's name that changes with the vectors and with the lookup."""
        return hashlib.blake2b(LOOKUP_VERSION + TABLE.read_bytes(), digest_size=4).hexdigest()

    def look_up(self, text: str) -> WordRows:
        """Return the text's words with their rows, and the language in which they were looked up."""
        cased = text
        if text.isascii():
            words, lowered = ascii_words(text), text.lower()
        else:
            cased = normalised(text)
            lowered = cased.lower()
            if BEYOND_LATIN.search(lowered):
                return self._look_up_scripts(folded(lowered))
            words = LATIN_WORD.findall(lowered)
        table = self._latin_table(words, cased, lowered)
        if not text.isascii():
            words = LATIN_WORD.findall(folded(lowered))
        found = self._rows_of_english if table is ENGLISH else self._lookup(table)
        return WordRows(table, words, [*map(found.__getitem__, words)])

    def _latin_table(self, words: Sequence[str], cased: str, lowered: str) -> Table:
        """Return the language of a text in Latin script. If its words identify none, return the language that knows the
        words best, and the first of `LATIN` at a tie. If English knows all words, another language must know several of
        them, and none may be a word of English grammar, because names and loan words are in many languages."""
        number, is_certain = detect(words, lowered, 0)
        is_english = not is_certain and all(map(self._rows_of_english.__getitem__, words))
        if is_certain:
            return LATIN[number]
        spelt = ANY_WORD.findall(cased)
        if is_english and not has_foreign_word(words) and all(map(str.isascii, spelt)):
            return ENGLISH
        read = [word.lower() for word in (without_names(spelt) if is_english else spelt)]
        scores, known = [0] * len(LATIN), [0] * len(LATIN)
        for word in read:
            for number, score in self._scores_of[word]:
                scores[number] += score
                known[number] += 1
        best = scores.index(max(scores))
        if is_english and best and (known[best] < 2 or not _english_grammar(best).isdisjoint(read)):
            return ENGLISH
        return LATIN[best]

    def _language_scores(self, word: str) -> tuple[tuple[int, int], ...]:
        """Return the indexes in `LATIN` of the languages that know a word, each with a score. Numbers count as English.
        A single letter counts if it is a function word of exactly one language, such as the French "j"."""
        plain = folded(word)
        scores = [self._score(table, plain) for table in (LATIN[:1] if word.isdecimal() else LATIN)]
        found = tuple((number, score) for number, score in enumerate(scores) if score)
        return found if len(word) > 1 or (len(found) == 1 and plain not in ENGLISH_LETTERS) else ()

    def _score(self, table: Table, word: str) -> int:
        if word in table.function_words:
            return FUNCTION_WORD
        if len(word) == 1:
            return 0
        if table is ENGLISH:
            return KNOWN_FORM if word in self.english else KNOWN_STEM if self._rows_of_english[word] else 0
        lexicon = self._lexicon(table)
        return KNOWN_FORM if word in lexicon else KNOWN_STEM if stemmer(table)(word) in lexicon else 0

    def sum_texts(self, texts: Sequence[str]) -> Matrix:
        """Return the sum of each text's vectors, (texts, dimension): zeros if no word is known."""
        sums = np.empty((len(texts), self.dimension), np.float32)
        for start in range(0, len(texts), _BLOCK):
            block = texts[start : start + _BLOCK]
            rows = [[*chain.from_iterable(self.look_up(text).rows)] for text in block]
            sums[start : start + _BLOCK] = self.sum_rows(rows)
        return sums

    def sum_rows(self, rows: Sequence[Sequence[int]]) -> Matrix:
        """Return the sum of the vectors at each sequence of rows, (sequences, dimension)."""
        sums = np.zeros((len(rows), self.dimension), np.float32)
        filled = [number for number, sequence in enumerate(rows) if sequence]
        if filled:
            at = np.fromiter(chain.from_iterable(rows), np.int64)
            starts = np.cumsum([0, *(len(rows[number]) for number in filled[:-1])])
            # `reduceat` adds a text's vectors one after the other, so that a sum is the same in any batch.
            sums[filled] = np.add.reduceat(self.codes.take(at, axis=0) * self.scales.take(at, axis=0), starts, axis=0)
        return sums

    def _english_rows(self, word: str) -> Rows:
        if (found := self.english.get(word)) is not None:
            return found
        if len(word) < 2:
            return ()
        stem = latin_stems[0][word]
        return self.english.get(stem) or self._english_stems.get(stem) or ()

    def _lookup(self, table: Table) -> BoundedCache[str, Rows]:
        """Return the rows by word of a language that is not English."""
        if table.code not in self._rows_of:
            translate = partial(self._translated, table=table, lexicon=self._lexicon(table), stem=stemmer(table))
            self._rows_of[table.code] = BoundedCache(translate, _CACHE_BYTES)
        return self._rows_of[table.code]

    def _lexicon(self, table: Table) -> dict[str, Rows]:
        """Return the rows by form and, in a language with spaces, by stem."""
        if table.code not in self._lexicons:
            with TABLE.open("rb") as file, np.load(file) as stored:
                forms, first, further, stemmed = (stored[f"{table.code}_{part}"] for part in PARTS)
            rows = [*map(self._single.__getitem__, first.tolist())]
            for at, row in further.tolist():
                rows[at] += (row,)
            rows += [rows[at] for at in stemmed.tolist()]
            self._lexicons[table.code] = dict(zip(_unpacked(forms), rows, strict=True))
        return self._lexicons[table.code]

    def _translated(self, word: str, table: Table, lexicon: dict[str, Rows], stem: Callable[[str], str]) -> Rows:
        if word.isdigit():
            return self._english_rows(word)
        if (found := lexicon.get(word)) is not None:
            return found
        if not (stemmed := stem(word)):
            return ()  # a function word
        if (found := lexicon.get(stemmed)) is not None:
            return found
        if word.isascii() and word in self.english:
            return self.english[word]
        return _parts(word, table, lexicon)

    def _look_up_scripts(self, lowered: str) -> WordRows:
        words, found, own = list[str](), list[Rows](), ENGLISH
        unspaced = unspaced_table(lowered)
        for run, is_unspaced, _ in runs(lowered):
            if is_unspaced:
                own = unspaced
                parts = _segmented(run, self._lexicon(unspaced))
                words += [part for part, _ in parts]
                found += [rows for _, rows in parts]
            elif has_meaning(run):
                table = BY_SCRIPT.get(script_of(run))
                words.append(run)
                if table is None:
                    found.append(self._rows_of_english[run])
                else:
                    own = table
                    found.append(self._lookup(table)[run])
        return WordRows(own, words, found)


@cache
def _english_grammar(number: int) -> frozenset[str]:
    """Return the function words of English that the language with this index in `LATIN` lacks."""
    return ENGLISH.function_words - LATIN[number].function_words


def without_names(words: Sequence[str]) -> Iterator[str]:
    """Yield the words that begin with no capital, and the first word, unless it belongs to a name ("Los Angeles")."""
    for at, word in enumerate(words):
        if not word[0].isupper() or (at == 0 and not (len(words) > 1 and words[1][0].isupper())):
            yield word


def _parts(word: str, table: Table, lexicon: dict[str, Rows]) -> Rows:
    """Return the rows of the longest known beginning, and in a compounding language of the longest known end."""
    script = script_of(word)
    least = _HANGUL_PREFIX if script == "hangul" else _PREFIX
    ends = range(len(word) - 1, least - 1, -1)
    end = next((end for end in ends if word[:end] in lexicon), 0)
    found = lexicon[word[:end]] if end else ()
    if table.code == _COMPOUNDING:
        begins = range(max(end, 1), len(word) - _SUFFIX + 1)
        found += next((lexicon[word[begin:]] for begin in begins if word[begin:] in lexicon), ())
    return found


def _segmented(run: str, lexicon: dict[str, Rows]) -> list[tuple[str, Rows]]:
    """Return the known words of a run without spaces, with their rows: at each position the longest word."""
    found: list[tuple[str, Rows]] = []
    at = 0
    while at < len(run):
        ends = range(min(len(run), at + _LONGEST), at, -1)
        end = next((end for end in ends if run[at:end] in lexicon), 0)
        if end:
            found.append((run[at:end], lexicon[run[at:end]]))
        at = end or at + 1
    return found


def _unpacked(stored: npt.NDArray[Any]) -> list[str]:
    return stored.tobytes().decode().split("\n")


@cache
def word_vectors() -> WordVectors:
    """Return the table, which the first call loads."""
    return WordVectors()
