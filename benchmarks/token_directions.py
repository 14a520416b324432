"""Finds the directions that MiniLM's token vectors are cut to, and writes them where the embedder reads them.

    python -m benchmarks.token_directions [--model-path DIR] [--directions 128]

The model reads every fifth word of its vocabulary alone; the first principal directions of what it makes of their
tokens keep most of what tells words apart. No text is needed, so the directions are no domain's.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.locomo import shared
from recallflow.connectors import minilm_embedder
from recallflow.connectors.minilm_embedder import MiniLMEmbedder
from recallflow.embedder import Matrix

SHORTEST = 3
STEP = 5


def words(embedder: MiniLMEmbedder) -> list[str]:
    """Every fifth word of the vocabulary, in the order of the alphabet."""
    known = sorted(word for word in embedder.vocabulary() if word.isalpha() and len(word) >= SHORTEST)
    return known[::STEP]


def directions(rows: Matrix, count: int) -> tuple[Matrix, float]:
    """(dimension, count) principal directions of unit rows about the origin, and the share of the rows' squared length
    that lies in them."""
    _, spread, turned = np.linalg.svd(rows.astype(np.float64), full_matrices=False)
    # A direction and its opposite are the same: the larger half points up.
    signs = np.sign(turned[np.arange(len(turned)), np.abs(turned).argmax(axis=1)])
    kept = (turned * signs[:, None])[:count].T.astype(np.float32)
    return kept, float((spread[:count] ** 2).sum() / (spread**2).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, metavar="DIR")
    parser.add_argument("--directions", type=int, default=128)
    chosen = parser.parse_args()
    embedder = MiniLMEmbedder(chosen.model_path or shared("models", "all-MiniLM-L6-v2"))
    read = words(embedder)
    found, kept = directions(np.concatenate([embedder.hidden(word) for word in read]), chosen.directions)
    np.save(minilm_embedder.DIRECTIONS, found.astype(np.float16))
    print(f"{len(read)} words; {kept:.3f} of the squared length is kept; written to {minilm_embedder.DIRECTIONS}")


if __name__ == "__main__":
    main()
