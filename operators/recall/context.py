"""Context assembly: selects the parts of an answer that fit into a prompt's token budget.

Category summaries come first, up to half of the budget; then memories, up to four fifths; then entities of the graph,
up to the whole. Memories fill the rest: those of the answer, then further ranked ones.

Rules and the working layer precede the ranked memories. Until half of the budget is spent, only the best passage of a
long memory is taken, because passages of several memories hold more evidence than one long text. Where there is room,
the best memories are then completed, or their passages extended (`python -m benchmarks.budget`). An entry that does not
fit is skipped, as is a repeated text; but the passage of the best memory is cut to fit. A memory costs its author and
its text."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, pairwise, takewhile
from typing import Any, cast

import numpy as np
import orjson
import regex

from recallflow.embedder import Matrix, TokenCounter
from recallflow.errors import DecryptionFailed
from recallflow.fields import format_time
from recallflow.language.analysis import analyse, sentence_ends
from recallflow.language.places import find_stems
from recallflow.language.scripts import UNSPACED
from recallflow.limits import READ_CHARACTERS
from recallflow.operators import redaction
from recallflow.operators.prepare import passages
from recallflow.operators.recall.phrases import written_date
from recallflow.operators.recall.question import Question
from recallflow.operators.recall.stages import CategorySummaries, ComposedAnswer, QueryRun
from recallflow.operators.recall.words import idf
from recallflow.operators.redaction import REDACTED, Redacted
from recallflow.operators.summaries import category_summaries
from recallflow.responses import Context, ContextItem, Omitted, RecalledMemory, Span, Warn
from recallflow.state import keys
from recallflow.state.arrays import Positions, ranges
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import CategorySummaryRow, MemoryRow

SUMMARIES_END, ITEMS_END, GRAPH_END = 0.5, 0.8, 1.0  # share of the budget up to which each section may fill it
RULE, WORKING, LONG_TERM = "rule", "working", "long_term"
UNRANKED_WORKING_MAX = 16  # unranked memories of the working layer: more would leave no room for the answer
ROWS_AT_ONCE, FURTHER_AT_ONCE = 64, 16
PASSAGES_END = 0.5  # share of the budget up to which long memories are passages first
MIN_WIDENED_TOKENS = 16  # tokens: with less room, finding the passages of a long text, 200 µs, is seldom worth it
MISFITS_MAX = 16  # consecutive items that do not fit, after which no more are tried
_MEMORY_FIELDS = ("id", "version", "content", "role", "name", "summary", "category", "confidence")
WORDS = regex.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]{{1,20}}")  # words, or parts of them, at which a text is cut
SENTENCE_ENDS = " .!?…。！？"  # two texts that differ in them only are equal


class Budget:
    """The token budget of a context, and the tokens spent so far."""

    def __init__(self, max_tokens: int, counter: TokenCounter) -> None:
        self.spent = 0
        self._max = max_tokens
        self._counter = counter

    def spend(self, text: str, end: float) -> bool:
        """Spend a text's tokens if the whole text fits, and return whether it does. A text without tokens does not fit.
        The text may fill the budget up to the share `end`, 0 to 1."""
        tokens = self._counter.count_tokens(text)
        if not tokens or self.spent + tokens > self._max * end:
            return False
        self.spent += tokens
        return True

    def replace(self, part: str, whole: str, end: float) -> bool:
        """Spend the tokens that a whole text has more than its part, if they fit, and return whether they do."""
        more = self._counter.count_tokens(whole) - self._counter.count_tokens(part)
        if self.spent + more > self._max * end:
            return False
        self.spent += more
        return True

    def holds(self, text: str) -> bool:
        """Return whether a text fits into the rest of the budget."""
        return self.has_room(GRAPH_END, self._counter.count_tokens(text))

    def has_room(self, end: float, tokens: int = 1) -> bool:
        """Return whether so many tokens fit into the budget up to the share `end`."""
        return self.spent + tokens <= self._max * end


def read_summaries(run: QueryRun, permitted: Positions) -> CategorySummaries:
    """Return all category summaries at the time of the query, and those that pass its filters. A summary is stored or
    extractive. A sender who may read only some projects gets no stored one, because its source projects are unknown."""
    warnings, wanted, every, moment = [], run.query.filters.categories, dict[str, str](), run.moment
    latest_ms = min((at for at in (moment.known_by_ms, moment.happened_by_ms) if at is not None), default=math.inf)
    try:
        for _, value in run.request.hot.scan(keys.CATEGORY_SUMMARY) if moment.projects is None else ():
            stored = CategorySummaryRow.decode(value)  # the oldest first: later ones replace it
            if stored.ingested_ms <= latest_ms:
                every[stored.category] = stored.summary
    except DecryptionFailed:
        every = {}
        warnings.append(Warn(code="decryption_failed", detail="the category summaries could not be opened"))
    every = category_summaries(run.index, permitted, run.rows, [*every], wanted, run.request.categories) | every
    return CategorySummaries(every, summaries(every, wanted, ()), warnings)


def context(
    answer: ComposedAnswer, max_tokens: int, counter: TokenCounter, selected: Sequence[str] | None
) -> tuple[Context, list[Warn]]:
    """Return the assembled context of an answer, and a warning if memories could not be decrypted. `selected` is None
    without a selection of categories."""
    run, positions, memories = answer.run, answer.permitted.positions, answer.memories
    undecrypted = 0

    def readable(slots: list[int]) -> list[MemoryRow]:
        nonlocal undecrypted
        found = run.rows(slots)
        undecrypted += sum(isinstance(row, Redacted) for row in found)
        return [row for row in found if redaction.is_readable(row)]

    wanted = run.query.filters.categories if selected is None else selected
    chosen = summaries(answer.summaries.by_category, wanted, memories)
    first, long_term = priority_items(run.index, positions, memories, readable), _ranked_items(memories, LONG_TERM)
    further = list[tuple[str, int]]()  # further memories that were tried
    repeated = set[tuple[str, int]]()  # memories with the text of an earlier one
    texts = set[str]()

    def ranked() -> Iterator[ContextItem]:
        yield from map(_ranked_item, long_term)
        for item in _further_items(answer):
            further.append((item.id, item.version))
            yield item

    def distinct(items: Iterable[ContextItem]) -> Iterator[ContextItem]:
        for item in items:
            text = " ".join(_statement(item).casefold().split()).rstrip(SENTENCE_ENDS) or item.content
            if text in texts:
                repeated.add((item.id, item.version))
            else:
                texts.add(text)
                yield item

    sections = chosen, distinct(first), answer.entities.entries, distinct(ranked())
    assembled = assemble(max_tokens, counter, *sections, stems=run.question.stems)
    count = len(rule_slots(run.index, positions)) + len(unranked_working_slots(run.index, positions, memories))
    count += len(_ranked_items(memories, WORKING)) + len(long_term) - undecrypted
    included = {(item.id, item.version) for item in assembled.relevant_items}.union(repeated).difference(further)
    assembled.omitted.update(
        _omitted(answer, len(chosen), assembled),
        relevant_items=Omitted(filters=answer.permitted.excluded_count, budget=count - len(included)),
    )
    if not undecrypted:
        return assembled, []
    detail = f"{undecrypted} rules or working memories could not be opened, and are not in the context"
    return assembled, [Warn(code="decryption_failed", detail=detail)]


def summaries_alone(
    answer: ComposedAnswer,
    max_tokens: int,
    counter: TokenCounter,
    sufficient: Mapping[str, str],
    selected: Sequence[str] | None,
) -> Context | None:
    """Return a context of sufficient summaries alone, or None if there are none or the budget does not hold all of
    them. `sufficient` holds summaries by category. `selected` is None without a selection of categories."""
    chosen = {name: sufficient[name] for name in (sufficient if selected is None else selected) if name in sufficient}
    assembled = assemble(max_tokens, counter, chosen, (), summaries_end=GRAPH_END)
    if not chosen or len(assembled.summaries) < len(chosen):
        return None
    assembled.omitted.update(_omitted(answer, len(chosen), assembled))
    return assembled


def _omitted(answer: ComposedAnswer, chosen: int, assembled: Context) -> dict[str, Omitted]:
    entities = answer.entities
    left_out = len(entities.entries) - len(assembled.graph_context)
    return {
        "summaries": Omitted(
            filters=len(answer.summaries.by_category) - chosen, budget=chosen - len(assembled.summaries)
        ),
        "relevant_items": Omitted(filters=answer.permitted.excluded_count, budget=0),
        "graph_context": Omitted(filters=entities.excluded, budget=left_out),
    }


def assemble(
    max_tokens: int,
    counter: TokenCounter,
    summaries: Mapping[str, str],
    first: Iterable[ContextItem],
    graph: Sequence[dict[str, Any]] = (),
    ranked: Iterable[ContextItem] = (),
    summaries_end: float = SUMMARIES_END,
    stems: Collection[str] = (),
) -> Context:
    """Return the context of summaries, memories and entities, each in the given order. Items are read only while the
    budget has room. The items of `first` precede the ranked ones. `stems` are the question's."""
    budget = Budget(max_tokens, counter)
    chosen = {category: text for category, text in summaries.items() if budget.spend(text, summaries_end)}
    priority, items = _Selection(budget, first), _Selection(budget, ranked, stems)
    priority.fill(ITEMS_END)
    priority.retry(GRAPH_END)  # no ranked memory takes the place of a rule
    items.fill(PASSAGES_END, MISFITS_MAX, ITEMS_END)
    items.complete(ITEMS_END)
    items.fill(ITEMS_END, MISFITS_MAX)
    entities = [entity for entity in graph if budget.spend(orjson.dumps(entity).decode(), GRAPH_END)]
    items.complete(GRAPH_END)
    priority.fill(GRAPH_END)
    items.fill(GRAPH_END, MISFITS_MAX)
    items.widen(GRAPH_END)
    return Context(
        summaries=chosen,
        relevant_items=[*priority.chosen(), *items.chosen()],
        graph_context=entities,
        token_count=budget.spent,
        counted_by=counter.counted_by,
        omitted={},
    )


