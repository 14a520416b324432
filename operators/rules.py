"""Settings of the state step."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from recallflow.control import ControlHistory
from recallflow.operators.graph.write import GraphWriter, MakeWriter, Similarity
from recallflow.records import Position


class EnrichmentTasks(NamedTuple):
    """The enrichment tasks of a deployment, and their limits."""

    embed: bool = False  # an embedding service supplies the vectors
    by_meaning: bool = True  # vectors express meaning, and not spelling
    relationships: bool = False
    facts: bool = False
    categories: bool = False
    summaries: bool = False
    similarity_min: float = 0.70  # cosines from here to `similarity_max` are ambiguous, and the model decides
    similarity_max: float = 0.90
    min_chars: int = 20  # the least length of a text for the extraction of relations
    recent: int = 20  # the number of recent memories as context


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that shape the state, and the properties of the deployment."""

    model: str  # the name of the embedder
    episode_gap_ms: int
    query_topic: str | None = None  # a topic of queries only; None if queries are in the log of events
    # Topics that a query may name in `reply_to`, with their partition counts; None to ignore the field.
    reply_topics: Mapping[str, int] | None = None
    input_ends: bool = True  # the input is a log that ends, such as a file
    decisions: ControlHistory = dataclasses.field(default_factory=ControlHistory)  # all control events
    similarity: Similarity = dataclasses.field(default_factory=Similarity)
    graph_writer: MakeWriter = GraphWriter  # writes the graph
    graph_enabled: bool = True  # queries may use the graph
    skips: frozenset[Position] = frozenset()  # positions of records to refuse without decoding
    enrichment: EnrichmentTasks | None = None  # the enrichment tasks; None without an enrichment flow
    audited: bool = False  # the access log is written
    is_replayable: bool = True  # a record may be read again after a crash
