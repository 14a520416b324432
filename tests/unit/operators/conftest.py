"""A scene to be ranked, of which only what a test is about needs to be told."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from recallflow.control import RecallSettings
from recallflow.operators.recall.question import understand
from recallflow.operators.recall.scene import Ranking, Scene
from recallflow.operators.recall.tuning import tuned
from recallflow.queries import Mode, Recall
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import Entry, Vectors
from recallflow.state.usage import OwnerUsage, Usage

MODEL = "model"


@pytest.fixture(scope="session")
def make_scene() -> Callable[..., Scene]:
    """What is by place (signal, allowed places, nearness, relationship) follows the entries, which come in conversation
    order; vectors and usage are by `seq`. Whatever else is given is the query's."""

    def make(
        mode: Mode,
        entries: Sequence[Entry],
        semantic: Iterable[float],
        *,
        now_ms: int = 0,
        vectors: Mapping[int, Sequence[float]] | None = None,
        asked: Sequence[float] | None = None,
        allowed: Sequence[int] | None = None,
        proximity: Sequence[float] | None = None,
        relationship: Mapping[int, float] | None = None,
        usage: Mapping[int, Usage] | None = None,
        returned: Sequence[int] = (),
        relevance: Sequence[float] | None = None,
        tenant: RecallSettings | None = None,
        **query: Any,
    ) -> Scene:
        index = OwnerIndex(MODEL, 2)
        stored = {(seq, 0): Vectors(MODEL, np.array([row], np.float32)) for seq, row in (vectors or {}).items()}
        index.add(entries, stored)
        assert [index.ids[slot] for slot in index.conversation.slots] == [entry.id for entry in entries]
        fields = {"type": "recall", "tenant_id": "acme", "user_id": "ann", "query": "?", "mode": mode} | query
        recall = Recall.model_validate(fields)
        return Scene(
            index=index,
            question=understand(recall.query, []),
            query=recall,
            now_ms=now_ms,
            semantic=np.array([*semantic], np.float64),
            allowed=np.arange(len(entries)) if allowed is None else np.array(allowed),
            tuning=tuned(recall, mode, tenant or RecallSettings()),
            relevance=np.ones(len(entries)).take if relevance is None else np.array(relevance).take,
            vector=None if asked is None else np.array(asked, np.float32),
            proximity=None if proximity is None else np.array(proximity, np.float64),
            relationship=relationship or {},
            usage=None if usage is None else OwnerUsage((seq, used.encode()) for seq, used in usage.items()),
            returned=np.array(returned, np.int64),
        )

    return make


@pytest.fixture(scope="session")
def ids_of() -> Callable[[Scene, Ranking], list[str]]:
    """The ids of a ranking's memories, best first."""
    return lambda scene, ranking: [scene.index.ids[scene.index.conversation.slots[place]] for place in ranking.places]
