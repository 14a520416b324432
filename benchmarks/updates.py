"""Order of changing facts: whether an answer has the current statement before those that it replaced.

    python -m benchmarks.updates [--embedder NAME] [--model-path DIR] [--mode hybrid] [--fit] [--json FILE]

Each case of `changing_facts.py` is asked through the flow, for an owner that has only the case's messages. By kind of
case, style, language and attribute, the command prints the share of cases in which the answering memory

    current-first   precedes the memories that it replaced, or that do not answer
    current@1, @3   is the first, or among the first three

The weights in use are fitted to the cases, but not to the profiles. `--fit` judges each language, and then each
attribute, with weights fitted to the others, and writes the weights fitted to all to
operators/recall/update_weights.py. Everyday facts, of which none changes, are part of the fit. `--quick` uses the
English cases only, and writes no weights.
"""

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import orjson

from benchmarks import kinds
from benchmarks.answerable import Fit, fit
from benchmarks.changing_facts import Case, Line, cases, profiles
from benchmarks.command_line import write_json
from benchmarks.conversation_events import embedder_arguments, embedder_settings
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.language.statements import StatementReading, read_statements
from recallflow.operators.recall import rank_and_judge, update_weights, updates
from recallflow.queries import K_MAX

MINUTE_MS = 60_000
BEGIN_MS = 1_750_000_000_000
REPLACING = ("update", "double", "reverted", "correction", "group")
KEPT = ("other", "addition", "participant")
# The total weight of the pairs of each sort: updates, other pairs of the same attribute, and unrelated pairs, the most
# frequent ones.
SHARES = {"update": 1.0, "case": 1.0, "unrelated": 10.0}
SHARE_TOTAL = 4_000.0
FILE = Path(update_weights.__file__)
_UNRANKED = [-1] * 1_000  # memories beyond the answer, which may be compared as the next message of a good one
Shares = dict[str, float]
Floats = npt.NDArray[np.float64]


class CaseAnswer(NamedTuple):
    """A case's answer: message numbers in rank order, which ranks were looked at for updates, and their features."""

    ranked: list[int]
    looked_at: list[int]
    pairs: updates.Pairs


def ask(settings: Settings, every: Sequence[Case], mode: str, *, updating: bool = True) -> list[CaseAnswer]:
    """Return each case's answer. `updating`: whether updates change the order."""
    recorded: list[tuple[list[int], updates.Pairs]] = []
    looked_at: list[list[int]] = []
    likely, looks = updates.probabilities, rank_and_judge._ranks_to_compare

    def look(*given: Any) -> list[int]:
        looked_at.append(looks(*given))
        return looked_at[-1]

    def record(question: StatementReading, candidates: updates.UpdateCandidates) -> Any:
        recorded.append((looked_at[-1], updates.features(question, candidates)))
        return likely(question, candidates) if updating else np.zeros(2 * (len(candidates.statements),))

    def lines() -> Iterable[bytes]:
        for number, case in enumerate(every):
            owner = {"tenant_id": case.language, "user_id": str(number)}
            for at, line in enumerate(case.lines):
                event = {"type": "message", "id": str(at), "content": line.text, "session_id": "chat"}
                yield orjson.dumps(owner | event | {"name": line.author, "timestamp": BEGIN_MS + at * MINUTE_MS})
        for number, case in enumerate(every):
            owner = {"tenant_id": case.language, "user_id": str(number), "id": str(number)}
            asked = {"type": "recall", "query": case.question, "mode": mode, "k": K_MAX}
            yield orjson.dumps(owner | asked | {"timestamp": BEGIN_MS + len(case.lines) * MINUTE_MS})

    with patch.object(updates, "probabilities", record), patch.object(rank_and_judge, "_ranks_to_compare", look):
        done = process(lines(), settings)
    assert not done.rejected, done.rejected[:1]
    order = [int(one["query_id"]) for one in done.responses]
    assert order == [*range(len(every))], "answers come in the order of the questions"
    assert len(recorded) == len(every), "every answer looks for updates"
    ranked = ([int(memory["id"]) for memory in one["memories"]] for one in done.responses)
    return [CaseAnswer(order + _UNRANKED, *of) for order, of in zip(ranked, recorded, strict=True)]


