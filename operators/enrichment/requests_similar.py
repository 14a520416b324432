"""Memories that a new one may agree with, refine or contradict, for comparison by a language model.

With semantic vectors, these are memories whose cosine is in the ambiguous range, the closest first. Vectors of
spellings are less reliable. Then memories are compared that share a subject and further words. A subject is an entity,
the user that facts are about, or the author. The author is the subject of all their messages, so two common words are
needed; one is enough for other subjects. Facts are short and need one word less. Most common words come first, then the
newest.

The number of compared memories is limited: the closest by sketch among the newest, the newest of each named entity, and
for a fact the newest of its kind."""

from itertools import islice
from typing import NamedTuple

from recallflow.enrichment import ShownMemory
from recallflow.language import stems
from recallflow.operators.enrichment.requests_shown import shown
from recallflow.operators.enrichment.wanted import Wanted
from recallflow.operators.graph.similar import DIGITS, cosines
from recallflow.operators.graph.write import Remembered
from recallflow.operators.view import View
from recallflow.state.graph_codec import NodeKey, is_entity, node_key
from recallflow.state.rows import Entry, MemoryRow, Vectors
from recallflow.state.window import most_different

SIMILAR_MOST = 10
LOOKED_AT = 32  # memories compared by sketch
_ENTITIES, _MEMBERS = 8, 8  # entities, and the newest memories of each
_KNOWN_MEMBERS = 64  # memories per entity that are known to be about it
_FACTS = 16  # the newest facts of a kind
_SPEAKERS = frozenset(stems("user assistant"))  # the names of speakers in facts
_IN_COMMON = 2  # common words of two messages of one author; one less for the same entity, and one less for facts
_SPELT_ALIKE = 0.3  # the least cosine of spellings; texts with a common word exceed it


class _Pair(NamedTuple):
    entry: Entry
    similarity: float | None


def similar(view: View, memory: Remembered, wanted: Wanted) -> list[ShownMemory]:
    """Return the memories to compare with a memory; none while its vector is missing."""
    if wanted.by_meaning and memory.vectors is None:
        return []
    links = view.graph.links(memory.seq)
    sketch = b"" if links is None else links.sketch
    if wanted.by_meaning and sketch and memory.vectors is not None:
        pairs = _by_meaning(view, memory.seq, memory.vectors, sketch, wanted)
    else:
        about = [key for key in ({} if links is None else links.links) if is_entity(NodeKey(key))][:_ENTITIES]
        pairs = _by_words(view, memory, sketch, about)
    current = [*islice((one for one in pairs if not view.graph.is_superseded(one.entry.seq)), SIMILAR_MOST)]
    rows = zip(view.rows([one.entry for one in current]), current, strict=True)
    return [shown(row, similarity=one.similarity) for row, one in rows if not _is_kin(memory.row, row)]


def _is_kin(one: MemoryRow, other: MemoryRow) -> bool:
    """Return whether one memory was derived from the other, or both from the same. Such memories cannot contradict each
    other."""
    sources = [row.id if row.derived_from is None else row.derived_from["memory_id"] for row in (one, other)]
    return sources[0] == sources[1]


def _by_meaning(view: View, own: int, vectors: Vectors, sketch: bytes, wanted: Wanted) -> list[_Pair]:
    near = _near(view, own, sketch, wanted.similarity_min)
    seqs, wholes = view.graph.hot_graph.wholes(near, vectors.model, len(vectors.whole))
    weights = cosines(vectors.whole, wholes)
    found = [(round(weight, DIGITS), seq) for weight, seq in zip(weights, seqs, strict=True)]
    ambiguous = sorted((-weight, -seq) for weight, seq in found if wanted.similarity_min <= weight)
    ambiguous = [one for one in ambiguous if -one[0] <= wanted.similarity_max]
    entries = {entry.seq: entry for entry in view.entries_of([-seq for _, seq in ambiguous])}
    return [_Pair(entries[-seq], -weight) for weight, seq in ambiguous if -seq in entries]


def _by_words(view: View, memory: Remembered, sketch: bytes, about: list[str]) -> list[_Pair]:
    own, members = view.entry(memory.seq), view.graph.members
    near = _near(view, memory.seq, sketch, _SPELT_ALIKE) if sketch else []
    by_entity = [members(key, _KNOWN_MEMBERS) for key in about]
    of_entity, newest = ({seq for each in by_entity for seq in each[:most]} for most in (_KNOWN_MEMBERS, _MEMBERS))
    facts = members(node_key("type", own.kind), _FACTS) if own.role is None else []
    stemmed = {*own.stems.split()}
    words = stemmed - _SPEAKERS - {stem for key in about for stem in stems(key.partition(":")[2])}
    found = []
    for entry in view.entries_of(sorted({*near, *newest, *facts} - {memory.seq})):
        theirs = {*entry.stems.split()}
        is_about = entry.seq in of_entity or not _SPEAKERS.isdisjoint(stemmed & theirs)
        in_common = len(words & theirs)
        are_facts = own.role is entry.role is None
        if in_common >= _IN_COMMON - is_about - are_facts and (is_about or entry.author == own.author):
            found.append((in_common, entry))
    found.sort(key=lambda one: (-one[0], -one[1].seq))
    return [_Pair(entry, None) for _, entry in found]


def _near(view: View, own: int, sketch: bytes, cosine: float) -> list[int]:
    found = view.graph.hot_graph.window(view.newest).near(sketch, most_different(cosine), view.newest)
    return [seq for seq in found[: LOOKED_AT + 1] if seq != own][:LOOKED_AT]
