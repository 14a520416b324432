"""Writes operators/recall/relevance_weights.py: its tables, with the weights that were fitted anew in their places."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from recallflow.operators.recall import relevance_weights
from recallflow.operators.recall.relevance_weights import GROUNDS, Basis, Table, Talk

FILE = Path(relevance_weights.__file__)

Fitted = Mapping[Talk, Mapping[str, float]]  # the weight of each term, by who talks


def renewed(table: Table, basis: Basis, fitted: Fitted, terms: Sequence[str]) -> Table:
    """The table with these terms alone, and what was fitted in place of what rests on the same basis and talk."""
    none = (0.0,) * len(GROUNDS)
    return {
        term: tuple(
            fitted[talk][term] if of == basis and talk in fitted else known
            for (of, talk), known in zip(GROUNDS, table.get(term, none), strict=True)
        )
        for term in terms
    }


def written(source: str, tables: Mapping[str, Table]) -> str:
    """The file's text with these tables in place of its own; what stands before the first of them stays."""
    before = source[: source.index(f"{next(iter(tables))}: Table = ")]
    return before + "".join(_written(name, table) for name, table in tables.items())


def _written(name: str, table: Table) -> str:
    rows = (f'    "{term}": ({", ".join(f"{weight:g}" for weight in weights)}),\n' for term, weights in table.items())
    return f"{name}: Table = {{\n{''.join(rows)}}}  # fmt: skip\n"
