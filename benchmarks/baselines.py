"""What recallflow is compared with: cosine, BM25, their fusion, and mem0, each over the same texts and vectors."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import faiss
import numpy as np
import Stemmer
from numpy.typing import NDArray

from benchmarks.locomo import Turn

RRF_K = 60


class Embedder(Protocol):
    """The part of recallflow's embedders that a baseline needs."""

    @property
    def name(self) -> str:
        """The model."""

    @property
    def dimension(self) -> int:
        """Floats per vector."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """texts → (len(texts), dimension) float32, L2-normalised rows."""


class Retriever(Protocol):
    """A memory of one conversation. `ingest` starts over; `search` gives at most k turn ids, best first."""

    name: str

    def ingest(self, turns: Sequence[Turn]) -> None: ...

    def search(self, question: str, k: int) -> list[str]: ...


class Cosine:
    """Exact nearest neighbours of the question's vector."""

    name = "cosine"

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def ingest(self, turns: Sequence[Turn]) -> None:
        self._ids = [turn.id for turn in turns]
        self._index = faiss.IndexFlatIP(self._embedder.dimension)
        self._index.add(self._embedder.embed([turn.memory for turn in turns]))

    def search(self, question: str, k: int) -> list[str]:
        _, rows = self._index.search(self._embedder.embed([question]), min(k, len(self._ids)))
        return [self._ids[row] for row in rows[0]]


class Bm25:
    """bm25s as it comes (k1 1.5, b 0.75, its English stop words), with Snowball stems."""

    name = "bm25"

    def __init__(self) -> None:
        self._stemmer = Stemmer.Stemmer("english")

    def _stems(self, texts: list[str]) -> list[list[str]]:
        import bm25s

        stems: list[list[str]] = bm25s.tokenize(
            texts, stopwords="en", stemmer=self._stemmer, return_ids=False, show_progress=False
        )
        return stems

    def ingest(self, turns: Sequence[Turn]) -> None:
        import bm25s

        self._ids = [turn.id for turn in turns]
        self._index = bm25s.BM25()
        self._index.index(self._stems([turn.memory for turn in turns]), show_progress=False)

    def search(self, question: str, k: int) -> list[str]:
        stems = self._stems([question])[0]
        if not stems:  # bm25s cannot score an empty query
            return []
        scores = self._index.get_scores(stems)
        best = np.argsort(-scores, kind="stable")[:k]
        return [self._ids[row] for row in best if scores[row] > 0]


class ReciprocalRankFusion:
    """Cosine and BM25 by rank alone: the sum of 1 / (60 + rank), over both rankings at full length."""

    name = "rrf"

    def __init__(self, embedder: Embedder) -> None:
        self._parts: tuple[Retriever, ...] = (Cosine(embedder), Bm25())

    def ingest(self, turns: Sequence[Turn]) -> None:
        self._size = len(turns)
        for part in self._parts:
            part.ingest(turns)

    def search(self, question: str, k: int) -> list[str]:
        fused: defaultdict[str, float] = defaultdict(float)
        for part in self._parts:
            for rank, turn in enumerate(part.search(question, self._size), 1):
                fused[turn] += 1 / (RRF_K + rank)
        return sorted(fused, key=fused.__getitem__, reverse=True)[:k]


class _Mem0Embedding:
    """The shared embedder behind the calls that mem0 makes of an embedding model."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:  # noqa: ARG002 mem0 passes it
        return self.embed_batch([text])[0]

    def embed_batch(self, texts: list[str], memory_action: str | None = None) -> list[list[float]]:  # noqa: ARG002
        vectors: list[list[float]] = self._embedder.embed(texts).tolist()
        return vectors


class Mem0:
    """mem0 with `infer=False` (no LLM) on a local qdrant: its own mix of dense and keyword search.

    It runs without a network: no telemetry, stop words given instead of fetched, no spaCy model (which it would
    download), so its lemmas and entity boosts are off.
    """

    name = "mem0"

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._folder = TemporaryDirectory(prefix="recallflow-mem0-")
        self._conversations = 0
        self._memory: Any = None

    def ingest(self, turns: Sequence[Turn]) -> None:
        if self._memory is not None:
            self._memory.vector_store.client.close()
        self._conversations += 1
        self._memory = self._open(Path(self._folder.name) / str(self._conversations))
        for turn in turns:
            self._memory.add(turn.memory, user_id="user", infer=False, metadata={"turn": turn.id})
        # mem0 only logs when its keyword half fails, and the comparison would then be with half of it.
        if not self._memory.vector_store.keyword_search(turns[0].memory, top_k=1, filters={"user_id": "user"}):
            raise RuntimeError("mem0's keyword search finds nothing: this version needs another way of running offline")

    def _open(self, folder: Path) -> Any:
        # Both are read when mem0 is imported; unset, it phones home and writes to ~/.mem0.
        os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=str(folder))
        from bm25s.stopwords import STOPWORDS_EN_PLUS
        from fastembed import SparseTextEmbedding
        from mem0 import Memory
        from mem0.utils import spacy_models

        spacy_models._load_failed_full = spacy_models._load_failed_lemma = True
        nobody = {"provider": "openai", "config": {"api_key": "unused"}}  # mem0 insists on both, and calls neither
        store = {"collection_name": "turns", "path": f"{folder}/qdrant"}
        memory = Memory.from_config(
            {
                "llm": nobody,
                "embedder": nobody,
                "history_db_path": f"{folder}/history.db",
                "vector_store": {
                    "provider": "qdrant",
                    "config": {**store, "embedding_model_dims": self._embedder.dimension},
                },
            }
        )
        memory.embedding_model = _Mem0Embedding(self._embedder)
        memory.vector_store._bm25_encoder = SparseTextEmbedding(
            "Qdrant/bm25", specific_model_path=str(folder), stopwords=set(STOPWORDS_EN_PLUS)
        )
        return memory

    def search(self, question: str, k: int) -> list[str]:
        found = self._memory.search(question, top_k=k, filters={"user_id": "user"})
        return [hit["metadata"]["turn"] for hit in found["results"]]


@dataclass(frozen=True, slots=True)
class Baseline:
    """How to build a retriever, and the modules that it needs beyond recallflow's own."""

    name: str
    build: Callable[[Embedder], Retriever]
    modules: tuple[str, ...] = ()

    def unavailable(self) -> str | None:
        """Why it cannot run here, or None."""
        missing = [module for module in self.modules if find_spec(module) is None]
        return f"not installed: pip install 'recallflow[bench]' (no {', '.join(missing)})" if missing else None


BASELINES = (
    Baseline("cosine", Cosine),
    Baseline("bm25", lambda _: Bm25(), ("bm25s",)),
    Baseline("rrf", ReciprocalRankFusion, ("bm25s",)),
    Baseline("mem0", Mem0, ("mem0", "qdrant_client", "fastembed", "bm25s")),
)
