"""Precision and recall of the names read from labelled sentences of chats in eleven languages.

    python -m benchmarks.names

The sentences are in tests/unit/operators/graph/names: one half was looked at while the rules were written, the other
half was not. A name counts as found where it is spelt as its label.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from recallflow.operators.graph.names import read_names, with_known
from recallflow.state.entity_names import is_caseless
from recallflow.state.graph_codec import ENTITY_KIND, node_key

LABELS = Path(__file__).parent.parent / "tests/unit/operators/graph/names"
HALVES = ("built_on", "kept_aside")


class Sentence(NamedTuple):
    """A sentence with the names in it, those for which either way is right, and the names that were known before."""

    language: str
    text: str
    names: frozenset[str]
    optional: frozenset[str]
    known: frozenset[str]


class Score(NamedTuple):
    found: int
    right: int
    wanted: int

    @property
    def precision(self) -> float:
        """Of the names found, the share that are names."""
        return self.right / max(self.found, 1)

    @property
    def recall(self) -> float:
        """Of the names there are, the share that were found."""
        return self.right / max(self.wanted, 1)


def sentences(half: str) -> list[Sentence]:
    """The labelled sentences of a half."""
    lines = (LABELS / f"{half}.txt").read_text("utf-8").splitlines()
    return [_sentence(line) for line in lines if not line.startswith("#")]


def _sentence(line: str) -> Sentence:
    language, text, labels, *known = (part.strip(" ") for part in line.split(" | ", 1)[:1] + line.split("|")[1:])
    named = [name.strip() for name in labels.split(";") if name.strip()]
    optional = {name.strip("()") for name in named if name.startswith("(")}
    before = {name.strip() for part in known for name in part.split(";") if name.strip()}
    return Sentence(
        language, text, frozenset(named) - {f"({name})" for name in optional}, frozenset(optional), frozenset(before)
    )


def found_in(sentence: Sentence) -> frozenset[str]:
    """The names read from a sentence."""
    known = {node_key(ENTITY_KIND, name) for name in sentence.known}
    caseless = [name for name in sentence.known if is_caseless(name)]
    return frozenset(with_known(read_names(sentence.text), known.__contains__, sentence.text, caseless).entities)


def score(labelled: Iterable[Sentence]) -> Score:
    """How many names were found, how many of these are right, and how many there are."""
    sums: Counter[str] = Counter()
    for sentence in labelled:
        keys = {node_key(ENTITY_KIND, name) for name in found_in(sentence)}
        wanted = {node_key(ENTITY_KIND, name) for name in sentence.names}
        found = keys - {node_key(ENTITY_KIND, name) for name in sentence.optional}
        sums.update(found=len(found), right=len(found & wanted), wanted=len(wanted))
    return Score(sums["found"], sums["right"], sums["wanted"])


def main() -> None:
    print(f"{'half':<12}{'language':<10}{'sentences':>10}{'names':>7}{'precision':>11}{'recall':>8}")
    for half in HALVES:
        labelled = sentences(half)
        languages = dict.fromkeys(sentence.language for sentence in labelled)
        for language in (*languages, "all"):
            part = [one for one in labelled if language in (one.language, "all")]
            result = score(part)
            figures = f"{result.wanted:>7}{result.precision:>11.3f}{result.recall:>8.3f}"
            print(f"{half:<12}{language:<10}{len(part):>10}{figures}")


if __name__ == "__main__":
    main()
