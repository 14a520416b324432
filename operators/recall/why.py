"""Why each memory is in the answer, in words that a person understands, strongest reason first, and what each rests on.

Only what is shown is looked at: the ranked memories' texts are searched for the question's words, and of each memory
two neighbours at most are read, those that lend it something and may be in the answer themselves. A text that could not
be opened is neither searched nor quoted.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from recallflow.embedder import Kind
from recallflow.language import find_stems
from recallflow.operators.graph.expand import Related
from recallflow.operators.recall import phrases
from recallflow.operators.recall.bm25 import counted, idf
from recallflow.operators.recall.columns import Columns
from recallflow.operators.recall.reasons import ALIKE, ALIKE_NEAR, WORDS, WORDS_NEAR, Strengths, strengths
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.operators.redaction import RowsReader, is_readable
from recallflow.responses import Reason
from recallflow.state.arrays import Places
from recallflow.state.rows import LANGUAGE_SHIFT, MemoryRow

MOST = 3  # reasons of a memory
LEAST_SHARE = 0.2  # of the strongest one: what adds less decides nothing
SEARCHED_CHARACTERS = 4_000  # of a text, for the question's words
BEFORE, BEHIND = 4, 2  # neighbours that lend: to late interaction, and to the window of BM25
_OFFSETS = [offset for offset in range(-BEFORE, BEHIND + 1) if offset]

Rows = Sequence[MemoryRow | None]
Words = dict[str, list[tuple[int, int]]]  # stem → where its words stand


class Lender(NamedTuple):
    """A neighbour that holds words of the question which the memory lacks: its place, how far it is from the memory,
    and its share of what both hold, by rarity."""

    place: int
    offset: int
    share: float


def why(
    scene: Scene,
    ranking: Ranking,
    rows: Rows,
    columns: Columns,
    kind: Kind,
    read: RowsReader,
    entities: Callable[[], list[str]],
) -> list[list[Reason]]:
    """The reasons of each ranked memory, at least one. `read`: rows by slot; `entities`: the names of those that the
    question is about."""
    if scene.tuning.mode == "recency":
        return [[phrases.newest(rank, row)] for rank, row in enumerate(rows, 1)]
    if not rows:
        return []
    places, cases = ranking.places, list[_Case]()
    texts = zip(places.tolist(), rows, _words(scene, ranking, rows), strict=True)
    neighbours = zip(_lenders(scene, places), _answering(scene, places), strict=True)
    speaking = strengths(scene, ranking, columns)
    for (place, row, words), (lender, answers), own in zip(texts, neighbours, speaking, strict=True):
        if not answers:
            own.pop("answers", None)
        found = _by_code(own, row, words, lender, kind, scene.question.named)
        cases.append(_Case(place, row, words, lender, _strongest(found)))
    quoted = _neighbours(scene, rows, cases, read)
    return [_reasons(scene, one, quoted, entities) for one in cases]


def added(items: Iterable[Related], seeds: Sequence[MemoryRow | None]) -> list[list[Reason]]:
    """The reasons of memories that the graph adds: the path to each. `seeds`: rows of the ranked memories."""
    by_id = {row.id: row for row in seeds if is_readable(row)}
    return [[phrases.linked(item.id, item.why, by_id.get(item.why["from"]))] for item in items]


def say_reranked(reasons: list[list[Reason]], model: str, before: Sequence[int]) -> None:
    """Adds the reranker to the reasons of those that it put further up; `before`: the ranks they had."""
    for rank, (found, first) in enumerate(zip(reasons, before, strict=False), 1):
        if rank < first:
            others = [reason for reason in found if reason["code"] != "filler"]
            found[:] = [phrases.reranked(model, rank, first), *others]


# ---------------------------------------------------------------------- what speaks for a memory


class _Case(NamedTuple):
    """What the reasons of a memory are made of: its place and row, the question's words in it, and the codes."""

    place: int
    row: MemoryRow | None
    words: Words
    lender: Lender | None
    codes: list[str]

    @property
    def quoted(self) -> list[int]:
        """The places of the neighbours that its reasons quote."""
        nearby = [self.lender.place] if "nearby" in self.codes and self.lender is not None else []
        return [*nearby, self.place - 1] if "answers" in self.codes else nearby


def _words(scene: Scene, ranking: Ranking, rows: Rows) -> list[Words]:
    """The question's words in the text of each memory that can be opened."""
    found: list[Words] = [{} for _ in rows]
    asked, by_language = frozenset(scene.question.stems), defaultdict[int, list[tuple[int, str]]](list)
    languages = (scene.fact("flags", ranking.places) >> LANGUAGE_SHIFT).tolist()
    for at, (row, language) in enumerate(zip(rows, languages, strict=True)):
        if asked and is_readable(row):
            by_language[language].append((at, row.content))
    for language, texts in by_language.items():
        searched = find_stems([text[:SEARCHED_CHARACTERS] for _, text in texts], asked, language)
        for (at, text), places in zip(texts, searched, strict=True):
            for stem, start, end in places:
                if end < SEARCHED_CHARACTERS or end == len(text):  # there a word may be cut in two
                    found[at].setdefault(stem, []).append((start, end))
    return found


