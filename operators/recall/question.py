"""Rule-based analysis of a question: participants, dates, stems, wordings, and its intent.

An intent is matched by the wordings of the question's language (`language/tables`), and selects the mode of `auto`. A
question that matches no wording is `factual`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import regex

from recallflow import limits
from recallflow.caching import BoundedCache
from recallflow.language.analysis import DateMention, find_dates, name_stem, read_question, table_of
from recallflow.language.scripts import ADJOINING, plain
from recallflow.language.tables import ENGLISH, Intent, Table
from recallflow.queries import Mode


class Vocabulary(NamedTuple):
    """The languages and stems of an owner's memories."""

    languages: Sequence[int] = (0,)  # indices in `language.LATIN`, the most frequent first
    holds: Callable[[str], bool] = bool  # returns whether any memory holds a stem


ANY_VOCABULARY = Vocabulary()
_LETTER = rf"[^\W{ADJOINING}]"  # a name neither begins nor ends next to a letter
_WORD_CHARACTER = regex.compile(_LETTER)
_WORD = regex.compile(r"[^\W\d_]+")
_POSSESSIVE = regex.compile(r"['’]s\b")


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    table: Table  # its language
    # The text to embed. The words "I" and "my" stand for participants' names in it, because a model overweights names,
    # and participants write "I" in their messages.
    first_person_text: str
    named: tuple[str, ...]  # participants in the order of mention
    first_person: bool
    stems: tuple[str, ...]
    stems_without_names: tuple[str, ...]
    dates: tuple[DateMention, ...]
    asks_when: bool


def analyse_question(text: str, participants: Iterable[str], vocabulary: Vocabulary = ANY_VOCABULARY) -> Question:
    """Analyse a question about conversations between `participants`."""
    table = table_of(text, vocabulary.languages)
    named = find_participants(text, participants, table)
    first_person_text = nameless = text
    for spelling in named.values():
        first_person_text = _replace_name(first_person_text, spelling, table.i, table.my)
        nameless = _replace_name(nameless, spelling, " ", " ")
    searched = text if table is ENGLISH else plain(text)
    stems = tuple(_stems_in_memories(text, table, vocabulary))
    return Question(
        text=text,
        table=table,
        first_person_text=" ".join(first_person_text.split()),
        named=tuple(named),
        first_person=bool(table.first_person.search(searched)),
        stems=stems,
        stems_without_names=stems if nameless == text else tuple(_stems_in_memories(nameless, table, vocabulary)),
        dates=find_dates(text, table, limits.QUERY_DATES),
        asks_when=bool(table.when.search(searched)),
    )


def _stems_in_memories(text: str, table: Table, vocabulary: Vocabulary) -> list[str]:
    """Return the stems of a text's first content words. Each one costs a lookup in all memories. If a word has
    several possible stems, keep those that occur in memories, or the first one if none does."""
    found: list[str] = []
    for stems in read_question(text, table, vocabulary.languages):
        found += ([stem for stem in stems if vocabulary.holds(stem)] or stems[:1]) if len(stems) > 1 else stems
    wanted = set(islice(dict.fromkeys(found), limits.QUERY_WORDS))
    return [stem for stem in found if stem in wanted]