class _Selection:
    """The items of a context, chosen in steps from a sequence."""

    def __init__(self, budget: Budget, items: Iterable[ContextItem], stems: Collection[str] | None = None) -> None:
        """With the stems of a question, the first item gets the whole budget, and is cut if it does not fit."""
        self._budget, self._stems = budget, stems
        self._items = enumerate(items)
        self._misfits: list[tuple[int, ContextItem]] = []
        self._chosen: dict[int, ContextItem] = {}
        self._long: dict[int, ContextItem] = {}  # whole items of chosen passages, by number

    def fill(self, open_end: float, most_misfits: float = math.inf, end: float | None = None) -> None:
        """Take the earlier misfits and further items until the budget is used up to the share `open_end`; the last one
        may exceed it, up to `end`. Stop after a series of misfits."""
        end = end or open_end
        self.retry(end)
        in_series = 0
        while self._budget.has_room(open_end) and in_series < most_misfits:
            if (one := next(self._items, None)) is None:
                return
            in_series = 0 if self._take(*one, end) else in_series + 1

    def retry(self, end: float) -> None:
        """Take the earlier misfits that fit up to this share of the budget."""
        earlier, self._misfits = self._misfits, []
        for number, item in earlier:
            self._take(number, item, end)

    def _take(self, number: int, item: ContextItem, end: float) -> bool:
        """Choose what fits: the best passage (of a short memory, all of it), else the summary, else a part if it is the
        best memory. Return whether any fits."""
        is_best = number == 0 and self._stems is not None
        end, found = GRAPH_END if is_best else end, item
        if item.excerpt is not None:
            found = item.model_copy(update={"content": item.content[item.excerpt["start"] : item.excerpt["end"]]})
        if not self._budget.spend(_line(found), end):
            found = item.model_copy(update={"content": item.summary or "", "excerpt": None})
            if not self._budget.spend(_line(found), end):  # without a summary, it has no tokens
                cut = self._cut(item) if is_best else None
                if cut is None or not self._budget.spend(_line(cut), end):
                    if end < GRAPH_END:  # later steps have no more room
                        self._misfits.append((number, item))
                    return False
                found = cut
        self._chosen[number] = found
        if found.excerpt is not None:
            self._long[number] = item
        return True

    def complete(self, end: float) -> None:
        """Replace passages by their whole texts where they fit, in order."""
        for number, item in [*self._long.items()]:
            if self._budget.replace(_line(self._chosen[number]), _line(item), end):
                self._chosen[number] = self._long.pop(number).model_copy(update={"excerpt": None})

    def widen(self, end: float) -> None:
        """Extend each chosen passage by the passages after it, then by those before it, while they fit."""
        for number, item in self._long.items():
            if not self._budget.has_room(end, MIN_WIDENED_TOKENS):
                return
            shown = cast("Span", self._chosen[number].excerpt)
            text, start, stop = item.content, shown["start"], shown["end"]
            spans = passages(text[:READ_CHARACTERS])
            for after in (span.end for span in spans if span.end > stop):
                if not self._budget.spend(text[stop:after], end):
                    break
                stop = after
            for before in (span.start for span in reversed(spans) if span.start < start):
                if not self._budget.spend(text[before:start], end):
                    break
                start = before
            excerpt = Span(start=start, end=stop)
            self._chosen[number] = item.model_copy(update={"content": text[start:stop], "excerpt": excerpt})

    def _cut(self, item: ContextItem) -> ContextItem | None:
        """Return the part of an item's passage that fits into the budget: from the sentence with most of the
        question's stems on, preceded by sentences that fit as well. None if not even a word fits."""
        shown = item.excerpt or Span(start=0, end=len(item.content))
        passage = item.content[shown["start"] : shown["end"]]

        def part(start: int, stop: int) -> ContextItem:
            excerpt = Span(start=shown["start"] + start, end=shown["start"] + stop)
            return item.model_copy(update={"content": passage[start:stop], "excerpt": excerpt})

        def fits(start: int, stop: int) -> bool:
            return self._budget.holds(_line(part(start, stop)))

        starts = [0, *sentence_ends(passage)]
        (words,) = find_stems([passage], [self._stems or ()], analyse(passage).language)
        found = [len({one.stem for one in words if begin <= one.start < end}) for begin, end in pairwise(starts)]
        best = found.index(max(found))
        start, stops = starts[best], [word.end() for word in WORDS.finditer(passage, starts[best])]
        count = bisect_left(stops, True, key=lambda stop: not fits(start, stop))
        if not count:
            return None
        for earlier in takewhile(lambda earlier: fits(earlier, stops[count - 1]), reversed(starts[:best])):
            start = earlier
        return part(start, stops[count - 1])

    def chosen(self) -> list[ContextItem]:
        """Return the chosen items in the order of their sequence."""
        return [item.model_copy(update={"content": _statement(item)}) for _, item in sorted(self._chosen.items())]