def judge(case: Case, ranked: Sequence[int]) -> Shares:
    """Return the measures of one case, 0 or 1."""
    at = {number: rank for rank, number in enumerate(ranked)}
    own = at.get(case.best, len(ranked))
    first = all(own < at.get(other, len(ranked) + 1) for other in case.replaced)
    return {"current-first": float(first), "current@1": float(own < 1), "current@3": float(own < 3)}


def shares(judged: Iterable[tuple[str, Shares]]) -> dict[str, Shares]:
    """Return the mean of each measure by name."""
    rows: defaultdict[str, list[Shares]] = defaultdict(list)
    for name, one in judged:
        rows[name].append(one)
    return {
        name: {measure: float(np.mean([one[measure] for one in of])) for measure in of[0]} for name, of in rows.items()
    }


def report(every: Sequence[Case], ranked: Sequence[Sequence[int]]) -> dict[str, dict[str, Shares]]:
    """Print and return the measures by label and name; by language and attribute, of the kinds that replace."""
    judged = [judge(case, order) for case, order in zip(every, ranked, strict=True)]
    found: dict[str, dict[str, Shares]] = {}
    labels: dict[str, list[str]] = {
        "kind": [f"{case.kind}, {case.style}" for case in every],
        "group": [_group(case) for case in every],
        "language": [case.language for case in every],
        "attribute": [case.attribute for case in every],
    }
    for label, names in labels.items():
        chosen = [label in ("kind", "group") or case.kind in REPLACING for case in every]
        found[label] = shares(compress([*zip(names, judged, strict=True)], chosen))
        for name, of in found[label].items():
            print(f"{label} {name:<22}" + "  ".join(f"{measure} {value:.3f}" for measure, value in of.items()))
    return found


def _group(case: Case) -> str:
    of = "replaced" if case.kind in REPLACING else "kept" if case.kind in KEPT else case.kind
    return f"{of}, {case.style}"


# ---------------------------------------------------------------------- the fit


class Pairs(NamedTuple):
    """Pairs of memories of answers: (pairs, features), whether the newer one updates, (pairs,) weights and the case."""

    terms: Floats
    label: npt.NDArray[np.bool_]
    weight: Floats
    case: npt.NDArray[np.int64]


def facts() -> Iterator[Case]:
    """Yield everyday facts, of which none changes, with a question each."""
    for kind in ("everyday", "everyday_languages"):
        for conversation in kinds.load(kind):
            lines = [Line(turn.text) for turn in conversation.turns]
            numbers = {turn.id: at for at, turn in enumerate(conversation.turns)}
            for question in conversation.questions:
                best = numbers[next(iter(question.evidence))]
                yield Case(question.category, "none", "plain", "past", lines, question.text, best, [])


def paired(every: Sequence[Case], answers: Sequence[CaseAnswer], names: Sequence[str]) -> Pairs:
    """Return the pairs of all answers. Two statements about other attributes are left out: one may update the other."""
    terms, label, related, case_of = [], [], [], []
    for number, (case, answer) in enumerate(zip(every, answers, strict=True)):
        older, newer, values = answer.pairs
        stated = {case.best, *case.replaced} if case.replaced else set()
        is_stated = np.array([answer.ranked[rank] in stated for rank in answer.looked_at])
        both = is_stated[older] & is_stated[newer]
        is_other = np.array([answer.ranked[rank] in case.others for rank in answer.looked_at])
        taken = np.flatnonzero(~(is_other[older] & is_other[newer]))
        terms.append(np.array([values[name][taken] for name in names]).T if len(taken) else np.zeros((0, len(names))))
        related.append(both[taken])
        label.append(related[-1] & (case.kind in (*REPLACING, "past")))
        case_of.append(np.full(len(taken), number))
    is_related, is_update = np.concatenate(related), np.concatenate(label)
    sort = np.where(is_update, "update", np.where(is_related, "case", "unrelated"))
    weight = np.zeros(len(sort))
    for name, share in SHARES.items():
        weight[sort == name] = SHARE_TOTAL * share / max((sort == name).sum(), 1)
    return Pairs(np.concatenate(terms), is_update, weight, np.concatenate(case_of))


