"""Finds the directions that MiniLM's token vectors are cut to, and writes them where the embedder reads them.

    python -m tools.token_directions [--model-path DIR] [--directions 128]

The model reads every fifth word of its vocabulary alone; the first principal directions of what it makes of their
tokens keep most of what tells words apart. No text is needed, so the directions are no domain's.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.locomo import shared
from recallflow.connectors.model_embedders import DIRECTIONS, TOKEN_DIMENSIONS, directions, load_minilm

STEP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, metavar="DIR")
    parser.add_argument("--directions", type=int, default=TOKEN_DIMENSIONS)
    chosen = parser.parse_args()
    embedder = load_minilm(chosen.model_path or shared("models", "all-MiniLM-L6-v2"))
    read = embedder.known_words()[::STEP]
    found, kept = directions(np.concatenate([embedder.hidden(word) for word in read]), chosen.directions)
    np.save(DIRECTIONS, found.astype(np.float16))
    print(f"{len(read)} words; {kept:.3f} of the squared length is kept; written to {DIRECTIONS}")


if __name__ == "__main__":
    main()
