"""What is added to scores on top of their factors (step 9).

| boost | worth |
|---|---|
| relationship | of the best edge from another candidate, by its type (see docs/graph.md) |
| personalisation | 0.10 · cosine to the mean of what the user found useful (the newest 100), never negative |
| session_continuity | 0.03 where the memory was returned earlier in the same session |
"""

import numpy as np
import numpy.typing as npt

from recallflow.operators.recall.scene import Places, Scene, Values

PERSONALISATION = 0.10
LIKED_MOST = 100
SESSION_CONTINUITY = 0.03


def boosts(scene: Scene, places: Places) -> dict[str, Values]:
    """The boosts that any of the places has, (len(places),) each."""
    found = {
        "relationship": _relationship(scene, places),
        "personalisation": _personalisation(scene, places),
        "session_continuity": _session_continuity(scene, places),
    }
    return {name: values for name, values in found.items() if values is not None}


def _relationship(scene: Scene, places: Places) -> Values | None:
    if not scene.relationship:
        return None
    return np.array([scene.relationship.get(int(place), 0.0) for place in places])


def _personalisation(scene: Scene, places: Places) -> Values | None:
    """By the mean of the vectors of the newest memories that were more often said to be useful than not."""
    index = scene.index
    liked = [] if scene.usage is None else scene.usage.liked(LIKED_MOST)
    slots = [slot for seq in liked if (slot := index.slot(seq)) is not None]
    if not slots:
        return None
    taste = index.vectors.of(np.array(slots, np.int64)).mean(axis=0)
    if (norm := np.linalg.norm(taste)) == 0:  # none of them has a vector
        return None
    cosines = index.vectors.of(index.conversation.slots[places]) @ (taste / norm)
    boost: Values = PERSONALISATION * np.clip(cosines.astype(np.float64), 0.0, 1.0)
    return boost


def _session_continuity(scene: Scene, places: Places) -> Values | None:
    if not len(scene.returned):
        return None
    again: npt.NDArray[np.bool_] = (scene.fact("seq", places)[:, None] == scene.returned).any(axis=1)
    return np.where(again, SESSION_CONTINUITY, 0.0)
