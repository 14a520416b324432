"""Facts that rules make of what people say of themselves: "I love Oslo." by Ann becomes "Ann loves Oslo.".

An extraction would store them with the messages. Each names its subject and has no author.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.locomo import Conversation, Question, Turn

_PRESENT = """
love loves, like likes, prefer prefers, enjoy enjoys, hate hates, want wants, need needs, have has, own owns,
live lives, work works, play plays, study studies
"""
_PAST = ["went", "bought", "made", "met", "found", "started", "joined", "moved", "visited"]
_VERBS = dict(pair.split() for pair in _PRESENT.split(",")) | {verb: verb for verb in _PAST}
# A statement begins the sentence, or goes on after a comma or "and": "the cake I made" states nothing.
_BEGINS = r"(?:^|[.!?…,:;\n]\s*|\b(?:and|but|so|because)\s)"
_ENDS = r"(?:[.!?…;:\"\n]|\s[-–—]+\s|,?\s(?:and|but|so|because)\sI\b|\sI\b)"
_STATEMENT = re.compile(
    rf"{_BEGINS}I (?:(?:really|just|recently|also|actually) )?({'|'.join(_VERBS)})\b((?:(?!{_ENDS}).)+)",
)
_OWN = {"my": "their", "mine": "theirs", "myself": "themselves", "me": "them", "our": "their", "we": "they"}
_PERSON = re.compile(rf"\b({'|'.join(_OWN)})\b", re.IGNORECASE)
_FEWEST_WORDS = 2  # after the verb: "I love it" says nothing of anybody


def with_facts(conversation: Conversation) -> Conversation:
    """The conversation with each message's facts after it; evidence brings the facts made of it along."""
    turns: list[Turn] = []
    made: dict[str, list[str]] = {}
    for turn in conversation.turns:
        facts = list(facts_of(turn))
        turns += [turn, *facts]
        made[turn.id] = [fact.id for fact in facts]
    return Conversation(conversation.id, turns, [_with_facts(question, made) for question in conversation.questions])


def _with_facts(question: Question, made: dict[str, list[str]]) -> Question:
    facts = (fact for turn in question.evidence for fact in made.get(turn, ()))
    return replace(question, evidence=question.evidence | frozenset(facts))


def facts_of(turn: Turn) -> Iterator[Turn]:
    """What the message says of whoever wrote it, as memories of nobody's."""
    if not turn.speaker:
        return
    for number, statement in enumerate(_STATEMENT.finditer(turn.text), 1):
        rest = statement[2].strip(" ,")
        if len(rest.split()) < _FEWEST_WORDS:
            continue
        about = _PERSON.sub(lambda word: _OWN[word[0].lower()], rest)
        text = f"{turn.speaker} {_VERBS[statement[1]]} {about}."
        yield Turn(f"{turn.id}-fact-{number}", turn.session, turn.time, None, text, role=None)
