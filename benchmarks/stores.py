"""Questions to stores of 1 to 1,000 memories, half of them about another owner, as `relevance.py` sees them.

A store is a part of one conversation, an owner's index of its own: a stretch of it, or memories from all over it, with
one that is evidence where the question is the conversation's own. The other questions are those of another conversation
of the same kind, its participants' names replaced by this one's.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.conversation_events import TENANT, message_lines
from benchmarks.locomo import Conversation, Question
from recallflow.connectors.lines import IteratorFeed
from recallflow.embedder import NO_FLOATS, TextVectors, embed_texts
from recallflow.flows.embedded import Embedded
from recallflow.flows.lines import run_lines
from recallflow.flows.settings import Settings
from recallflow.operators.recall import columns
from recallflow.operators.recall.pipeline import participants, vocabulary
from recallflow.operators.recall.question import understand
from recallflow.operators.recall.relevance import NEAREST, Judge
from recallflow.operators.recall.relevance_weights import Basis, Talk
from recallflow.operators.recall.weights import LEXICAL_WEIGHTS, WEIGHTS, weights_of
from recallflow.owner import Owner, state_partition
from recallflow.state import keys
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, Vectors

SIZES = (1, 5, 20, 100, 1_000)  # the last: as many as there are
SHOWN = 3  # memories of an answer whose relevance is looked at
ASKED = 300  # questions about others, at least, of a kind with few of its own

Floats = npt.NDArray[np.float64]
Embed = Callable[[str], TextVectors]


class Seen(NamedTuple):
    """One question to one store. `own`: it is the conversation's. `figures`: (figures, memories) of the first ones,
    `is_evidence`: (memories,); `evidence` and `settings` as in `Judge`."""

    kind: str
    conversation: str
    talk: Talk
    size: int
    own: bool
    settings: Floats
    evidence: Floats
    figures: Floats
    is_evidence: npt.NDArray[np.bool_]


class Memories(NamedTuple):
    """A conversation's memories as they are stored, in the order of arrival, and the index of all of them."""

    model: str
    entries: list[Entry]
    vectors: Mapping[tuple[int, int], Vectors | None]
    whole: OwnerIndex

    def store(self, chosen: Sequence[int]) -> OwnerIndex:
        """An owner's index of some of them."""
        if len(chosen) == len(self.entries):
            return self.whole
        index = OwnerIndex(self.model, self.whole.vectors.dimension)
        index.add([self.entries[at] for at in chosen], self.vectors)
        return index


def seen(
    settings: Settings, kind: str, conversations: Sequence[Conversation], *, words: bool = False
) -> Iterator[Seen]:
    """All questions to stores of all sizes. `words`: by the words alone, as without the question's vector."""
    with Embedded.open(settings, None) as embedded:
        lines = [line for conversation in conversations for line in message_lines(conversation)]
        run_lines(embedded, kind, lambda _: IteratorFeed(iter(lines)), lambda *_: None, rewinds=False)
        known: dict[str, TextVectors] = {}

        def embed(text: str) -> TextVectors:
            if words:
                return TextVectors(np.zeros(embedded.embedder.dimension, np.float32), NO_FLOATS)
            if text not in known:
                (known[text],) = embed_texts(embedded.embedder, [text])
            return known[text]

        basis: Basis = "words" if words else embedded.embedder.kind
        for number, conversation in enumerate(conversations):
            memories = _memories(embedded, settings, conversation)
            rng = np.random.default_rng(number)
            for question, own in _asked(conversations, number):
                for size in SIZES:
                    chosen = _chosen(memories, question, own, size, rng)
                    yield _looked(kind, conversation.id, memories.store(chosen), question, own, size, embed, basis)


def _memories(embedded: Embedded, settings: Settings, conversation: Conversation) -> Memories:
    partition = embedded.directory.partition(state_partition(TENANT, conversation.id, settings.partitions))
    hot = HotOwner(partition, Owner(TENANT, "prod", conversation.id))
    stored = partition.scan_range(keys.entry(hot.key, 0), keys.entry(hot.key, hot.next_seq))
    entries = Entry.decode_all(value for _, value in stored)
    version = {entry.seq: entry.version for entry in entries}
    rows = partition.scan_range(keys.vectors(hot.key, 0), keys.vectors(hot.key, hot.next_seq))
    vectors = {
        (seq, version[seq]): Vectors.decode(value) for key, value in rows if (seq := keys.sequence(key)) in version
    }
    model = embedded.embedder.name
    return Memories(model, entries, vectors, hot.search_index(model, embedded.embedder.dimension))


def _asked(conversations: Sequence[Conversation], number: int) -> Iterator[tuple[Question, bool]]:
    """The conversation's own questions, and those of as many others as it takes for `ASKED` of the kind."""
    here, count = conversations[number], sum(len(one.questions) for one in conversations)
    yield from ((question, True) for question in here.questions)
    for step in range(1, 1 + min(-(-ASKED // count), len(conversations) - 1)):
        other = conversations[(number + step) % len(conversations)]
        renamed = renamer(other, here)
        yield from ((replace(question, text=renamed(question.text)), False) for question in other.questions)


def renamer(other: Conversation, here: Conversation) -> Callable[[str], str]:
    """Replaces who wrote most there by who wrote most here, and so on, in full and by the first names."""
    there, those = (
        [name for name, _ in Counter(t.speaker for t in one.turns if t.speaker).most_common()] for one in (other, here)
    )
    names: dict[str, str] = {}
    for old, new in zip(there, those, strict=False):
        names[old.lower()] = new
        names.setdefault(old.split()[0].lower(), new.split()[0])
    if not names:
        return lambda text: text
    longest = sorted(names, key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)", re.IGNORECASE)
    return lambda text: pattern.sub(lambda found: names[found[0].lower()], text)


def _chosen(memories: Memories, question: Question, own: bool, size: int, rng: np.random.Generator) -> list[int]:
    """Which memories a store holds."""
    count = len(memories.entries)
    if size >= count:
        return list(range(count))
    evidence = [at for at, entry in enumerate(memories.entries) if own and entry.id in question.evidence]
    held = int(rng.choice(evidence)) if evidence else int(rng.integers(count))
    if rng.random() < 0.5:
        start = max(0, min(count - size, held - int(rng.integers(size))))
        return list(range(start, start + size))
    others = rng.choice(np.delete(np.arange(count), held), size - 1, replace=False)
    return sorted([held, *others.tolist()])


def _looked(
    kind: str,
    conversation: str,
    index: OwnerIndex,
    question: Question,
    own: bool,
    size: int,
    embed: Embed,
    basis: Basis,
) -> Seen:
    asked = understand(question.text, participants(index), vocabulary(index))
    weights = LEXICAL_WEIGHTS if basis == "words" else WEIGHTS[basis]
    found = columns.compute(index, asked, embed(asked.own_words), weights_of(index, weights))
    judge = Judge.of(index, asked, found, basis, index.conversation.size)
    places = np.argsort(-found.score(), kind="stable")[:NEAREST]
    nearest = judge.figures(places)
    ids = [index.ids[slot] for slot in index.conversation.slots[places[:SHOWN]]]
    is_evidence = np.array([own and one in question.evidence for one in ids])
    return Seen(
        kind,
        conversation,
        judge.ground[1],
        size,
        own,
        judge.settings,
        judge.evidence(nearest),
        nearest.values[:, :SHOWN],
        is_evidence,
    )
