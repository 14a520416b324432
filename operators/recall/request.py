"""Step 1: what is cut to size or not done is warned of."""

from recallflow.limits import QUERY_CHARACTERS
from recallflow.operators.recall.scene import Scene
from recallflow.parsing import unknown_fields
from recallflow.queries import K_MAX, K_MIN, Recall
from recallflow.responses import Warn

_NOT_YET_OPTIONAL = {
    "select_categories": "category selection",
    "check_sufficiency": "the sufficiency check",
}


def validate(query: Recall) -> list[Warn]:
    """Warnings of what was cut to size, or is not read."""
    warnings = [
        Warn(code="not_in_this_version", detail=f"{name}: {what} was not applied")
        for name, what in _NOT_YET_OPTIONAL.items()
        if getattr(query, name) != Recall.model_fields[name].get_default()
    ]
    if not K_MIN <= query.k <= K_MAX:
        warnings.append(Warn(code="k_clamped", detail=f"k was {query.k}; {K_MIN} to {K_MAX} are answered"))
    if len(query.query.strip()) > QUERY_CHARACTERS:
        warnings.append(Warn(code="query_cut", detail=f"only the first {QUERY_CHARACTERS} characters were read"))
    unknown = unknown_fields(query) + [f"filters.{name}" for name in query.filters.model_extra or {}]
    warnings += [Warn(code="unknown_field", detail=f"{name} is not read") for name in unknown]
    return warnings


def graph_missed(scene: Scene) -> list[Warn]:
    """The warning for a ranking that asks how near memories are to entities, where no graph tells."""
    if not scene.tuning.wants_proximity or scene.proximity is not None:
        return []
    return [Warn(code="no_graph", detail="there is no graph to tell how near memories are to entities; it counts as 0")]


def scarce(scene: Scene) -> list[Warn]:
    """Warnings of what the memory, or the question, has too little of."""
    known, may_be_in = scene.index.conversation.size, len(scene.allowed)
    warnings = []
    if not known:
        warnings.append(Warn(code="no_memories", detail="nothing is remembered of this user"))
    elif not may_be_in:
        warnings.append(Warn(code="no_memories", detail=f"none of {known} memories may be in the answer"))
    elif "k" in scene.query.model_fields_set and scene.tuning.k > may_be_in:
        detail = f"k was {scene.query.k}; {may_be_in} of {known} memories may be in the answer"
        warnings.append(Warn(code="k_exceeds_memories", detail=detail))
    if not scene.question.stems and scene.tuning.mode != "recency":
        warnings.append(Warn(code="no_content_words", detail="the question has no words that tell what it is about"))
    return warnings
