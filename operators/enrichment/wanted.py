"""What a deployment wants of the enrichment flow: the settings that decide which event asks it for what."""

from typing import NamedTuple


class Wanted(NamedTuple):
    """`embed`: vectors come from an embedding service. `by_meaning`: a cosine says how alike two texts are in meaning,
    and not just in spelling; then those within `similarity_min` and `similarity_max` are ambiguous. `min_chars`: of a
    text that is read for relations; `recent`: how many memories are shown beside it."""

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