def _statement(item: ContextItem) -> str:
    """Return the item's text, with the time until which it was true."""
    if item.until is None or not item.content:
        return item.content
    return f"until {written_date(datetime.fromisoformat(item.until))}: {item.content}"


def _line(item: ContextItem) -> str:
    """Return the item's author and text, as a prompt shows them."""
    author, text = item.name or item.role, _statement(item)
    return text if author is None or not text else f"{author}: {text}"


def priority_items(
    index: OwnerIndex,
    permitted: Positions,
    ranked: Sequence[RecalledMemory],
    readable: Callable[[list[int]], list[MemoryRow]],
) -> Iterator[ContextItem]:
    """Yield the items that precede the other ranked memories: all permitted rules, the most important first, then by
    id; then the working layer, the ranked memories by rank and the unranked ones, the newest first. `readable` returns
    the readable rows of slots."""
    scores = {(memory.id, memory.version): memory.score for memory in ranked}

    def stored(slots: list[int]) -> Iterator[ContextItem]:
        chunks = (readable(slots[start : start + ROWS_AT_ONCE]) for start in range(0, len(slots), ROWS_AT_ONCE))
        for row in chain.from_iterable(chunks):
            yield _item(row, scores.get((row.id, row.version)), format_time(row.created_ms))

    yield from stored(rule_slots(index, permitted))
    yield from map(_ranked_item, _ranked_items(ranked, WORKING))
    yield from stored(unranked_working_slots(index, permitted, ranked))


