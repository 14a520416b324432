"""Retrievers of other packages over the same texts and vectors as the baselines. None calls a model or the network."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

import Stemmer

from benchmarks.baselines import CJK, Baseline, stems
from benchmarks.locomo import Turn
from recallflow.embedder import Embedder
from recallflow.language.scripts import UNSPACED_LETTER

TOKENS = rf"[{CJK}]|[^\W{CJK}]{{2,}}"  # LlamaIndex's default, with characters where words have no blanks between them
Search = Callable[[str, list[float], int], Iterable[str]]
Open = Callable[[Sequence[Turn], list[str], list[list[float]], Embedder], Search]


class Framework:
    """A retriever that `build` makes of a conversation's turns, texts and vectors."""

    def __init__(self, name: str, embedder: Embedder, build: Open) -> None:
        self.name = name
        self._embedder, self._build = embedder, build

    def ingest(self, turns: Sequence[Turn]) -> None:
        texts = [turn.memory for turn in turns]
        self._size = len(turns)
        self._search = self._build(turns, texts, self._embedder.embed(texts).tolist(), self._embedder)

    def search(self, question: str, k: int) -> list[str]:
        vector: list[float] = self._embedder.embed([question])[0].tolist()
        return [*dict.fromkeys(self._search(question, vector, min(k, self._size)))][:k]


def llama_index(turns: Sequence[Turn], texts: list[str], vectors: list[list[float]], embedder: Embedder) -> Search:
    """QueryFusionRetriever over BM25Retriever and VectorStoreIndex, by reciprocal rank, without query generation."""
    core, schema = import_module("llama_index.core"), import_module("llama_index.core.schema")
    fusion = import_module("llama_index.core.retrievers").QueryFusionRetriever
    model = import_module("llama_index.core.embeddings").MockEmbedding(embed_dim=embedder.dimension)
    bm25 = import_module("llama_index.retrievers.bm25").BM25Retriever
    llm = import_module("llama_index.core.llms").MockLLM()
    nodes = [
        # Without the id in the metadata, fusion merges nodes of the same text.
        schema.TextNode(
            id_=turn.id,
            text=text,
            embedding=vector,
            metadata={"turn": turn.id},
            excluded_embed_metadata_keys=["turn"],
            excluded_llm_metadata_keys=["turn"],
        )
        for turn, text, vector in zip(turns, texts, vectors, strict=True)
    ]
    index = core.VectorStoreIndex(nodes, embed_model=model)
    lexical = bm25.from_defaults(
        nodes=nodes, similarity_top_k=1, stemmer=Stemmer.Stemmer("english"), token_pattern=TOKENS
    )
    dense = index.as_retriever()

    def search(question: str, vector: list[float], k: int) -> Iterable[str]:
        lexical.similarity_top_k = dense.similarity_top_k = k
        both = fusion(
            [dense, lexical], llm=llm, mode="reciprocal_rerank", similarity_top_k=k, num_queries=1, use_async=False
        )
        return (hit.node.node_id for hit in both.retrieve(schema.QueryBundle(question, embedding=vector)))

    return search


def langchain(turns: Sequence[Turn], texts: list[str], vectors: list[list[float]], embedder: Embedder) -> Search:
    """EnsembleRetriever of BM25Retriever and FAISS, with equal weights."""
    ensemble = import_module("langchain_classic.retrievers").EnsembleRetriever
    bm25 = import_module("langchain_community.retrievers").BM25Retriever
    store = import_module("langchain_community.vectorstores").FAISS
    ids = [{"turn": turn.id} for turn in turns]
    lexical = bm25.from_texts(texts, ids, preprocess_func=stems)  # the default splits at blanks alone
    index = store.from_embeddings(
        zip(texts, vectors, strict=True), lambda text: embedder.embed([text])[0].tolist(), ids
    )

    def search(question: str, _: list[float], k: int) -> Iterable[str]:
        lexical.k = k
        dense = index.as_retriever(search_kwargs={"k": k})
        both = ensemble(retrievers=[lexical, dense], weights=[0.5, 0.5], id_key="turn")
        return (hit.metadata["turn"] for hit in both.invoke(question))

    return search


def txtai(turns: Sequence[Turn], texts: list[str], _: list[list[float]], embedder: Embedder) -> Search:
    """Hybrid index: BM25 and vectors, its default weights."""
    index = import_module("txtai").Embeddings(
        method="external",
        transform=lambda texts: embedder.embed(texts),  # txtai calls anything but a plain function
        hybrid=True,
    )
    index.index((turn.id, text, None) for turn, text in zip(turns, texts, strict=True))
    return lambda question, _, k: (name for name, _ in index.search(question, k))


def chroma(turns: Sequence[Turn], texts: list[str], vectors: list[list[float]], _: Embedder) -> Search:
    """HNSW index with cosine distance. Its hybrid search is not part of the local package."""
    package, config = import_module("chromadb"), import_module("chromadb.config")
    client = package.EphemeralClient(config.Settings(anonymized_telemetry=False, allow_reset=True))
    client.reset()
    index = client.create_collection("turns", metadata={"hnsw:space": "cosine"}, embedding_function=None)
    index.add([turn.id for turn in turns], embeddings=vectors, documents=texts)
    return lambda _, vector, k: index.query(query_embeddings=[vector], n_results=k)["ids"][0]


def full_text_options(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return LanceDB's options for the turns' script: pairs of characters in a script without spaces, else defaults."""
    text = "".join(turn.content for turn in turns)
    is_unspaced = 2 * len(UNSPACED_LETTER.findall(text)) > sum(map(str.isalpha, text))
    return {"base_tokenizer": "ngram", "ngram_min_length": 2, "ngram_max_length": 2} if is_unspaced else {}


def lancedb(turns: Sequence[Turn], texts: list[str], vectors: list[list[float]], _: Embedder) -> Search:
    """Hybrid search: full-text index and exact vectors, by reciprocal rank."""
    reranker = import_module("lancedb.rerankers").RRFReranker()
    folder = TemporaryDirectory(prefix="recallflow-lancedb-")
    rows = [
        {"turn": turn.id, "text": text, "vector": vector}
        for turn, text, vector in zip(turns, texts, vectors, strict=True)
    ]
    table = import_module("lancedb").connect(folder.name).create_table("turns", rows)
    table.create_fts_index("text", **full_text_options(turns))

    def search(question: str, vector: list[float], k: int, held: Any = folder) -> Iterable[str]:
        del held  # the folder lives as long as this function
        found = table.search(query_type="hybrid").vector(vector).text(question).limit(k).rerank(reranker)
        return (hit["turn"] for hit in found.to_list())

    return search


def _baseline(name: str, build: Open, *modules: str) -> Baseline:
    return Baseline(name, lambda embedder: Framework(name, embedder, build), modules)


FRAMEWORKS = (
    _baseline("LlamaIndex hybrid", llama_index, "llama_index.core", "llama_index.retrievers.bm25"),
    _baseline("LangChain ensemble", langchain, "langchain_classic", "langchain_community", "rank_bm25"),
    _baseline("txtai hybrid", txtai, "txtai"),
    _baseline("Chroma", chroma, "chromadb"),
    _baseline("LanceDB hybrid", lancedb, "lancedb"),
)
