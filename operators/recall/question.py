"""What a question says, by rules: whom it names, which dates, what it asks for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import regex

from recallflow import limits
from recallflow.caching import Kept
from recallflow.language import (
    ADJOINING,
    ENGLISH,
    DateMention,
    Table,
    find_dates,
    name_stem,
    plain,
    read_question,
    table_of,
)


class Vocabulary(NamedTuple):
    """What a question may meet in an owner's memories: the languages they are in, by their places in `language.LATIN`,
    the commonest first, and whether any memory holds a stem."""

    languages: Sequence[int] = (0,)
    holds: Callable[[str], bool] = bool


ANYTHING = Vocabulary()

_LETTER = rf"[^\W{ADJOINING}]"  # beside which no name begins or ends
_OF_WORD = regex.compile(_LETTER)
_WORD = regex.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, understood. `own_words` is what to embed: participants' names in it stand as I and my, since a
    model fixates on a name, and their messages say I. `named`: participants, in the order in which it names them;
    `table`: its language."""

    text: str
    table: Table
    own_words: str
    named: tuple[str, ...]
    first_person: bool
    stems: tuple[str, ...]
    bare_stems: tuple[str, ...]
    dates: tuple[DateMention, ...]
    asks_when: bool


def understand(text: str, participants: Iterable[str], vocabulary: Vocabulary = ANYTHING) -> Question:
    """Reads a question about conversations between `participants`."""
    table = table_of(text, vocabulary.languages)
    named = named_in(text, participants, table)
    own_words = bare = text
    for spelling in named.values():
        own_words = _whole(spelling).sub(table.i, _whole(spelling, r"['’]s\b").sub(table.my, own_words))
        bare = _whole(spelling, r"(?:['’]s\b)?").sub(" ", bare)
    seen = text if table is ENGLISH else plain(text)
    stems = tuple(_looked_up(text, table, vocabulary))
    return Question(
        text=text,
        table=table,
        own_words=" ".join(own_words.split()),
        named=tuple(named),
        first_person=bool(table.first_person.search(seen)),
        stems=stems,
        bare_stems=stems if bare == text else tuple(_looked_up(bare, table, vocabulary)),
        dates=find_dates(text, table, limits.QUERY_DATES),
        asks_when=bool(table.when.search(seen)),
    )


def _looked_up(text: str, table: Table, vocabulary: Vocabulary) -> list[str]:
    """The stems of a text's first content words. Each one costs a look through all memories."""
    found = [stem for stems in read_question(text, table, vocabulary.languages) for stem in _held(stems, vocabulary)]
    wanted = set(islice(dict.fromkeys(found), limits.QUERY_WORDS))
    return [stem for stem in found if stem in wanted]


def _held(alternatives: tuple[str, ...], vocabulary: Vocabulary) -> Sequence[str]:
    """Of the stems that a word may have, those that memories hold, or else the first."""
    if len(alternatives) == 1:
        return alternatives
    return [stem for stem in alternatives if vocabulary.holds(stem)] or alternatives[:1]


def named_in(text: str, participants: Iterable[str], table: Table) -> dict[str, str]:
    """Participant → the spelling found in the text: the full name, or the first one where only one bears it. In the
    order in which they are named."""
    spellings: dict[str, list[str]] = {}
    first_names: dict[str, int] = {}
    for participant in participants:
        first, *rest = participant.split() or [participant]
        spellings[participant] = [participant, first] if rest else [participant]
        first_names[first.lower()] = first_names.get(first.lower(), 0) + 1
    found: dict[str, tuple[int, str]] = {}
    lowered, bent = text.lower(), _bent(text, table)
    # Longest first, and what was found is blanked out: "Ann Smith" does not name Ann as well.
    for participant in sorted(spellings, key=lambda name: (-len(name), name)):
        for form in spellings[participant]:
            shared = form != participant and first_names[form.lower()] > 1
            standing = not shared and _stands_in(form.lower(), lowered)
            spelling = _spelled(form, text, table) if standing else None
            if bent and not shared and spelling is None:
                spelling = bent.get(name_stem(form, table))
            if spelling is not None:
                places = [match.start() for match in _whole(spelling).finditer(text)]
                if not places:  # it was part of a longer name
                    continue
                found[participant] = places[0], spelling
                text = _whole(spelling).sub(" " * len(spelling), text)
                lowered = text.lower()
                break
        if len(found) == limits.NAMED_MAX:
            break
    return {participant: spelling for participant, (_, spelling) in sorted(found.items(), key=lambda one: one[1])}


def _bent(text: str, table: Table) -> dict[str, str]:
    """The words with a capital by their stems: most languages bend names (Анна, Анне)."""
    if table is ENGLISH:
        return {}
    return {name_stem(word, table): word for word in _WORD.findall(text) if word[0].isupper()}


def _stands_in(name: str, text: str) -> bool:
    """Whether the name is in the text as a word of its own. For most participants it is not, and to find that out
    without a pattern is a thousand times faster than to make one."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not (_is_of_word(text[at - 1 : at]) or _is_of_word(text[end : end + 1])):
            return True
        at = text.find(name, at + 1)
    return False


def _is_of_word(character: str) -> bool:
    return _OF_WORD.match(character) is not None


def _spelled(name: str, text: str, table: Table) -> str | None:
    """The name as the text writes it. An ordinary word is a name only with a capital (a Will is not every will)."""
    ordinary = table.blanks and (name.lower() in table.function_words or name.lower() in table.months)
    found = [match[0] for match in _whole(name, flags=regex.IGNORECASE).finditer(text)]
    if ordinary:
        found = [spelling for spelling in found if spelling[0].isupper()]
    return name if name in found else next(iter(found), None)


def _whole(name: str, behind: str = "", flags: int = 0) -> regex.Pattern[str]:
    """A pattern for the name as a word of its own, whatever characters it begins and ends with, and what is behind."""
    return _patterns[name, behind, flags]


def _pattern(wanted: tuple[str, str, int]) -> regex.Pattern[str]:
    name, behind, flags = wanted  # the standard library takes twenty times as long to compile it
    return regex.compile(rf"(?<!{_LETTER}){regex.escape(name)}(?!{_LETTER}){behind}", flags)


_patterns = Kept(_pattern, 4 * 1024 * 1024)  # the same names are asked about over and over
