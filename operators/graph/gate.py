"""The quality gate: whether what the graph adds has been good enough lately to be in a tenant's answers.

What it adds comes behind the ranked memories, whose places and scores nothing changes. So the gate judges what is
added, by what users say of it, by errors, by time and by size; and by its fit to the questions only against what edges
of the same type gave before, as the graph is for what no word of a question leads to.

Fed with what was seen, it says what holds from now on. Its windows roll over the time of the queries, never over a
clock.

Figures, each with the value above which it blocks, and up to which a blocked tenant is freed:

    error_rate      0.05  0.02   expansions that failed: one in twenty is no accident
    fallback_rate   0.25  0.10   expansions that failed, had no time, or made an answer late
    added_words     2000  1500   content words added per answer: more than a prompt has room for
    relevance_loss  0.30  0.20   of the edge type that lost most: mean relevance (see `compare`) before, less the mean
                                 of now; twenty memories drawn by lot are within 0.1 of their mean
    useful_loss     0.20  0.10   useful share of feedback on answers without what the graph adds, less that on answers
                                 with it
    harm_rate       0.50  0.40   feedback on added memories that says not useful, where that is more than on answers
                                 without any: more harm than use

A figure with too few observations is unknown, and counts for nothing. `overlap` (added memories that the baseline ranks
next anyway) is shown and not judged: a graph that agrees with the baseline does no harm.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import numpy as np

from recallflow.graphs import TypeFigures
from recallflow.state.arrays import Column, Places

HOUR_MS = 3_600_000
TYPES_MOST = 32  # edge types of which is known what they gave before, those seen last

Outcome = Literal["expanded", "failed", "stopped", "late"]
Part = Literal["added", "beside", "without"]
"""What feedback is about: a memory that the graph added, one that was ranked in the same answer, or one of an answer to
which it added nothing."""
Figure = int | float | None


class Bounds(NamedTuple):
    """A figure above `block` blocks; blocked expansion returns with all figures at or below `free`."""

    block: float
    free: float


BOUNDS = MappingProxyType(
    {
        "error_rate": Bounds(0.05, 0.02),
        "fallback_rate": Bounds(0.25, 0.10),
        "added_words": Bounds(2_000, 1_500),
        "relevance_loss": Bounds(0.3, 0.2),
        "useful_loss": Bounds(0.2, 0.1),
        "harm_rate": Bounds(0.5, 0.4),
    }
)


class Compared(NamedTuple):
    """Memories that the graph adds to one answer: which share of them the baseline ranks next anyway; the mean
    relevance of those that edges of a type led to, 0 to 1; and how many content words they have."""

    overlap: float
    relevance: Mapping[str, float]
    words: int


class Seen(NamedTuple):
    """One expansion, applied or only measured, and what it added, if anything. `late`: with it an answer that had a
    time to be done in came later."""

    at_ms: int
    outcome: Outcome
    compared: Compared | None = None


def compare(
    signal: Column, left_out: Places, expanded: Places, types: Sequence[str], words: Iterable[int]
) -> Compared | None:
    """`signal`: (n,) what the baseline makes of each memory; `left_out`: places that it could have answered and did
    not; `expanded`: those of them that the graph adds, with the `types` of the edges to them, and their lengths in
    `words`. A memory's relevance is the share of the left out that it beats, ties by half: the best has nearly 1,
    memories drawn by lot have 0.5."""
    if not len(expanded):
        return None
    pool, count = signal[left_out], len(expanded)
    next_best = np.partition(pool, -count)[-count:]
    overlap = (signal[expanded] >= next_best.min()).mean()
    of_type: dict[str, list[float]] = {}
    for kind, value in zip(types, signal[expanded], strict=True):
        of_type.setdefault(kind, []).append(float((pool < value).mean() + (pool == value).mean() / 2))
    return Compared(float(overlap), {kind: _mean(values) for kind, values in of_type.items()}, int(sum(words)))


@dataclass(frozen=True, slots=True)
class Window:
    """How far back the gate looks, and the fewest observations that say something."""

    span_ms: int = HOUR_MS
    most: int = 200
    answers: int = 20
    feedback: int = 10


class Gate:
    """What was seen of one tenant."""

    def __init__(self, window: Window | None = None) -> None:
        self._window = window or Window()
        self.since_ms = self.latest_ms = 0
        self._seen: deque[Seen] = deque()
        self._feedback = {part: deque[tuple[int, bool]](maxlen=self._window.most) for part in get_args(Part)}
        self._before: OrderedDict[str, deque[float]] = OrderedDict()

    def restart(self, since_ms: int) -> None:
        """Forgets what was seen before a time, and what edges gave then, and counts nothing from before it."""
        self.since_ms, self.latest_ms = since_ms, max(since_ms, self.latest_ms)
        self._seen = deque(seen for seen in self._seen if seen.at_ms >= since_ms)
        self._before.clear()

    def observe(self, seen: Seen, blocked: bool = False) -> None:
        """`blocked`: whether the tenant is; what was seen then is no measure for what comes later."""
        if not self._counts(seen.at_ms):
            return
        self._seen.append(seen)
        while len(self._seen) > self._window.most or self._seen[0].at_ms < self._begin_ms:
            old = self._seen.popleft()
            if old.compared is not None and not blocked:
                self._remember(old.compared.relevance)

    def feedback(self, at_ms: int, useful: bool, part: Part = "added") -> None:
        """What a user said of a memory."""
        if self._counts(at_ms):
            self._feedback[part].append((at_ms, useful))

    def figures(self) -> dict[str, Figure]:
        """The windows' figures, None where too little was seen; and how much was seen."""
        answers, found = len(self._seen), [seen.compared for seen in self._seen if seen.compared is not None]
        failed = sum(seen.outcome == "failed" for seen in self._seen)
        went_without = failed + sum(seen.outcome in ("stopped", "late") for seen in self._seen)
        enough, compared = self._window.answers, len(found)
        added, beside, without = (self._said(part) for part in get_args(Part))
        useful = {"added": self._useful(added), "with": self._useful(added + beside), "without": self._useful(without)}
        return {
            "answers": answers,
            "feedback": len(added + beside + without),
            "error_rate": _rate(failed, answers, enough),
            "fallback_rate": _rate(went_without, answers, enough),
            "overlap": _rate(sum(one.overlap for one in found), compared, enough),
            "added_words": _rate(sum(one.words for one in found), compared, enough),
            "relevance_loss": max((loss for loss, _ in self._losses()), default=None),
            "useful_added": useful["added"],
            "useful_with": useful["with"],
            "useful_without": useful["without"],
            "useful_loss": _loss(useful["without"], useful["with"]),
            "harm_rate": _harm(useful["added"], useful["without"]),
        }

    def types(self) -> dict[str, TypeFigures]:
        """What edges of each type gave in the window and before it, as relevance."""
        now, enough = self._now(), self._window.answers
        return {
            kind: TypeFigures(
                answers=len(now.get(kind, ())),
                relevance=_known_mean(now.get(kind, ()), enough),
                before=_known_mean(self._before.get(kind, ()), enough),
            )
            for kind in sorted(now.keys() | self._before.keys())
        }

    def blocks(self, blocked: bool) -> bool:
        """Whether expansion is to be blocked, where now it is `blocked` or not. What holds goes on between the two
        bounds, and until enough was seen."""
        figures = self.figures()
        return bool(_beyond(figures, blocked)) or (blocked and figures["error_rate"] is None)

    def reason(self, blocked: bool) -> str:
        """The figures that speak against expansion, for those who read a verdict."""
        losses = self._losses()
        named = {"relevance_loss": f" ({max(losses)[1]})"} if losses else {}
        beyond = _beyond(self.figures(), blocked).items()
        return ", ".join(f"{name} {round(value, 2):g}{named.get(name, '')}" for name, value in beyond) or "recovered"

    # ------------------------------------------------------------------ parts

    def _losses(self) -> list[tuple[float, str]]:
        """How much less relevant what edges of a type give is than what they gave before, of each type that enough is
        known of."""
        enough = self._window.answers
        known = ((kind, self._before.get(kind, ()), values) for kind, values in self._now().items())
        means = ((kind, _known_mean(before, enough), _known_mean(now, enough)) for kind, before, now in known)
        return [(loss, kind) for kind, before, now in means if (loss := _loss(before, now)) is not None]

    def _now(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for seen in self._seen:
            for kind, value in seen.compared.relevance.items() if seen.compared is not None else ():
                found.setdefault(kind, []).append(value)
        return found

    def _remember(self, relevance: Mapping[str, float]) -> None:
        """Keeps what left the window, as what the types of edges gave before."""
        for kind, value in relevance.items():
            self._before.setdefault(kind, deque(maxlen=self._window.most)).append(value)
            self._before.move_to_end(kind)
        while len(self._before) > TYPES_MOST:
            self._before.popitem(last=False)

    def _said(self, part: Part) -> list[bool]:
        return [useful for at_ms, useful in self._feedback[part] if at_ms >= self._begin_ms]

    def _useful(self, said: list[bool]) -> float | None:
        return _rate(sum(said), len(said), self._window.feedback)

    def _counts(self, at_ms: int) -> bool:
        """Whether something of this time is in the window; another one may be beyond it from now on."""
        self.latest_ms = max(self.latest_ms, at_ms)
        return at_ms >= self._begin_ms

    @property
    def _begin_ms(self) -> int:
        return max(self.since_ms, self.latest_ms - self._window.span_ms)


def _beyond(figures: Mapping[str, Figure], blocked: bool) -> dict[str, float]:
    """Known figures above their bound: the one to block, or, where it is `blocked`, the one to free."""
    limits = {name: bounds.free if blocked else bounds.block for name, bounds in BOUNDS.items()}
    known = {name: value for name in limits if (value := figures[name]) is not None}
    return {name: value for name, value in known.items() if value > limits[name]}


def _rate(part: float, whole: float, enough: float) -> float | None:
    return round(part / whole, 6) if whole and whole >= enough else None


def _known_mean(values: Collection[float], enough: int) -> float | None:
    return _rate(sum(values), len(values), enough)


def _loss(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else round(max(0.0, before - now), 6)


def _harm(added: float | None, without: float | None) -> float | None:
    """The share that is not useful of what is added; 0 where answers without it are no better."""
    if added is None:
        return None
    return 0.0 if without is not None and added >= without else round(1 - added, 6)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
