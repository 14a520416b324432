"""What shapes the state beside its events: settings, and what the surroundings are like."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from recallflow.decisions import History
from recallflow.operators.graph.write import GraphWriter, MakeWriter, Similarity
from recallflow.records import Position


class EnrichmentTasks(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that shape what is stored, and what the surroundings are like: the topic that brings queries only
    (None: all come from one log), topics that a query may name in `reply_to` with their partition counts (None: it is
    not read), whether the input is a log that ends, what tenants' operators decided, what writes the graph, whether
    queries may follow it, the records to refuse unread, what is wanted of the enrichment flow (None: nobody reads
    requests), whether an access record is kept, and whether a record may come again after a kill."""

    model: str
    episode_gap_ms: int
    query_topic: str | None = None
    reply_topics: Mapping[str, int] | None = None
    input_ends: bool = True
    decisions: History = dataclasses.field(default_factory=History)
    similarity: Similarity = dataclasses.field(default_factory=Similarity)
    graph_writer: MakeWriter = GraphWriter
    graph_enabled: bool = True
    skips: frozenset[Position] = frozenset()
    wanted: EnrichmentTasks | None = None
    audited: bool = False
    comes_again: bool = True
