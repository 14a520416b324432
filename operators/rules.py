"""What shapes the state beside its events: settings, and what the surroundings are like."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from recallflow.decisions import History
from recallflow.operators.enrichment.wanted import Wanted
from recallflow.operators.graph.similar import Similarity
from recallflow.operators.graph.write import GraphWriter, MakeWriter
from recallflow.records import Position


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
    wanted: Wanted | None = None
    audited: bool = False
    comes_again: bool = True
