"""Questions of development conversations as the semantic signal sees them: every column's value for every memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.conversation_events import TENANT, message_lines
from benchmarks.locomo import Conversation
from recallflow.connectors.local_inputs import batched
from recallflow.embedder import Embedder, embed_texts
from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.settings import Settings
from recallflow.operators.recall import columns
from recallflow.operators.recall.pipeline import participants, vocabulary
from recallflow.operators.recall.question import analyse_question
from recallflow.operators.recall.weights import WEIGHTS, Chat, chat_of, is_notes
from recallflow.owner import Owner, state_partition
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex

Features = npt.NDArray[np.floating[Any]]
NAMES = [*dict.fromkeys(name for sets in WEIGHTS.values() for columns_of in sets.values() for name in columns_of)]


@dataclass(frozen=True, slots=True)
class Examples:
    """One conversation's questions. `chat`: whose weights rank them; `features`: (columns, questions, memories);
    `is_evidence`: (questions, memories); `ids` name the memories."""

    kind: str
    conversation: str
    chat: Chat
    features: Features
    is_evidence: npt.NDArray[np.bool_]
    ids: list[str]
    names: Sequence[str] = tuple(NAMES)

    def of(self, names: Sequence[str]) -> "Examples":
        """The same with these columns alone, in this order."""
        features = self.features[[self.names.index(name) for name in names]]
        return Examples(self.kind, self.conversation, self.chat, features, self.is_evidence, self.ids, tuple(names))


def examples(settings: Settings, kind: str, conversations: Sequence[Conversation]) -> list[Examples]:
    """Every question's columns, from the indexes of the real flow."""
    with EmbeddedEngine.open(settings, None) as embedded:
        lines = [line for conversation in conversations for line in message_lines(conversation)]
        run_lines(embedded, kind, lambda *_: batched(iter(lines)), lambda *_: None, is_replayable=False)
        return [
            _of_one(kind, search_index(embedded, settings, conversation), embedded.embedder, conversation)
            for conversation in conversations
        ]


def search_index(embedded: EmbeddedEngine, settings: Settings, conversation: Conversation) -> OwnerIndex:
    """The index of the conversation's owner, from what the flow stored."""
    number = state_partition(TENANT, conversation.id, settings.partitions)
    hot = HotOwner(embedded.directory.partition(number), Owner(TENANT, "prod", conversation.id))
    return hot.search_index(embedded.embedder.name, embedded.embedder.dimension)


def _of_one(kind: str, index: OwnerIndex, embedder: Embedder, conversation: Conversation) -> Examples:
    ids = [index.ids[slot] for slot in index.conversation.slots]
    known, words = participants(index), vocabulary(index)
    asked = [analyse_question(question.text, known, words) for question in conversation.questions]
    read = embed_texts(embedder, [question.first_person_text for question in asked])
    features = np.zeros((len(NAMES), len(asked), len(ids)), np.float32)
    for at, (question, vectors) in enumerate(zip(asked, read, strict=True)):
        values = columns.compute(index, question, vectors, dict.fromkeys(NAMES, 1.0)).values
        for row, name in enumerate(NAMES):
            features[row, at] = values.get(name, 0.0)
    is_evidence = np.array([[i in question.evidence for i in ids] for question in conversation.questions])
    chat = chat_of(index)
    if "notes" in WEIGHTS[embedder.kind] and is_notes(index):
        chat = "notes" if asked[0].table.has_spaces else "unspaced notes"
    return Examples(kind, conversation.id, chat, features, is_evidence, ids)
