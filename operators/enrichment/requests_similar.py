"""Which memories a new one may agree with, refine or contradict: what a language model is asked to compare it with.

Where vectors know meaning, those whose cosine is neither high enough to be the same nor too low to be of the same
thing, the closest first. A cosine of spellings says less. Then two memories are compared that have a subject in common,
which is an entity, the user that facts tell of, or the author, and words besides: two where it is the author, as that
is the subject of all they say, one where it is another; for facts, which say one thing each, one less. The most words
in common come first, then the newest.

Only a fixed number of memories is looked at: those of the newest that are closest by their sketches, the newest of each
entity that is named, and beside a fact the newest of its kind.
"""

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
LOOKED_AT = 32  # by their sketches
_ENTITIES, _MEMBERS = 8, 8  # entities, and the newest memories of each
_KNOWN_MEMBERS = 64  # of each, that are known to be about it
_FACTS = 16  # the newest of a kind
_SPEAKERS = frozenset(stems("user assistant"))  # what facts call them
_IN_COMMON = 2  # words of two messages of one author; one less about one entity, and for facts, which say one thing
_SPELT_ALIKE = 0.3  # the least cosine of spellings: texts with a word in common have more


class _Pair(NamedTuple):
    entry: Entry
    similarity: float | None


def similar(view: View, memory: Remembered, wanted: Wanted) -> list[ShownMemory]:
    """The memories to compare one with. Where its vector is still to come there are none yet."""
    if wanted.by_meaning and memory.vectors is None:
        return []
    links = view.graph.links(memory.seq)
    sketch = b"" if links is None else links.sketch
    if wanted.by_meaning and sketch and memory.vectors is not None:
        pairs = _by_meaning(view, memory.seq, memory.vectors, sketch, wanted)
    else:
        about = [key for key in ({} if links is None else links.links) if is_entity(NodeKey(key))][:_ENTITIES]
        pairs = _by_words(view, memory, sketch, about)
    stand = [*islice((one for one in pairs if not view.graph.is_superseded(one.entry.seq)), SIMILAR_MOST)]
    rows = zip(view.rows([one.entry for one in stand]), stand, strict=True)
    return [shown(row, similarity=one.similarity) for row, one in rows if not _is_kin(memory.row, row)]


def _is_kin(one: MemoryRow, other: MemoryRow) -> bool:
    """Whether one was made from the other, or both from the same: what was read out of a text has nothing to say to it
    that the text did not say."""
    sources = [row.id if row.derived_from is None else row.derived_from["memory_id"] for row in (one, other)]
    return sources[0] == sources[1]


def _by_meaning(view: View, own: int, vectors: Vectors, sketch: bytes, wanted: Wanted) -> list[_Pair]:
    near = _near(view, own, sketch, wanted.similarity_min)
    known = zip(near, view.graph.hot_graph.wholes(near, vectors.model, len(vectors.whole)), strict=True)
    compared = [(seq, whole) for seq, whole in known if whole is not None]
    weights = cosines(vectors.whole, [whole for _, whole in compared])
    found = [(round(weight, DIGITS), seq) for weight, (seq, _) in zip(weights, compared, strict=True)]
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
