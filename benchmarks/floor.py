"""Floor of the ingest cost: a fixed program that does a message's unavoidable work with the libraries alone.

It imports nothing of recallflow, so that a change of the product does not move it. A change of this file gets a new
VERSION; ratios of different versions are not comparable.
"""

import re
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence

import faiss
import numpy as np
import numpy.typing as npt
import orjson
import Stemmer
from rocksdict import Options, Rdict, WriteBatch

VERSION = 2
DIMENSION = 256
BATCH = 1_000  # messages of which the vectors are made at once
WRITTEN = 50  # messages in a write batch
PUTS = 5  # of a message
NEIGHBOURS, SEARCHED = 20, 600  # neighbours of each message among so many vectors
REQUIRED: dict[str, type | tuple[type, ...]] = {
    "type": str,
    "id": str,
    "tenant_id": str,
    "user_id": str,
    "content": str,
    "timestamp": (str, int),
}
WORD = re.compile(r"\w+")
RESPONSE = {"query_id": "q", "status": "ok", "memories": [], "warnings": [], "applied": ["topic:0:1"]}

Matrix = npt.NDArray[np.float32]


def measure_us(lines: Sequence[bytes]) -> dict[str, float]:
    """Return the processor time of each part, in microseconds of a message."""
    texts = [str(decode(line)["content"]) for line in lines]
    stems = [stem(text) for text in texts]
    matrix = embed(stems)
    near = faiss.IndexFlatIP(DIMENSION)
    near.add(matrix[:SEARCHED])
    parts: dict[str, Callable[[], object]] = {
        "decode and validate": lambda: [decode(line) for line in lines],
        "tokenise and stem": lambda: [stem(text) for text in texts],
        "embedding": lambda: [embed(stems[start : start + BATCH]) for start in range(0, len(stems), BATCH)],
        "FAISS add": lambda: add(matrix),
        f"FAISS search of {NEIGHBOURS} at {SEARCHED}": lambda: [near.search(row[None], NEIGHBOURS) for row in matrix],
        "posting lists": lambda: post(stems),
        f"RocksDB, {PUTS} puts in batches of {WRITTEN}": lambda: store(matrix, lines),
        "response to JSON": lambda: [orjson.dumps(RESPONSE) for _ in lines],
    }
    found = {}
    for name, part in parts.items():
        began_s = time.process_time()
        part()
        found[name] = (time.process_time() - began_s) / len(lines) * 1e6
    return found


def decode(line: bytes) -> dict[str, object]:
    """Return a message of which the required fields have their types."""
    fields: dict[str, object] = orjson.loads(line)
    if not all(isinstance(fields.get(name), kind) for name, kind in REQUIRED.items()):
        raise ValueError(line)
    return fields


def stem(text: str) -> list[str]:
    """Return the stems of a text's words."""
    return list(_STEMMER.stemWords(WORD.findall(text.lower())))


def embed(batch: Sequence[Sequence[str]]) -> Matrix:
    """Return unit vectors of hashed stems, one row a message."""
    rows = np.repeat(np.arange(len(batch)), [len(stems) for stems in batch])
    hashes = np.array([zlib.crc32(one.encode()) for stems in batch for one in stems], np.int64)
    signs = np.where(hashes & 1, 1.0, -1.0)
    sums = np.bincount(rows * DIMENSION + (hashes >> 1) % DIMENSION, signs, len(batch) * DIMENSION)
    matrix = sums.reshape(len(batch), DIMENSION)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.asarray(matrix / np.maximum(norms, 1e-9), np.float32)


def add(matrix: Matrix) -> None:
    """Add vectors to an index, one after the other."""
    index = faiss.IndexFlatIP(DIMENSION)
    for row in matrix:
        index.add(row[None])


def post(stems: Sequence[Sequence[str]]) -> None:
    """Build posting lists of message numbers."""
    postings = defaultdict[str, list[int]](list)
    for number, words in enumerate(stems):
        for word in words:
            postings[word].append(number)


def store(matrix: Matrix, lines: Sequence[bytes]) -> None:
    """Write each message and its vector to a new database."""
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


_STEMMER = Stemmer.Stemmer("english")
