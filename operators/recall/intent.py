"""What kind of answer a question wants, by the wordings of its language (`language/tables`), and the ranking mode that
`auto` takes for it. What none of them fits is a plain question for a fact."""

from collections.abc import Mapping
from types import MappingProxyType

from recallflow.language import ENGLISH, Intent, plain
from recallflow.operators.recall.question import Question
from recallflow.queries import Mode

# What a question asks to be done comes before what it merely mentions.
_ORDER: tuple[Intent, ...] = ("summary", "procedural", "temporal", "preference", "entity")

# The mode that `auto` takes for each intent (docs/internals/decisions/09).
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
    """The first intent whose wordings the question has; factual where it has none of any."""
    text = question.text if question.table is ENGLISH else plain(question.text)
    for intent in _ORDER:
        if intent == "temporal" and (question.asks_when or question.dates):
            return intent
        if question.table.intents[intent].search(text):
            return intent
    return "factual"


def mode_for(asked: Mode, intent: Intent) -> Mode:
    """The mode that answers a query: the one it asks for, or by intent where it asks for `auto`."""
    return MODES[intent] if asked == "auto" else asked
