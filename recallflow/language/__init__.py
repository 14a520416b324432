"""Text in any language: its words, their stems, which language it is in, and what a question in it asks for.

One table per language says what a native knows (`tables/*.toml`); no network, nothing random, and what is found in a
text rests on the text alone, with a language to assume where it does not tell its own.
"""

from recallflow.language.analysis import (
    ANALYSIS,
    Reading,
    name_stem,
    read,
    read_question,
    sentence_at,
    sentence_ends,
    sentences,
    stems,
)
from recallflow.language.dates import DateMention, find_dates
from recallflow.language.detection import table_of
from recallflow.language.grams import grams
from recallflow.language.places import Found, PlacedStems, find_stems
from recallflow.language.scripts import ADJOINING, UNSPACED, is_character, plain
from recallflow.language.tables import ENGLISH, LATIN, RUSSIAN, Intent, Table
from recallflow.language.words import words

FUNCTION_WORDS = ENGLISH.function_words

__all__ = [
    "ADJOINING",
    "ANALYSIS",
    "ENGLISH",
    "FUNCTION_WORDS",
    "LATIN",
    "RUSSIAN",
    "UNSPACED",
    "DateMention",
    "Found",
    "Intent",
    "PlacedStems",
    "Reading",
    "Table",
    "find_dates",
    "find_stems",
    "grams",
    "is_character",
    "name_stem",
    "plain",
    "read",
    "read_question",
    "sentence_at",
    "sentence_ends",
    "sentences",
    "stems",
    "table_of",
    "words",
]
