"""Analysis of text in any language: words, stems, language detection, and the intent of questions.

The data of each language is a table (`tables/*.toml`). The analysis is deterministic and needs no network. It depends
on the text alone, and on an assumed language if the text's own is unclear.
"""

from recallflow.language.analysis import (
    ANALYSIS,
    DateMention,
    TextAnalysis,
    analyse,
    find_dates,
    name_stem,
    read_question,
    sentence_at,
    sentence_ends,
    sentences,
    stems,
    table_of,
)
from recallflow.language.places import StemMatch, StemPositions, find_stems
from recallflow.language.scripts import ADJOINING, UNSPACED, grams, is_character, plain
from recallflow.language.tables import ENGLISH, LATIN, RUSSIAN, Intent, Table
from recallflow.language.words import words

FUNCTION_WORDS = ENGLISH.function_words

__all__ = [
    "ADJOINING", "ANALYSIS", "ENGLISH", "FUNCTION_WORDS", "LATIN", "RUSSIAN", "UNSPACED", "DateMention", "Intent",
    "StemMatch", "StemPositions", "Table", "TextAnalysis", "analyse", "find_dates", "find_stems", "grams",
    "is_character", "name_stem", "plain", "read_question", "sentence_at", "sentence_ends", "sentences", "stems",
    "table_of", "words",
]  # fmt: skip
