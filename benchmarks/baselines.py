"""Baselines: cosine, BM25, their fusion, and mem0, over the same texts, and over the same vectors if they use any."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import faiss
import numpy as np
import Stemmer
from numpy.typing import NDArray

from benchmarks.locomo import Turn
from recallflow.embedder import Embedder, Kind
from recallflow.language.tables import ENGLISH

RRF_K = 60
K1, B = 1.2, 0.75
CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_STEM = Stemmer.Stemmer("english").stemWords
_WORDS = re.compile(rf"[{CJK}]+|[^\W{CJK}]+")


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


def stems(text: str, passed_over: Collection[str] = ()) -> list[str]:
    """Return Snowball's English stems of the words in lower case, and pairs of characters where words have no blanks
    between them. Words of `passed_over` are left out."""
    words: list[str] = []
    for word in _WORDS.findall(text.lower()):
        if len(word) > 1 and word[0] >= CJK[0]:
            words += (word[at : at + 2] for at in range(len(word) - 1))
        elif word not in passed_over:
            words.append(word)
    found: list[str] = _STEM(words)
    return found


class Bm25:
    """Lucene's BM25 over `stems`."""

    def __init__(self, name: str = "bm25", passed_over: Collection[str] = ()) -> None:
        self.name = name
        self._stems = partial(stems, passed_over=passed_over)

    def ingest(self, turns: Sequence[Turn]) -> None:
        self._ids = [turn.id for turn in turns]
        texts = [self._stems(turn.memory) for turn in turns]
        lengths = np.array([len(text) for text in texts], np.float64)
        self._norms = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
        postings: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for row, text in enumerate(texts):
            for stem, times in Counter(text).items():
                postings[stem].append((row, times))
        self._postings = {stem: np.array(held) for stem, held in postings.items()}

    def scores(self, question: str) -> NDArray[np.float64]:
        """Of each turn."""
        scores = np.zeros(len(self._ids))
        for stem in sorted(set(self._stems(question)) & self._postings.keys()):
            rows, times = self._postings[stem].T
            idf = np.log1p((len(self._ids) - len(rows) + 0.5) / (len(rows) + 0.5))
            scores[rows] += idf * times * (K1 + 1) / (times + self._norms[rows])
        return scores

    def search(self, question: str, k: int) -> list[str]:
        return [self._ids[row] for row in np.argsort(-self.scores(question), kind="stable")[:k]]

    def matching(self, question: str) -> list[str]:
        """All turns that share a stem with the question, best first."""
        matching = np.count_nonzero(self.scores(question))
        return self.search(question, int(matching))


def content_bm25() -> Bm25:
    """Without function words, question words among them."""
    return Bm25("bm25, content words", ENGLISH.function_words)


class ReciprocalRankFusion:
    """Cosine and BM25 by rank alone: the sum of 1 / (60 + rank), over all that the one ranks and the other matches."""

    name = "rrf"

    def __init__(self, embedder: Embedder) -> None:
        self._dense, self._lexical = Cosine(embedder), content_bm25()

    def ingest(self, turns: Sequence[Turn]) -> None:
        self._size = len(turns)
        self._dense.ingest(turns)
        self._lexical.ingest(turns)

    def search(self, question: str, k: int) -> list[str]:
        fused: defaultdict[str, float] = defaultdict(float)
        for ranking in (self._dense.search(question, self._size), self._lexical.matching(question)):
            for rank, turn in enumerate(ranking, 1):
                fused[turn] += 1 / (RRF_K + rank)
        return sorted(fused, key=fused.__getitem__, reverse=True)[:k]


class Remembering:
    """An embedder that reads each text once: all baselines are given the same ones."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, NDArray[np.float32]] = {}

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    @property
    def kind(self) -> Kind:
        return self._embedder.kind

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            self._vectors.update(zip(new, self._embedder.embed(new), strict=True))
        return np.array([self._vectors[text] for text in texts])


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
        missing = [module for module in self.modules if not _installed(module)]
        return f"not installed (no {', '.join(missing)})" if missing else None


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its package
        return False


BASELINES = (
    Baseline("cosine", Cosine),
    Baseline("bm25", lambda _: Bm25()),
    Baseline("bm25, content words", lambda _: content_bm25()),
    Baseline("rrf", ReciprocalRankFusion),
    Baseline("mem0", Mem0, ("mem0", "qdrant_client", "fastembed", "bm25s")),
)
