"""Enrichment tasks of a deployment."""

from typing import NamedTuple


class Wanted(NamedTuple):
    """The enrichment tasks of a deployment, and their limits.

    Attributes:
        embed: An embedding service supplies the vectors.
        by_meaning: Vectors express meaning, not only spelling; then cosines within `similarity_min` and
            `similarity_max` are ambiguous.
        min_chars: The least length of a text for the extraction of relations.
        recent: The number of recent memories as context.
    """

    embed: bool = False
    by_meaning: bool = True
    relationships: bool = False
    facts: bool = False
    categories: bool = False
    summaries: bool = False
    similarity_min: float = 0.70
    similarity_max: float = 0.90
    min_chars: int = 20
    recent: int = 20
