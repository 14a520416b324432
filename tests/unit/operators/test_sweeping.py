"""Threads and garbage collection: one thread for state work, no reference cycle of an applied event."""

import gc
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from recallflow.connectors.embedders import HashEmbedder
from recallflow.connectors.local_inputs import batched
from recallflow.embedder import Matrix
from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.settings import Settings
from recallflow.operators.recall import moment
from recallflow.operators.recall.moment import PausedCollection
from recallflow.state.rows import Entry
from tests.unit.operators.harness import make_event, run_flow


@pytest.mark.parametrize("is_on", [True, False])
def test_collection_pauses_until_the_last_block_ends(is_on: bool) -> None:
    paused_collection = PausedCollection()
    if not is_on:
        gc.disable()
    try:
        with paused_collection:
            with paused_collection:
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() == is_on
    finally:
        gc.enable()


def test_an_error_within_has_it_go_on() -> None:
    paused_collection = PausedCollection()
    with pytest.raises(ValueError, match="here"), paused_collection:
        raise ValueError("here")
    assert gc.isenabled()


@pytest.mark.slow
def test_past_index_leaves_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(PausedCollection):
        left: list[list[str]] = []

        def __exit__(self, *error: object) -> None:
            self.left.append([found.id for found in gc.get_objects() if isinstance(found, Entry)])
            super().__exit__(*error)

    monkeypatch.setattr(moment, "paused_collection", Counting())
    ids = [f"swept{n}" for n in range(5)]
    told = [make_event("message", n, id=one, content="tea with milk") for n, one in enumerate(ids)]
    run_flow([*told, make_event("recall", 9, query="tea", as_of={"ingestion_time": 5})])
    assert len(Counting.left) == 1
    assert not set(Counting.left[0]) & set(ids)


MANY = 20
MADE = 3  # objects of an event that are freed no earlier than its state directory
RELATION = {"source": "Ada", "type": "has", "target": "cup"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("message", {"content": "Tea with Ada", "session_id": "s"}),
        ("memory", {"content": "Ada has cups", "entities": [{"name": "Ada"}], "relations": [RELATION]}),
        ("memory.update", {"memory_id": "told", "content": "Ada has cups"}), ("memory.forget", {"memory_id": "none"}),
        ("memory.feedback", {"memory_id": "told", "useful": True}),
    ],
)  # fmt: skip
def test_applied_event_leaves_no_cycle(kind: str, fields: dict[str, Any]) -> None:
    def garbage(count: int) -> int:
        told = make_event("memory", 0, id="told", content="Ada has a cup")
        texts = [{"content": f"{fields['content']} {n}"} if "content" in fields else {} for n in range(count)]
        events = [make_event(kind, n, **fields | text) for n, text in enumerate(texts)]
        assert not run_flow([told, *events]).rejected
        return gc.collect()

    garbage(1)  # makes what is made once in a process
    gc.freeze()  # collections look at new objects alone
    gc.disable()
    try:
        assert garbage(2 * MANY) - garbage(MANY) < MADE * MANY
    finally:
        gc.enable()
        gc.unfreeze()


OWNERS = 12


class Looking(HashEmbedder):
    """Notes how many threads each native library has where a question is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[int, set[int]] = {}

    def embed(self, texts: Sequence[str]) -> Matrix:
        if any(text.endswith("?") for text in texts):
            self.threads[threading.get_ident()] = {one["num_threads"] for one in threadpool_info()}
        return super().embed(texts)


def test_native_libraries_use_one_thread_for_state_work(tmp_path: Path) -> None:
    lines = [
        orjson.dumps(
            {"type": kind, "tenant_id": "t", "user_id": f"u{number}", "query": f"Who drinks tea {number}?"} | fields
        )
        for kind, fields in (("message", {"content": "Tea."}), ("recall", {}))
        for number in range(OWNERS)
    ]
    looking = Looking()
    with threadpool_limits(4), EmbeddedEngine.open(Settings(), tmp_path / "state") as embedded:
        embedded.embedder = looking
        run_lines(embedded, "lines", lambda *_: batched(iter(lines)), lambda *_: None, is_replayable=False)
        after = {one["num_threads"] for one in threadpool_info()}
    assert [*looking.threads.values()] == [{1}]
    assert after == {4}  # as before
