"""What kind of answer a question wants, by rules, and the ranking mode that `auto` becomes for it.

The wordings are English; whatever none of them fits, in any language, is a plain question for a fact.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from recallflow.operators.recall.question import Question
from recallflow.queries import Mode

Intent = Literal["temporal", "entity", "preference", "procedural", "summary", "factual"]


def _any(*wordings: str) -> re.Pattern[str]:
    """Any of these, as words of their own."""
    return re.compile(rf"\b(?:{'|'.join(wordings)})\b", re.IGNORECASE)


# The first intent that fits decides: what a question asks to be done comes before what it merely mentions.
WORDINGS: Mapping[Intent, re.Pattern[str]] = MappingProxyType(
    {
        "summary": _any(
            r"summari[sz]e|summar(?:y|ies)|recap|overview|sum up|catch me up|gist|tl;?dr",
            r"(?:main|key|most important) (?:points?|topics?|takeaways?)",
        ),
        "procedural": _any(
            r"how (?:to|(?:do|can|could|should|would|must) (?:i|we|you|one)(?! (?:feel|like|think)\b))",
            r"(?:steps?|instructions|procedure|process|recipe) (?:to|for|of)|walk me through",
        ),
        "temporal": _any(
            r"yesterday|today|tonight|recently|lately|latest|most recent|ago|how (?:long|often)",
            r"(?:last|this|past) (?:night|morning|evening|week|weekend|month|year|spring|summer|autumn|fall|winter)",
        ),
        "preference": _any(
            r"prefer\w*|favou?rites?|dislikes?|hates?|enjoys?|loves?|likes|fond of|would rather",
            r"(?:do|does|did|would|don['’]t|doesn['’]t)(?: [\w'’]+){1,3}? like(?! to be\b)",
        ),
        "entity": _any(r"who (?:is|was|are|were|else)|(?:tell me|know|remember) (?:\w+ )?about"),
    }
)
_BEGINS_WITH_WHO = re.compile(r"\W*(?:who|whose|whom)\b", re.IGNORECASE)

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
    """The first intent that fits; factual where none does."""
    for intent, wording in WORDINGS.items():
        if wording.search(question.text) or (intent == "temporal" and (question.asks_when or question.dates)):
            return intent
    return "entity" if _BEGINS_WITH_WHO.match(question.text) else "factual"


def mode_for(asked: Mode, intent: Intent) -> Mode:
    """The mode that answers a query: the one it asks for, or by intent where it asks for `auto`."""
    return MODES[intent] if asked == "auto" else asked
