"""LoCoMo's questions as the semantic signal sees them: every column's value for every memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.conversation_events import TENANT, message_lines
from benchmarks.locomo import Conversation
from recallflow.connectors.lines import IteratorFeed
from recallflow.embedder import Kind, embed_texts
from recallflow.flows.embedded import Embedded
from recallflow.flows.settings import Settings
from recallflow.operators.recall import columns
from recallflow.operators.recall.columns import WEIGHTS
from recallflow.operators.recall.pipeline import participants
from recallflow.operators.recall.question import understand
from recallflow.owner import Owner, state_partition
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex

Features = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Examples:
    """One conversation's questions. `features`: (columns, questions, memories), columns in the order of the weights;
    `is_evidence`: (questions, memories); `ids` name the memories."""

    conversation: str
    features: Features
    is_evidence: npt.NDArray[np.bool_]
    ids: list[str]

    def without(self, columns: Sequence[int]) -> "Examples":
        """The same without some columns."""
        return Examples(self.conversation, np.delete(self.features, columns, axis=0), self.is_evidence, self.ids)


def examples(settings: Settings, conversations: Sequence[Conversation]) -> tuple[Kind, list[Examples]]:
    """Every question's columns, from the indexes of the real flow, and what the embedder knows."""
    with Embedded.open(settings, None) as embedded:
        lines = [line for conversation in conversations for line in message_lines(conversation)]
        embedded.run("locomo", lambda _: IteratorFeed(iter(lines)), lambda *_: None, rewinds=False)
        weights = WEIGHTS[embedded.embedder.kind]
        found = [_of_one(embedded, settings, weights, conversation) for conversation in conversations]
        return embedded.embedder.kind, found


def search_index(embedded: Embedded, settings: Settings, conversation: Conversation) -> OwnerIndex:
    """The index of the conversation's owner, from what the flow stored."""
    number = state_partition(TENANT, conversation.id, settings.partitions)
    hot = HotOwner(embedded.directory.partition(number), Owner(TENANT, "prod", conversation.id))
    return hot.search_index(embedded.embedder.name, embedded.embedder.dimension)


def _of_one(
    embedded: Embedded, settings: Settings, weights: Mapping[str, float], conversation: Conversation
) -> Examples:
    index = search_index(embedded, settings, conversation)
    ids = [index.ids[slot] for slot in index.conversation.slots]
    asked = [understand(question.text, participants(index)) for question in conversation.questions]
    read = embed_texts(embedded.embedder, [question.own_words for question in asked])
    features = np.zeros((len(weights), len(asked), len(ids)))
    for at, (question, vectors) in enumerate(zip(asked, read, strict=True)):
        values = columns.compute(index, question, vectors, weights).values
        for row, name in enumerate(weights):
            features[row, at] = values.get(name, 0.0)
    is_evidence = np.array([[i in question.evidence for i in ids] for question in conversation.questions])
    return Examples(conversation.id, features, is_evidence, ids)
