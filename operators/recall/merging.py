"""Merges the answers to a query's question and to the subqueries that a model made of it.

A memory's rank is its best rank in any answer. At equal ranks the query's own question precedes the subqueries, which
keep their order. Ranks are comparable between answers; scores are not, because each answer scales its own scores. A
memory's fields come from the answer with its best rank. `question` names the subquery of that answer, and is absent for
the query's own question.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from recallflow.operators.recall.stages import ComposedAnswer
from recallflow.operators.redaction import REDACTED
from recallflow.responses import WARNINGS, RecalledMemory

NOTHING_RELEVANT = "nothing_relevant"

T = TypeVar("T")


def merged(own: ComposedAnswer, others: Sequence[ComposedAnswer]) -> ComposedAnswer:
    """Return the query's answer, merged with the answers to its subqueries."""
    ranked = [memory for memory in own.memories if memory.id not in own.added]
    answers = [ranked, *(_of(found) for found in others)]
    best = best_first(answers, lambda memory: (memory.id, memory.version))[: own.understood.tuning.k]
    # Memories whose text cannot be decrypted sort last.
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


def _of(found: ComposedAnswer) -> list[RecalledMemory]:
    question = found.understood.question.text
    return [memory.model_copy(update={"question": question}) for memory in found.memories]


def best_first(answers: Sequence[Sequence[T]], key: Callable[[T], Hashable]) -> list[T]:
    """Return the distinct items of all answers by their best rank. At equal ranks the earlier answer comes first."""
    found: dict[Hashable, T] = {}
    for at in range(max(map(len, answers))):
        for answer in answers:
            if at < len(answer):
                found.setdefault(key(answer[at]), answer[at])
    return [*found.values()]
