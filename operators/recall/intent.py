"""Query intents, matched by the wordings of the question's language (`language/tables`), and the mode that `auto`
selects for each. A question that matches no wording is `factual`."""

from collections.abc import Mapping
from types import MappingProxyType

from recallflow.language import ENGLISH, Intent, plain
from recallflow.operators.recall.question import Question
from recallflow.queries import Mode

# Tasks that a question asks for precede topics that it only mentions.
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
    """Return the first intent with a matching wording, or `factual`."""
    text = question.text if question.table is ENGLISH else plain(question.text)
    for intent in _ORDER:
        if intent == "temporal" and (question.asks_when or question.dates):
            return intent
        if question.table.intents[intent].search(text):
            return intent
    return "factual"


def mode_for(asked: Mode, intent: Intent) -> Mode:
    """Return the mode of a query. `auto` is resolved by intent."""
    return MODES[intent] if asked == "auto" else asked
