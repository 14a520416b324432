"""The answers to several questions as one: to a query's own, and to the smaller ones that a model made of it.

A memory's place is the best it has in any of the answers; at equal places the query's own question comes first, then
the others in their order. So what the query's own question has first stays first, and each question has its best
memory among the first ones, whatever the chat, the mode and the model: places mean the same in every answer, scores do
not, as they are stretched over what each question finds. All that is told of a memory is told of the question that put
it there, and `question` says which, unless it is the query's own.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from recallflow.operators.recall.stages import Found
from recallflow.operators.redaction import REDACTED
from recallflow.responses import WARNINGS, RecalledMemory

NOTHING_RELEVANT = "nothing_relevant"

T = TypeVar("T")


def merged(own: Found, others: Sequence[Found]) -> Found:
    """What a query's own question found, with what others did."""
    ranked = [memory for memory in own.memories if memory.id not in own.added]
    answers = [ranked, *(_of(found) for found in others)]
    best = best_first(answers, lambda memory: (memory.id, memory.version))[: own.understood.tuning.k]
    # What could not be opened comes last.
    best.sort(key=lambda memory: memory.content == REDACTED)
    there = {memory.id for memory in best}
    every = [*best, *(memory for memory in own.memories if memory.id in own.added and memory.id not in there)]
    known = [found.answerable for found in (own, *others) if found.answerable is not None]
    codes = {warning.code for warning in own.warnings}
    if any(NOTHING_RELEVANT not in (warning.code for warning in found.warnings) for found in others):
        codes.discard(NOTHING_RELEVANT)
    warnings = [warning for warning in own.warnings if warning.code in codes]
    for warning in chain.from_iterable(found.warnings for found in others):
        if WARNINGS[warning.code].degrades and warning.code not in codes:
            codes.add(warning.code)
            warnings.append(warning)
    return replace(
        own,
        memories=[memory.model_copy(update={"rank": rank}) for rank, memory in enumerate(every, 1)],
        seqs={memory_id: seq for found in (*others, own) for memory_id, seq in found.seqs.items()},
        answerable=max(known, default=None),
        tiebreak_applied=any(found.tiebreak_applied for found in (own, *others)),
        warnings=warnings,
    )


def _of(found: Found) -> list[RecalledMemory]:
    question = found.understood.question.text
    return [memory.model_copy(update={"question": question}) for memory in found.memories]


def best_first(answers: Sequence[Sequence[T]], key: Callable[[T], Hashable]) -> list[T]:
    """All that is in any of the answers, each once, by its best place; at equal places the earlier answer first."""
    found: dict[Hashable, T] = {}
    for at in range(max(map(len, answers))):
        for answer in answers:
            if at < len(answer):
                found.setdefault(key(answer[at]), answer[at])
    return [*found.values()]