def fitted(pairs: Pairs, chosen: npt.NDArray[np.bool_]) -> Fit:
    return fit(pairs.terms[chosen], pairs.label[chosen].astype(np.float64), pairs.weight[chosen])


def settled(case: Case, answer: CaseAnswer, names: Sequence[str], made: Fit) -> list[int]:
    """Return the ranked messages as updates by these weights put them."""
    older, newer, values = answer.pairs
    likely = np.zeros((len(answer.looked_at), len(answer.looked_at)))
    if len(older):
        likely[older, newer] = made.probability(np.array([values[name] for name in names]).T)
    about_past = read_statements([case.question])[0].has("past")
    order = updates.reordered(answer.looked_at, likely, len(answer.ranked), about_past=about_past)
    return [answer.ranked[rank] for rank in order]


def left_out(every: Sequence[Case], answers: Sequence[CaseAnswer], pairs: Pairs, names: Sequence[str]) -> None:
    """Print the measures with each language left out of the fit that judges it, then with each attribute."""
    for label in ("language", "attribute"):
        of = np.array([getattr(case, label) for case in every])
        ranked: list[list[int]] = [[] for _ in every]
        for name in np.unique(of):
            made = fitted(pairs, of[pairs.case] != name)
            for number in np.flatnonzero(of == name).tolist():
                ranked[number] = settled(every[number], answers[number], names, made)
        print(f"\nleft out by {label}:")
        changing = [number for number, case in enumerate(every) if case.replaced]
        report([every[number] for number in changing], [ranked[number] for number in changing])
        still = [number for number, case in enumerate(every) if not case.replaced]
        plain = np.mean([answers[number].ranked[0] == every[number].best for number in still])
        first = np.mean([ranked[number][0] == every[number].best for number in still])
        print(f"facts that do not change: first {first:.3f}, without updates {plain:.3f}")


def written(names: Sequence[str], made: Fit) -> str:
    """Return the source of the weights' module."""
    source = FILE.read_text()
    pairs = zip(names, made.weights.tolist(), strict=True)
    lines = textwrap.wrap(" ".join(f'"{name}":~{weight:.3g},' for name, weight in pairs), 116, break_on_hyphens=False)
    rows = "".join(f"    {line}\n" for line in lines).replace("~", " ")  # no line ends within a pair
    start = source[: source.index("BIAS =")]
    return f"{start}BIAS = {made.bias:.3g}\nWEIGHTS: Mapping[str, float] = {{\n{rows}}}  # fmt: skip\n"


def main() -> None:
    parser = embedder_arguments(__doc__)
    parser.set_defaults(embedder="meaning")
    parser.add_argument("--mode", default="hybrid", help="the ranking mode (default: hybrid)")
    parser.add_argument("--fit", action="store_true", help=f"judge left out, and write the weights to {FILE.name}")
    parser.add_argument("--quick", action="store_true", help="the English cases only")
    chosen = parser.parse_args()
    settings = embedder_settings(chosen)
    every = [case for case in (*cases(), *profiles()) if case.language == "en" or not chosen.quick]
    found = report(every, [answer.ranked for answer in ask(settings, every, chosen.mode)])
    write_json(found, chosen.json)
    if chosen.fit or chosen.quick:
        every = [case for case in (*every, *facts()) if case.kind != "profile"]
        answers = ask(settings, every, chosen.mode, updating=False)
        names = [*update_weights.WEIGHTS]
        pairs = paired(every, answers, names)
        left_out(every, answers, pairs, names)
        if not chosen.quick:
            FILE.write_text(written(names, fitted(pairs, np.ones(len(pairs.label), np.bool_))))


if __name__ == "__main__":
    main()
