"""The conversations of the recall benchmarks."""

import pytest

from benchmarks.kinds import KINDS, load


@pytest.mark.models
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_loads_with_evidence_among_its_turns(kind: str) -> None:
    conversations = load(kind)
    asked_of = [(one, question) for one in conversations for question in one.questions]
    expected = {"locomo": 505, "assistant": 100, "assistant_long": 120, "group": 538, "chinese": 320, "mixed": 1043}
    assert len(asked_of) == expected.get(kind, len(asked_of)) > 0
    assert all(question.evidence & {turn.id for turn in one.turns} for one, question in asked_of)
