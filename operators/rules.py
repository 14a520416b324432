"""Settings of the state step."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from recallflow.control import ControlHistory
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
    """The settings that shape the state, and the properties of the environment.

    Attributes:
        model: The name of the embedder.
        query_topic: The topic of queries only; None if all records come from one log.
        reply_topics: Topics that a query may name in `reply_to`, with their partition counts; None to ignore the field.
        input_ends: The input is a log that ends.
        decisions: The control events in force.
        graph_writer: Writes the graph.
        graph_enabled: Queries may use the graph.
        skips: Positions of records to refuse unread.
        wanted: The enrichment tasks; None without an enrichment flow.
        audited: The access log is written.
        comes_again: A record may be read again after a crash.
    """

    model: str
    episode_gap_ms: int
    query_topic: str | None = None
    reply_topics: Mapping[str, int] | None = None
    input_ends: bool = True
    decisions: ControlHistory = dataclasses.field(default_factory=ControlHistory)
    similarity: Similarity = dataclasses.field(default_factory=Similarity)
    graph_writer: MakeWriter = GraphWriter
    graph_enabled: bool = True
    skips: frozenset[Position] = frozenset()
    wanted: EnrichmentTasks | None = None
    audited: bool = False
    comes_again: bool = True
