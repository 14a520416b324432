"""Answerable and unanswerable questions to stores of 1 to 1,000 memories, as `relevance.py` sees them.

A store is a part of one conversation, an owner's index of its own: a stretch of it, or memories from all over it, with
one that is evidence where the question is the conversation's own. Unanswerable are the questions that the conversation
lists as such, and its own with their evidence withheld; or, where it lists none, the questions of another conversation
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
from recallflow.connectors.local_inputs import batched
from recallflow.embedder import NO_FLOATS, TextVectors, embed_texts
from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.settings import Settings
from recallflow.operators.recall import columns
from recallflow.operators.recall.pipeline import participants, vocabulary
from recallflow.operators.recall.question import analyse_question
from recallflow.operators.recall.relevance import NEAREST, Judge, chat_class_of
from recallflow.operators.recall.relevance_weights import Basis, ChatClass
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


class StoreQuery(NamedTuple):
    """One question to one store.

    `chat_class`: of the store; `chat`: of the whole conversation. `answerable`: the store answers it. `withheld`: the
    memories that would answer it are left out. `figures`: (figures, memories) of the first ones,
    `is_evidence`: (memories,); `evidence` and `settings` as in `Judge`.
    """

    kind: str
    conversation: str
    chat_class: ChatClass
    chat: ChatClass
    size: int
    answerable: bool
    withheld: bool
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


def ask_stores(
    settings: Settings, kind: str, conversations: Sequence[Conversation], *, words: bool = False
) -> Iterator[StoreQuery]:
    """All questions to stores of all sizes. `words`: by the words alone, as without the question's vector."""
    with EmbeddedEngine.open(settings, None) as embedded:
        lines = [line for conversation in conversations for line in message_lines(conversation)]
        run_lines(embedded, kind, lambda *_: batched(iter(lines)), lambda *_: None, is_replayable=False)
        known: dict[str, TextVectors] = {}

        def embed(text: str) -> TextVectors:
            if words:
                return TextVectors(np.zeros(embedded.embedder.dimension, np.float32), NO_FLOATS)
            if text not in known:
                (known[text],) = embed_texts(embedded.embedder, [text])
            return known[text]

        basis: Basis = "words" if words else embedded.embedder.kind
        weight_sets = LEXICAL_WEIGHTS if basis == "words" else WEIGHTS[basis]
        for number, conversation in enumerate(conversations):
            memories = _memories(embedded, settings, conversation)
            rng = np.random.default_rng(number)
            for asked in _asked(conversations, number):
                for size in SIZES:
                    index = memories.store(_chosen(memories, asked, size, rng))
                    question = analyse_question(asked.question.text, participants(index), vocabulary(index))
                    weights = weights_of(index, weight_sets, is_spaced=question.table.has_spaces)
                    found = columns.compute(index, question, embed(question.first_person_text), weights)
                    judge = Judge(index, question, found, basis, index.conversation.size)
                    ranks = np.argsort(-found.score(), kind="stable")[:NEAREST]
                    nearest = judge.features(ranks)
                    ids = [index.ids[slot] for slot in index.conversation.slots[ranks[:SHOWN]]]
                    yield StoreQuery(
                        kind=kind,
                        conversation=conversation.id,
                        chat_class=judge.weight_key[1],
                        chat=chat_class_of(memories.whole, question),
                        size=size,
                        answerable=asked.answerable,
                        withheld=asked.withheld,
                        settings=judge.settings,
                        evidence=judge.evidence(nearest),
                        figures=nearest.values[:, :SHOWN],
                        is_evidence=np.array([one in asked.question.evidence for one in ids]),
                    )


def _memories(embedded: EmbeddedEngine, settings: Settings, conversation: Conversation) -> Memories:
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


class AskedQuestion(NamedTuple):
    """A question to stores of a conversation. `withheld`: the stores lack its evidence."""

    question: Question
    answerable: bool
    withheld: bool = False


def _asked(conversations: Sequence[Conversation], number: int) -> Iterator[AskedQuestion]:
    """Yield the conversation's own questions, then unanswerable ones.

    Those are its `unanswerable` ones, and its own again with their evidence withheld: nothing but the evidence differs
    there, so that a fit cannot learn how people word what has no answer. A conversation without unanswerable questions
    is asked those of as many others as it takes for `ASKED` of the kind.
    """
    here, count = conversations[number], sum(len(one.questions) for one in conversations)
    yield from (AskedQuestion(question, answerable=True) for question in here.questions)
    if here.unanswerable:
        yield from (AskedQuestion(question, answerable=False) for question in here.unanswerable)
        yield from (AskedQuestion(question, answerable=False, withheld=True) for question in here.questions)
        return
    for step in range(1, 1 + min(-(-ASKED // count), len(conversations) - 1)):
        other = conversations[(number + step) % len(conversations)]
        renamed = renamer(other, here)
        for question in other.questions:
            unknown = replace(question, text=renamed(question.text), evidence=frozenset())
            yield AskedQuestion(unknown, answerable=False)


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


def _chosen(memories: Memories, asked: AskedQuestion, size: int, rng: np.random.Generator) -> list[int]:
    """Return the numbers of the memories that a store holds."""
    evidence = [at for at, entry in enumerate(memories.entries) if entry.id in asked.question.evidence]
    numbers = np.arange(len(memories.entries))
    if asked.withheld:
        numbers, evidence = np.delete(numbers, evidence), []
    count = len(numbers)
    if size >= count:
        return [*numbers.tolist()]
    held = int(rng.choice(evidence)) if evidence else int(rng.integers(count))
    if rng.random() < 0.5:
        start = max(0, min(count - size, held - int(rng.integers(size))))
        return [*numbers[start : start + size].tolist()]
    others = rng.choice(np.delete(np.arange(count), held), size - 1, replace=False)
    return sorted(numbers[[held, *others]].tolist())
