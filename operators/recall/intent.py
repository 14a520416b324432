"""What kind of answer a question wants, by rules, and the ranking mode that `auto` takes for it.

The wordings are English; whatever none of them fits, in any language, is a plain question for a fact.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from recallflow.operators.recall.question import Question
from recallflow.queries import Mode

Intent = Literal["temporal", "entity", "preference", "procedural", "summary", "factual"]
Condition = Callable[[Question], object]


def _says(words: str) -> Condition:
    """That the question holds any of these, as words of their own."""
    pattern = re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    return lambda question: pattern.search(question.text)


def _begins(words: str) -> Condition:
    """That the question begins with any of these."""
    pattern = re.compile(rf"\W*(?:{words})\b", re.IGNORECASE)
    return lambda question: pattern.match(question.text)


# The first rule that holds decides: what a question asks to be done comes before what it merely mentions.
RULES: tuple[tuple[Intent, Condition], ...] = (
    ("summary", _says(r"summari[sz]e|summar(?:y|ies)|recap|overview|sum up|catch me up|gist|tl;?dr")),
    ("summary", _says(r"(?:main|key|most important) (?:points?|topics?|takeaways?)")),
    ("procedural", _says(r"how (?:to|(?:do|can|could|should|would|must) (?:i|we|you|one)(?! (?:feel|like|think)\b))")),
    ("procedural", _says(r"(?:steps?|instructions|procedure|process|recipe) (?:to|for|of)|walk me through")),
    ("temporal", lambda question: question.asks_when),
    ("temporal", lambda question: question.dates),
    ("temporal", _says(r"yesterday|today|tonight|recently|lately|latest|most recent|ago|how (?:long|often)")),
    ("temporal", _says(r"(?:last|this|past) (?:night|morning|evening|week|weekend|month|year)")),
    ("temporal", _says(r"(?:last|this|past) (?:spring|summer|autumn|fall|winter)")),
    ("preference", _says(r"prefer\w*|favou?rites?|dislikes?|hates?|enjoys?|loves?|likes|fond of|would rather")),
    ("preference", _says(r"(?:do|does|did|would|don['’]t|doesn['’]t)(?: [\w'’]+){1,3}? like(?! to be\b)")),
    ("entity", _begins(r"who|whose|whom")),
    ("entity", _says(r"who (?:is|was|are|were|else)|(?:tell me|know|remember) (?:\w+ )?about")),
)

# What `auto` becomes (docs/decisions/0012): what changes with time is answered by the recent and trusted memory among
# equals, also where a date is asked for; a procedure does not wear off; a summary is of whole episodes.
MODES: Mapping[Intent, Mode] = MappingProxyType(
    {
        "temporal": "hybrid",
        "entity": "hybrid",
        "preference": "hybrid",
        "procedural": "relevance",
        "summary": "episode",
        "factual": "hybrid",
    }
)


def intent_of(question: Question) -> Intent:
    """The intent of the first rule that holds; factual where none does."""
    return next((intent for intent, holds in RULES if holds(question)), "factual")


def mode_for(asked: Mode, intent: Intent) -> Mode:
    """The mode that answers a query: the one it asks for, or by intent where it leaves the choice to us."""
    return MODES[intent] if asked == "auto" else asked