def find_participants(text: str, participants: Iterable[str], table: Table) -> dict[str, str]:
    """Return the spelling in the text by participant, in the order of mention. A unique first name suffices."""
    spellings: dict[str, list[str]] = {}
    first_names: dict[str, int] = {}
    for participant in participants:
        first, *rest = participant.split() or [participant]
        spellings[participant] = [participant, first] if rest else [participant]
        first_names[first.lower()] = first_names.get(first.lower(), 0) + 1
    found: dict[str, tuple[int, str]] = {}
    lowered = text.lower()
    # Most languages inflect names (Анна, Анне), so capitalised words are compared by their stems.
    capitalised = () if table is ENGLISH else (word for word in _WORD.findall(text) if word[0].isupper())
    by_stem = {name_stem(word, table): word for word in capitalised}
    # Longest first, and matches are blanked out: "Ann Smith" does not also mention Ann.
    for participant in sorted(spellings, key=lambda name: (-len(name), name)):
        for form in spellings[participant]:
            is_ambiguous = form != participant and first_names[form.lower()] > 1
            is_present = not is_ambiguous and _occurs_in(lowered, form.lower())
            spelling = _spelling_in(form, text, table) if is_present else None
            if by_stem and not is_ambiguous and spelling is None:
                spelling = by_stem.get(name_stem(form, table))
            # A spelling that does not occur any longer was part of a longer name.
            if spelling is not None and (starts := [*_occurrences(text, spelling)]):
                found[participant] = starts[0], spelling
                for at in starts:
                    text = text[:at] + " " * len(spelling) + text[at + len(spelling) :]
                lowered = text.lower()
                break
        if len(found) == limits.NAMED_MAX:
            break
    return {participant: spelling for participant, (_, spelling) in sorted(found.items(), key=lambda one: one[1])}


def _occurrences(text: str, name: str) -> Iterator[int]:
    """Yield the start of each occurrence of a name as a separate word. A pattern would take 0.7 ms to compile."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        is_separate = not (_WORD_CHARACTER.match(text[at - 1 : at]) or _WORD_CHARACTER.match(text[end : end + 1]))
        if is_separate:
            yield at
        at = text.find(name, end if is_separate else at + 1)


def _occurs_in(text: str, name: str) -> bool:
    # Most participants are absent: a string search rules them out in a third of the time.
    return name in text and next(_occurrences(text, name), None) is not None


def _replace_name(text: str, name: str, pronoun: str, possessive: str) -> str:
    """Return the text with `pronoun` in place of a name, and `possessive` in place of its possessive form."""
    parts, last = list[str](), 0
    for at in _occurrences(text, name):
        if at >= last:
            end = at + len(name)
            ending = _POSSESSIVE.match(text, end)
            parts += text[last:at], possessive if ending else pronoun
            last = ending.end() if ending else end
    return "".join([*parts, text[last:]])


def _spelling_in(name: str, text: str, table: Table) -> str | None:
    """Return the name as spelt in the text. An ordinary word is a name only if capitalised (Will and will)."""
    ordinary = table.has_spaces and (name.lower() in table.function_words or name.lower() in table.months)
    if _occurs_in(text, name) and (not ordinary or name[0].isupper()):
        return name
    spellings = (match[0] for match in _patterns[name].finditer(text))
    return next((spelling for spelling in spellings if not ordinary or spelling[0].isupper()), None)


# The same names recur in many questions. The standard library takes twenty times as long to compile a pattern.
_patterns = BoundedCache[str, regex.Pattern[str]](
    lambda name: regex.compile(rf"(?<!{_LETTER}){regex.escape(name)}(?!{_LETTER})", regex.IGNORECASE), 4 * 1024 * 1024
)
# By priority: what to do (summary, procedural) precedes what the question is about.
_INTENT_ORDER: tuple[Intent, ...] = ("summary", "procedural", "temporal", "preference", "entity")
# The mode that `auto` takes for each intent (docs/internals/decisions/09).
MODE_OF: Mapping[Intent, Mode] = {
    "temporal": "hybrid",
    "entity": "hybrid",
    "preference": "hybrid",
    "procedural": "relevance",
    "summary": "episode",
    "factual": "hybrid",
}


def intent_of(question: Question) -> Intent:
    """Return the first intent with a matching wording, or `factual`."""
    text = question.text if question.table is ENGLISH else plain(question.text)
    for intent in _INTENT_ORDER:
        if intent == "temporal" and (question.asks_when or question.dates):
            return intent
        if question.table.intents[intent].search(text):
            return intent
    return "factual"
