"""A log that ends is answered line by line: behind a large forget as well, and whenever a snapshot is taken."""

from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from recallflow.connectors.embedders import load_embedder
from recallflow.flows.settings import Settings
from recallflow.operators import queue, work
from recallflow.operators.decode import decode
from recallflow.operators.events import Batch
from recallflow.operators.partition import PartitionLogic
from recallflow.operators.prepare import prepare
from recallflow.outputs import Answer, DeadLetter, Done, Output
from recallflow.records import Position, Record
from recallflow.state.directory import StateDirectory

MESSAGES, REFUSED = 9, 3
SETTINGS = Settings(partitions=1)
EMBEDDER = load_embedder("hash")


def test_no_snapshot_knows_of_a_line_whose_outputs_are_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on from a snapshot reads behind its lines: what is refused of them would be told to nobody."""
    monkeypatch.setattr(work, "LOOKED_AT", 4)
    monkeypatch.setattr(work, "FORGOTTEN", 2)
    monkeypatch.setattr(queue, "AT_ONCE", 2)
    own = {"tenant_id": "acme", "user_id": "ann"}
    messages = [own | {"type": "message", "id": f"m{n}", "content": f"walnut {n}"} for n in range(MESSAGES)]
    forget = own | {"type": "memory.forget", "filter": {"older_than": "2100-01-01T00:00:00Z"}}
    refused = [own | {"type": "memory.feedback", "memory_id": f"m{n}", "useful": True} for n in range(REFUSED)]
    asked = own | {"type": "recall", "id": "q", "query": "walnut"}
    with StateDirectory.open(tmp_path / "state", SETTINGS.fingerprint(EMBEDDER), SETTINGS.cache_bytes) as directory:
        logic = PartitionLogic.builder(directory, EMBEDDER, SETTINGS.rules(EMBEDDER))(None)

        def take(*events: Mapping[str, object], first: int) -> tuple[list[Output], list[bytes]]:
            """The outputs of some lines, in order, and what a snapshot holds then."""
            records = [Record(Position("log", 0, first + n), orjson.dumps(e), n) for n, e in enumerate(events)]
            items = prepare(EMBEDDER, [decode(record) for record in records])
            outputs = [*logic.on_batch([Batch(0, items)])[0]]
            return outputs, [*logic.snapshot().held]

        take(*messages, first=0)
        outputs, held = take(forget, *refused, asked, first=MESSAGES)
    assert held == []
    letters, answers = outputs[:REFUSED], outputs[REFUSED:-1]
    assert [letter.position.offset for letter in letters if isinstance(letter, DeadLetter)] == [10, 11, 12]
    (answer,) = answers
    assert isinstance(answer, Answer)
    assert orjson.loads(answer.body)["memories"] == []
    assert isinstance(outputs[-1], Done)
    assert outputs[-1].offsets == (9, 10, 11, 12, 13)