def _by_code(
    found: Strengths,
    row: MemoryRow | None,
    words: Words,
    lender: Lender | None,
    kind: Kind,
    named: tuple[str, ...],
) -> dict[str, float]:
    """Strengths by the code of a reason. What columns say of a memory and its neighbours together is told apart."""
    alike, alike_near = found.pop(ALIKE, 0.0), found.pop(ALIKE_NEAR, 0.0)
    near, share = found.pop(WORDS_NEAR, 0.0), lender.share if lender else 0.0
    lent, own = (near + alike_near) * share, found.pop(WORDS, 0.0) + near * (1 - share)
    likeness = "wording" if kind == "spelling" else "meaning"
    if alike > 0:
        alike += alike_near * (1 - share)
    else:
        found[f"{likeness}_before"] = alike_near * (1 - share)
    if not is_readable(row):
        found["sealed"] = own + lent + alike + found.pop("answers", 0.0)
        return found
    if lender and lender.offset == -1 and "answers" in found:
        found["answers"], lent = found["answers"] + lent, 0.0
    if words and kind == "spelling":  # there what is alike is the words
        own, alike = own + alike, 0.0
    if words:
        found["words"] = own
    elif row.author in named:
        found["person"] = found.get("person", 0.0) + own
    return found | {"nearby": lent, likeness: alike}


def _strongest(strength: dict[str, float]) -> list[str]:
    """The codes of the reasons that count, strongest first."""
    least = LEAST_SHARE * max(strength.values(), default=0.0)
    strong = [code for code, worth in strength.items() if worth > 0 and worth >= least]
    return sorted(strong, key=lambda code: -strength[code])[:MOST]


# ---------------------------------------------------------------------- neighbours


def _permitted(scene: Scene, places: Places) -> Places:
    """Which places may be in the answer."""
    if len(scene.allowed) == scene.index.conversation.size:
        return np.ones(places.shape, np.bool_)
    at = np.minimum(np.searchsorted(scene.allowed, places), len(scene.allowed) - 1)
    found: Places = scene.allowed.take(at) == places
    return found


def _answering(scene: Scene, places: Places) -> list[bool]:
    """Whether what stands before each place asks something, and may be in the answer."""
    conversation, before = scene.index.conversation, places - 1
    joined = conversation.windows[BEFORE][0].take(places) < places  # else it is the first of its episode
    found: list[bool] = (joined & scene.index.asking[before] & _permitted(scene, before)).tolist()
    return found


def _lenders(scene: Scene, places: Places) -> list[Lender | None]:
    """Of each place, the neighbour that lends it most of the words it lacks, if one does; the first among equals."""
    index, conversation = scene.index, scene.index.conversation
    asked = map(index.standing.__getitem__, dict.fromkeys(scene.question.bare_stems))
    standing = [found for found in asked if found.holders]
    low, high = (bound.take(places).tolist() for bound in conversation.windows[BEFORE])
    nearby = [
        (place, [place + offset for offset in _OFFSETS if first <= place + offset < end])
        for place, first, end in zip(places.tolist(), low, high, strict=True)
    ]
    looked_at = np.array([*{one for place, others in nearby for one in (place, *others)}], np.int64)
    counts = counted([found.places for found in standing], looked_at, conversation.size)
    permitted = dict(zip(looked_at.tolist(), _permitted(scene, looked_at).tolist(), strict=True))
    held = dict[int, set[int]]()  # by place, which of the words stand there
    for word, at in zip(*(found.tolist() for found in counts.nonzero()), strict=True):
        held.setdefault(int(looked_at[at]), set()).add(word)
    worths = idf([found.holders for found in standing], conversation.size).tolist()

    def worth(words: set[int]) -> float:
        return float(sum(worths[word] for word in sorted(words)))

    found = list[Lender | None]()
    for place, others in nearby:
        own, lender, most = held.get(place, set[int]()), None, 0.0
        for other in others:
            if (words := held.get(other)) and permitted[other] and (lent := worth(words - own)) > most:
                lender, most = other, lent
        found.append(None if lender is None else Lender(lender, lender - place, most / (most + worth(own))))
    return found


def _neighbours(scene: Scene, rows: Rows, cases: list[_Case], read: RowsReader) -> dict[int, MemoryRow]:
    """The rows that are quoted and can be, by place: those that are shown, and the others in one read."""
    found = {one.place: row for one, row in zip(cases, rows, strict=True)}
    missing = [*dict.fromkeys(place for one in cases for place in one.quoted if place not in found)]
    if missing:
        slots = scene.index.conversation.slots.take(missing).tolist()
        found |= dict(zip(missing, read(slots), strict=True))
    return {place: row for place, row in found.items() if is_readable(row)}


# ---------------------------------------------------------------------- in words


def _reasons(
    scene: Scene, case: _Case, neighbours: dict[int, MemoryRow], entities: Callable[[], list[str]]
) -> list[Reason]:
    row, found = case.row, []
    if row is None:  # it is not shown
        return []
    for code in case.codes:
        match code:
            case "words":
                found.append(phrases.words(row.content, case.words))
            case "nearby" if case.lender is not None:
                neighbour = neighbours.get(case.lender.place)
                found.append(phrases.nearby(case.lender.offset, neighbour, scene.question.bare_stems))
            case "answers":
                found.append(phrases.answers(neighbours.get(case.place - 1)))
            case "person":
                found.append(phrases.person(row, next(iter(scene.question.named), None)))
            case "date":
                found.append(phrases.date(row.created_ms))
            case "entity":
                proximity = 0.0 if scene.proximity is None else float(scene.proximity[case.place])
                found.append(phrases.entity(entities(), round(1 / proximity - 1)))
            case _:
                found.append(phrases.plain(code))
    if not found:
        found.append(phrases.plain("episode" if scene.tuning.mode == "episode" else "filler"))
    return found
