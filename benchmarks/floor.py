"""The floor of taking a message in: the bare cost of work that no engine is spared, each part alone, called by nothing
but a loop, over messages that are at hand.

Batches are of the flow's size, and nothing of one is kept but what the part is about: so Python's collector, which
looks through what is alive, has as little to do as the parts allow.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import faiss
import numpy as np
from rocksdict import Options, Rdict, WriteBatch

from recallflow.connectors.lines import BATCH_RECORDS
from recallflow.embedder import Embedder
from recallflow.flows.gc_policy import collect_due_garbage
from recallflow.language import read
from recallflow.parsing import parse
from recallflow.responses import Response
from recallflow.state.lexical import LexicalIndex
from recallflow.state.vectors import VectorIndex

T = TypeVar("T")

PUTS = 5
WRITTEN = 50  # messages in a write
NEIGHBOURS = 20
SEARCHED = 600  # vectors: as many as a user of the design's table has


def parts(lines: list[bytes], embedder: Embedder) -> dict[str, Callable[[], object]]:
    """Each part of the floor, by its name."""
    texts: list[str] = [parse(line).content for line in lines]  # type: ignore[attr-defined]
    stems = [read(text).stems for text in texts]
    matrix = embedder.embed(texts)
    response = Response(query_id="q", status="ok", memories=[], warnings=[], applied=["topic:0:1"])
    near = faiss.IndexFlatIP(embedder.dimension)
    near.add(matrix[:SEARCHED])

    def index_vectors() -> None:
        vectors = VectorIndex(embedder.dimension)
        for slot, row in enumerate(matrix):
            vectors.add(np.array([slot], np.int64), row.reshape(1, -1))

    def find_neighbours() -> None:
        for row in matrix:
            near.search(row.reshape(1, -1), NEIGHBOURS)

    def index_words() -> None:
        words = LexicalIndex()
        for stem in stems:
            words.add([stem])

    return {
        "decode and validate": lambda: _each(parse, lines),
        "tokenise and stem": lambda: _each(read, texts),
        "embedding": lambda: [embedder.embed(batch) for batch in _batches(texts)],
        "FAISS add": index_vectors,
        f"FAISS search of {NEIGHBOURS} at {SEARCHED}": find_neighbours,
        "lexical index": index_words,
        f"RocksDB, {PUTS} puts in batches of {WRITTEN}": lambda: _store(matrix, lines),
        "response to JSON": lambda: _each(lambda _: response.model_dump_json(exclude_unset=True), lines),
    }


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH_RECORDS):
        collect_due_garbage()
        yield items[start : start + BATCH_RECORDS]


def _each(work: Callable[[T], object], items: Sequence[T]) -> None:
    for batch in _batches(items):
        [work(item) for item in batch]


def _store(matrix: Any, lines: list[bytes]) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    with tempfile.TemporaryDirectory() as folder:
        database = Rdict(folder, options)
        for start in range(0, len(lines), WRITTEN):
            batch = WriteBatch(raw_mode=True)
            for number in range(start, min(start + WRITTEN, len(lines))):
                key = number.to_bytes(8, "big")
                batch.put(b"V" + key, matrix[number].tobytes())
                for put in range(PUTS - 1):
                    batch.put(b"%d" % put + key, lines[number])
            database.write(batch)
        database.close()