def _further_items(answer: ComposedAnswer) -> Iterator[ContextItem]:
    """Yield the readable memories beyond the answer, best first."""
    run, further, index = answer.run, answer.further, answer.run.index
    answered = {(memory.id, memory.version) for memory in answer.memories}
    for start in range(0, len(further.positions), FURTHER_AT_ONCE):
        positions = further.positions[start : start + FURTHER_AT_ONCE]
        rows = run.rows(index.conversation.slots[positions].tolist())
        spans = excerpts(index, run.question, answer.signal.vector, positions, rows)
        scores = further.scores[start : start + FURTHER_AT_ONCE].tolist()
        for position, row, score, excerpt in zip(positions.tolist(), rows, scores, spans, strict=True):
            if redaction.is_readable(row) and row.layer == LONG_TERM and (row.id, row.version) not in answered:
                until = further.replaced_at.get(position)
                yield _item(row, round(score, 6), format_time(row.created_ms), excerpt, until)


def _ranked_items(ranked: Sequence[RecalledMemory], layer: str) -> list[RecalledMemory]:
    """Return the readable ranked memories of a layer."""
    return [memory for memory in ranked if memory.layer == layer and memory.content != REDACTED]


def _ranked_item(memory: RecalledMemory) -> ContextItem:
    until = None if memory.updated_by is None else memory.updated_by["at"]
    return _item(memory, memory.score, memory.created_at, memory.excerpt, until)


