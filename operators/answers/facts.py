"""Search over relations: stated edges around nodes and memories, with the memories that state them.

If the query names no entities, the search covers the edges at the memories that match the words best, at the newest
memories, and at all entities. A fact's score is the share of the question's content words that it contains: words in
its ends, type and properties count fully, words in its evidence count half."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from recallflow.graphs import Evidence, Fact, Facts, InvalidReason
from recallflow.language.analysis import stems
from recallflow.language.places import find_stems
from recallflow.language.tables import ENGLISH
from recallflow.operators.answers.explore import edge_fields
from recallflow.operators.graph.reader import (
    candidate_nodes,
    has_weight,
    is_type_node,
    marks,
    named_entities,
    superseded,
    with_read_cache,
)
from recallflow.operators.recall.moment import Moment, newest_seqs
from recallflow.operators.recall.phrases import short
from recallflow.operators.redaction import RowsReader, is_readable
from recallflow.queries import GraphFacts
from recallflow.state.graph import Edge, OwnerGraph
from recallflow.state.graph_codec import SIMILAR_TO, SYMMETRIC, NodeKey
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow
from recallflow.stepped import spend

FACT_COST = 10  # work units per edge to read or to show
EDGES_PER_NODE = 200  # the newest ones
OPENED_MAX = 400  # nodes and memories whose edges are read
EDGES_MAX = 1_000
NEWEST_MEMORIES = 200  # in addition to the best matches
QUOTED_MEMORIES = 3  # of a fact, the newest ones
_EVIDENCE_WEIGHT = 0.5


class _ScoredFact(NamedTuple):
    """A fact with its score, and the reasons why it does not count at the moment."""

    edge: Edge
    score: float
    marks: list[InvalidReason]


def _order(fact: _ScoredFact) -> tuple[float, float, int, str, str, str]:
    edge = fact.edge
    weight = edge.weight * edge.confidence
    return -fact.score, -weight, -edge.ingested_ms, str(edge.source), edge.type, str(edge.target)


class FactSearch:
    """The search of one query, in the graph and memories of its moment."""

    def __init__(self, graph: OwnerGraph, index: OwnerIndex, rows: RowsReader, query: GraphFacts, moment: Moment):
        self._graph, self._index, self._query, self._moment = with_read_cache(graph), index, query, moment
        self._rows = rows
        self._complete = True
        self._row_of: dict[str, MemoryRow | None] = {}
        self._superseded = superseded(graph, moment.now_ms)
        self._stems = _words(query.query or "")

    def run(self, best: Sequence[int]) -> Facts:
        """Return the facts. `best` are the memories (`seq`) that match the question best."""
        candidates = self._candidates(self._initial_nodes(best))
        memory_ids = dict.fromkeys(memory_id for edge in candidates for memory_id in edge.evidence[-QUOTED_MEMORIES:])
        slots = {memory_id: slot for memory_id in memory_ids if (slot := self._slot(memory_id)) is not None}
        self._row_of = dict(zip(slots, self._rows([*slots.values()]), strict=True))
        found = []
        for edge in candidates:
            spend(FACT_COST)
            reasons = self._marks(edge)
            if (reasons or not has_weight(edge)) and not self._query.include_history:
                continue
            score = self._score(edge)
            if score > 0 or not self._stems:
                found.append(_ScoredFact(edge, score, reasons))
        found.sort(key=_order)
        return Facts(facts=[self._fact(fact) for fact in found[: self._query.limit]], complete=self._complete)

    def _initial_nodes(self, best: Sequence[int]) -> Iterator[NodeKey]:
        """Yield the given entities, or else the named ones, the nodes of each memory, and all entities."""
        if self._query.entities:
            yield from candidate_nodes(self._graph, self._query.entities, "entities")
            return
        seqs = newest_seqs(self._index, self._moment)
        self._complete = len(seqs) <= NEWEST_MEMORIES
        yield from named_entities(self._graph, self._query.query) if self._query.query else ()
        for seq in dict.fromkeys([*best, *seqs[:NEWEST_MEMORIES]]):
            yield from (key for key, _ in self._graph.links(seq) if not is_type_node(key))
        yield from self._graph.entities()

    def _candidates(self, initial: Iterator[NodeKey]) -> list[Edge]:
        """Return the edges at the nodes without duplicates, within the limits."""
        found: dict[tuple[str, frozenset[NodeKey] | tuple[NodeKey, NodeKey]], Edge] = {}
        opened, types = set[NodeKey](), self._query.types
        for key in initial:
            if key in opened:
                continue
            if len(opened) == OPENED_MAX or len(found) >= EDGES_MAX:
                self._complete = False
                break
            opened.add(key)
            edges = self._graph.edges(key, EDGES_PER_NODE + 1)
            self._complete &= len(edges) <= EDGES_PER_NODE
            for edge in islice(edges, EDGES_PER_NODE):
                if edge.type in types if types else edge.type != SIMILAR_TO:
                    ends = edge.source, edge.target
                    found.setdefault((edge.type, frozenset(ends) if edge.type in SYMMETRIC else ends), edge)
        return [*found.values()][:EDGES_MAX]

    def _slot(self, memory_id: str) -> int | None:
        seqs = self._graph.members(NodeKey(memory_id, memory=True), 1)
        return self._index.slot(seqs[0]) if seqs else None

    def _marks(self, edge: Edge) -> list[InvalidReason]:
        """Return the reasons why a fact does not count: its own, or those shared by all its evidence."""
        found = marks(edge, self._moment.now_ms)
        if any(self._graph.is_archived(end) for end in (edge.source, edge.target)) and "archived" not in found:
            found.append("archived")
        slots = [slot for memory_id in edge.evidence if (slot := self._slot(memory_id)) is not None]
        facts, now_ms = self._index.facts, self._moment.now_ms
        tests: dict[InvalidReason, Callable[[int], bool]] = {
            "not_yet_valid": lambda slot: now_ms < facts["valid_from_ms"][slot],
            "expired": lambda slot: now_ms >= min(facts["valid_to_ms"][slot], facts["expires_ms"][slot]),
            "superseded": lambda slot: int(facts["seq"][slot]) in self._superseded,
        }
        if slots:
            found += [mark for mark, applies in tests.items() if mark not in found and all(map(applies, slots))]
        return found

    def _score(self, edge: Edge) -> float:
        if not self._stems:
            return 0.0
        texts = [self._name(edge.source), edge.type, self._name(edge.target), *map(str, edge.properties.values())]
        stated = {*stems(" ".join(texts).replace("_", " ").replace("-", " "))}
        rows = (self._row_of.get(one) for one in edge.evidence[-QUOTED_MEMORIES:])
        quoted = {stem for row in rows if is_readable(row) for stem in stems(row.content)}
        points = (1.0 if stem in stated else _EVIDENCE_WEIGHT if stem in quoted else 0.0 for stem in self._stems)
        return round(sum(points) / len(self._stems), 6)

    def _name(self, key: NodeKey) -> str:
        node = self._graph.node(key)
        return str(key) if node is None else node.name

    def _fact(self, found: _ScoredFact) -> Fact:
        spend(FACT_COST)
        edge = found.edge
        rows = [self._row_of.get(one) for one in reversed(edge.evidence[-QUOTED_MEMORIES:])]
        return Fact(
            **edge_fields(edge),
            source_name=self._name(edge.source),
            target_name=self._name(edge.target),
            evidence=[Evidence(id=row.id, quote=_quote(row.content, self._stems)) for row in rows if is_readable(row)],
            evidence_count=len(edge.evidence),
            score=found.score,
            marks=found.marks,
        )


def _quote(content: str, wanted: Sequence[str]) -> str:
    """Quote the first sentence with a word of the question, or the first sentence."""
    (found,) = find_stems([content], [wanted], 0)
    return short(content, *found[0][1:]) if found else short(content)


def _words(query: str) -> list[str]:
    """Return the stems of a question's content words, or of all words if it has none."""
    content = [word for word in query.split() if word.strip("?!.,;:'\"").lower() not in ENGLISH.function_words]
    return list(dict.fromkeys(stems(" ".join(content)) or stems(query)))
