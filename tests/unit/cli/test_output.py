"""What the commands say in words."""

from recallflow.cli.output import REASONS
from recallflow.operators.recall.columns import WEIGHTS


def test_every_column_that_can_speak_for_a_memory_has_words_for_people() -> None:
    speaks = {name for weights in WEIGHTS.values() for name, weight in weights.items() if weight > 0}
    assert REASONS.keys() == speaks | {"recency"}