def rule_slots(index: OwnerIndex, permitted: Positions) -> list[int]:
    """Return the slots of the permitted rules, the most important first, then by id."""
    importance = index.conversation.facts["importance"]
    latest = _latest_of_layer(index, permitted, RULE)
    best = sorted(latest.items(), key=lambda rule: (-importance[rule[1]], rule[0]))
    return [int(index.conversation.slots[position]) for _, position in best]


def unranked_working_slots(index: OwnerIndex, permitted: Positions, ranked: Sequence[RecalledMemory]) -> list[int]:
    """Return the slots of the newest permitted memories of the working layer that are not ranked."""
    facts, known = index.conversation.facts, {memory.id for memory in ranked}
    latest = _latest_of_layer(index, permitted, WORKING)
    positions = [position for memory_id, position in latest.items() if memory_id not in known]
    newest = sorted(positions, key=lambda at: (facts["created_ms"][at], facts["seq"][at]), reverse=True)
    return [int(index.conversation.slots[position]) for position in newest[:UNRANKED_WORKING_MAX]]


def _latest_of_layer(index: OwnerIndex, permitted: Positions, layer: str) -> dict[str, int]:
    """Return the positions of permitted memories of a layer by id; with `include_history`, of the latest versions."""
    conversation, facts = index.conversation, index.conversation.facts
    positions = permitted[facts["layer"][permitted] == index.names.number_of(layer)]
    by_age = positions[np.argsort(facts["version"][positions], kind="stable")]
    return {index.ids[slot]: at for slot, at in zip(conversation.slots[by_age], by_age.tolist(), strict=True)}


def _item(
    memory: MemoryRow | RecalledMemory,
    score: float | None,
    created_at: str,
    excerpt: Span | None = None,
    until: str | None = None,
) -> ContextItem:
    given = {field: getattr(memory, field) for field in _MEMORY_FIELDS} | ({} if until is None else {"until": until})
    return ContextItem(**given, score=score, created_at=created_at, excerpt=excerpt)


def summaries(
    by_category: Mapping[str, str], wanted: Sequence[str] | None, ranked: Sequence[RecalledMemory]
) -> dict[str, str]:
    """Return the summaries of the wanted categories, in their order. If `wanted` is None, return all: first the
    categories of the ranked memories, then the others by name."""
    if wanted is None:
        wanted = [*(memory.category for memory in ranked if memory.category is not None), *sorted(by_category)]
    return {category: by_category[category] for category in dict.fromkeys(wanted) if category in by_category}


def excerpts(
    index: OwnerIndex, question: Question, vector: Matrix | None, positions: Positions, rows: Sequence[MemoryRow | None]
) -> list[Span | None]:
    """Return the span of the best passage of each row's text; None for a text of one passage."""
    found: list[Span | None] = [None] * len(rows)
    if not index.words.has_parts:
        return found
    slots, parts = index.conversation.slots[positions], index.words.parts()
    counts = parts.counts(slots)
    numbers = ranges(parts.firsts[slots], counts)
    coverages = np.zeros(len(numbers))  # the sum of the idf of the question's words in each part
    for stem in dict.fromkeys(question.stems_without_names):
        occurrences = index.words.part_occurrences(stem)
        if len(occurrences):
            at = np.minimum(occurrences.searchsorted(numbers), len(occurrences) - 1)
            weight = idf(index.stem_occurrences[stem].memory_count, index.conversation.size)
            coverages += weight * (occurrences[at] == numbers)
    ends = counts.cumsum()
    for number in np.flatnonzero(counts > 1).tolist():
        row, coverage = rows[number], coverages[ends[number] - counts[number] : ends[number]]
        if redaction.is_readable(row):
            cosines = np.zeros(0) if vector is None else index.vectors.cosines_of(vector, int(slots[number]))
            cosines = cosines if len(cosines) == len(coverage) else np.zeros(len(coverage))
            best = np.lexsort((np.arange(len(coverage)), -cosines, -coverage))[0]
            passage = passages(row.content[:READ_CHARACTERS])[best]
            found[number] = Span(start=passage.start, end=passage.end)
    return found
