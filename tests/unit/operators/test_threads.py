"""A worker computes in its own thread alone: threads of native libraries would wait for those of other workers."""

import threading
from collections.abc import Sequence
from pathlib import Path

import orjson
from threadpoolctl import threadpool_info, threadpool_limits

from recallflow.connectors.embedders import HashEmbedder
from recallflow.connectors.local_inputs import IteratorFeed
from recallflow.embedder import Matrix
from recallflow.flows.embedded import EmbeddedEngine, run_lines
from recallflow.flows.settings import Settings

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
        run_lines(embedded, "lines", lambda *_: IteratorFeed(iter(lines)), lambda *_: None, rewinds=False)
        after = {one["num_threads"] for one in threadpool_info()}
    assert [*looking.threads.values()] == [{1}]
    assert after == {4}  # as before
