"""A log that ends is answered line by line: behind a large forget as well, and whenever a snapshot is taken."""

from pathlib import Path

import pytest

from recallflow.operators import large, work
from recallflow.outputs import Done
from tests.unit.operators.harness import MEMORIES, Harness, answers, letters

MESSAGES, REFUSED = 9, 3


def test_no_snapshot_knows_of_a_line_whose_outputs_are_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on from a snapshot reads behind its lines: what is refused of them would be told to nobody."""
    monkeypatch.setattr(work, "LOOKED_AT", 4)
    monkeypatch.setattr(work, "SHARE", 3)
    monkeypatch.setattr(large, "AT_ONCE", 2)
    own = {"tenant_id": "acme", "user_id": "ann"}
    messages = [own | {"type": "message", "id": f"m{n}", "content": f"walnut {n}"} for n in range(MESSAGES)]
    forget = own | {"type": "memory.forget", "filter": {"older_than": "2100-01-01T00:00:00Z"}}
    refused = [own | {"type": "memory.feedback", "memory_id": f"m{n}", "useful": True} for n in range(REFUSED)]
    asked = own | {"type": "recall", "id": "q", "query": "walnut"}
    engine = Harness(tmp_path / "state", one_log=True)
    engine.run(MEMORIES, *messages)
    outputs = engine.run(MEMORIES, forget, *refused, asked)
    assert engine.snapshot().held == ()
    engine.stop()
    assert [letter.position.offset for letter in letters(outputs[:REFUSED])] == [10, 11, 12]
    (answer,) = answers(outputs[REFUSED:])
    assert answer["memories"] == []
    assert outputs[-1] == Done("memories:0", (9, 10, 11, 12, 13))
