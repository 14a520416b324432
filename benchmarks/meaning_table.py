"""Makes the token table of the meaning embedder: static vectors that reproduce MiniLM's sentence vectors.

    python -m benchmarks.meaning_table texts|vectors|table [--folder build/meaning] [--dimension 128]

Three steps, each kept in the folder. `texts`: sentences of WordNet (Debian package wordnet-base: examples, glosses and
synonym sets), of the development conversations, and short first-person sentences about WordNet's commonest words.
`vectors`: all-MiniLM-L6-v2 reads them, quantised, which takes minutes. `table`: ridge regression, so that the mean of
a sentence's token vectors equals its centred sentence vector; the start of each token is the model's reading of it
alone. Then the principal components, as signed bytes with a scale per token, into connectors/meaning_table.npz.
"""

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from benchmarks.locomo import shared

WORDNET = Path("/usr/share/wordnet")
TABLE = Path(__file__).parents[1] / "connectors" / "meaning_table.npz"
CONVERSATIONS = ("locomo_dev.json", "group_dev.json", "assistant_dev.json")
EXAMPLES, GLOSSES, SENTENCES, COMMON = 70_000, 60_000, 15_000, 6_000
TOKENS_MAX = 48
BATCH = 64
RIDGE, STEPS = 0.3, 30
RARITY = 1e-3
PERSONAL = {
    "n": ("I have a {}.", "Do I have a {}?", "My {} is new.", "What about my {}?"),
    "v": ("I {} every week.", "When did I {}?", "We used to {} together."),
    "a": ("I feel {} today.", "Why am I so {}?"),
    "s": ("It was very {}.",),
    "r": ("I {} go there.",),
}
Floats = npt.NDArray[np.float32]


def wordnet_texts() -> Iterator[tuple[bool, str]]:
    """Yield whether it is a gloss, and the text, of every synonym set."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in (WORDNET / f"data.{part}").read_text("utf-8", "replace").splitlines():
            if line.startswith("  "):
                continue
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            lemmas = [fields[4 + 2 * at].replace("_", " ").partition("(")[0] for at in range(int(fields[3], 16))]
            yield from ((False, found.strip()) for found in re.findall(r'"([^"]{8,200})"', gloss))
            if meaning := re.sub(r'"[^"]*"', "", gloss).strip(" ;"):
                yield True, f"{lemmas[0]}: {meaning}"[:200]
            if len(lemmas) > 1:
                yield False, ", ".join(lemmas)


def personal_texts() -> Iterator[str]:
    """Yield first-person sentences about the words with the most tagged senses."""
    kinds = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "s"}
    counts: dict[tuple[str, str], int] = {}
    for line in (WORDNET / "cntlist.rev").read_text("utf-8", "replace").splitlines():
        key, _, count = line.split()[:3]
        lemma, _, rest = key.partition("%")
        word = lemma.replace("_", " "), kinds[rest[0]]
        counts[word] = counts.get(word, 0) + int(count)
    for lemma, kind in sorted(counts, key=lambda one: (-counts[one], one))[:COMMON]:
        yield from (form.format(lemma) for form in PERSONAL[kind])


def sentences(found: Any) -> Iterator[str]:
    """Yield the sentences of a development file's texts and questions."""
    if isinstance(found, dict):
        for name, value in found.items():
            if name in ("text", "question") and isinstance(value, str):
                yield from (one for one in re.split(r"(?<=[.!?])\s+", value) if 12 < len(one) < 250)
            else:
                yield from sentences(value)
    elif isinstance(found, list):
        for value in found:
            yield from sentences(value)


def gather(folder: Path) -> None:
    """Write texts.json."""
    draw = Random(1)
    every = sorted(set(wordnet_texts()))
    draw.shuffle(every)
    texts = [text for is_gloss, text in every if not is_gloss][:EXAMPLES]
    texts += [text for is_gloss, text in every if is_gloss][:GLOSSES]
    for name in CONVERSATIONS:
        texts += [*dict.fromkeys(sentences(orjson.loads((shared("data") / name).read_bytes())))][:SENTENCES]
    texts += personal_texts()
    draw.shuffle(texts)
    (folder / "texts.json").write_bytes(orjson.dumps(texts))
    print(f"{len(texts)} texts")


def tokenizer() -> Any:
    """Return MiniLM's tokenizer, which cuts and does not pad."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(shared("models", "all-MiniLM-L6-v2") / "tokenizer.json"))
    made.no_padding()
    made.enable_truncation(TOKENS_MAX)
    return made


def session(folder: Path) -> Any:
    """Return the model with weights in bytes: a cosine of .993 with the exact one, in less than half of the time."""
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    path = folder / "quantised.onnx"
    if not path.exists():
        quantize_dynamic(shared("models", "all-MiniLM-L6-v2") / "model.onnx", path, per_channel=True)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run(model: Any, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]) -> Floats:
    """Return the mean of each row's last hidden states."""
    (hidden,) = model.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
    found: Floats = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    return found


def embed(folder: Path) -> None:
    """Write vectors.npy, in the order of the texts."""
    texts = orjson.loads((folder / "texts.json").read_bytes())
    ids = [one.ids for one in tokenizer().encode_batch(texts)]
    order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
    model, began = session(folder), time.monotonic()
    vectors = np.zeros((len(texts), 384), np.float16)
    for first in range(0, len(order), BATCH):
        rows = order[first : first + BATCH]
        longest = max(len(ids[row]) for row in rows)
        given = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros_like(given)
        for at, row in enumerate(rows):
            given[at, : len(ids[row])], mask[at, : len(ids[row])] = ids[row], 1
        found = run(model, given, mask)
        vectors[rows] = found / np.linalg.norm(found, axis=1, keepdims=True)
        if first % (200 * BATCH) == 0:
            print(f"{first} of {len(order)}, {time.monotonic() - began:.0f} s", flush=True)
    np.save(folder / "vectors.npy", vectors)


def start(folder: Path, vocabulary: int) -> Floats:
    """Return each token's vector where the model reads it alone."""
    model, ends = session(folder), (101, 102)
    found = np.zeros((vocabulary, 384), np.float32)
    for first in range(0, vocabulary, 512):
        given = np.array([[ends[0], token, ends[1]] for token in range(first, min(vocabulary, first + 512))], np.int64)
        found[first : first + len(given)] = run(model, given, np.ones_like(given))
    found -= found.mean(0)
    found /= np.linalg.norm(found, axis=1, keepdims=True) + 1e-9
    return found


def train(folder: Path, dimension: int) -> None:
    """Write the table."""
    from scipy import sparse

    texts = orjson.loads((folder / "texts.json").read_bytes())
    wanted = np.load(folder / "vectors.npy").astype(np.float32)
    made = tokenizer()
    ids = [one.ids[1:-1] for one in made.encode_batch(texts)]
    sizes = np.array([max(1, len(one)) for one in ids])
    rows = np.repeat(np.arange(len(ids)), [len(one) for one in ids])
    shape = (len(ids), made.get_vocab_size())
    means = sparse.csr_matrix((1 / sizes[rows], (rows, np.concatenate(ids).astype(np.int64))), shape, np.float32)
    seen = np.asarray((means > 0).sum(0)).ravel()
    share = (seen + 1) / (seen.sum() + shape[1])
    centred = wanted - wanted.mean(0)
    first = (start(folder, shape[1]) * (RARITY / (RARITY + share))[:, None]).astype(np.float32)
    length = np.sqrt((centred**2).sum(1).mean() / ((means @ first) ** 2).sum(1).mean())
    table = _ridge(means, centred, first * length)
    table[seen == 0] = 0  # a token of no text is noise: spelling compares it
    print(f"cosine with the model: {_cosine(means @ table, centred):.4f}")
    directions = np.linalg.svd(np.cov((means @ table).T))[0][:, :dimension]
    reduced = table @ directions
    scales = np.abs(reduced).max(1) / 127
    codes = np.round(reduced / np.maximum(scales, 1e-9)[:, None]).astype(np.int8)
    np.savez_compressed(TABLE, codes=codes, scales=scales.astype(np.float16))
    print(f"{TABLE.name}: {TABLE.stat().st_size / 1e6:.2f} MB, {np.count_nonzero(seen)} tokens")


def _ridge(means: Any, wanted: Floats, first: Floats) -> Floats:
    """Return the table nearest to the first one whose means are the wanted vectors, by conjugate gradients."""
    across = means.T.tocsr()
    table = first.copy()
    rest = across @ wanted + RIDGE * first - (across @ (means @ table) + RIDGE * table)
    step, error = rest.copy(), (rest * rest).sum(0)
    for _ in range(STEPS):
        image = across @ (means @ step) + RIDGE * step
        length = error / ((step * image).sum(0) + 1e-12)
        table += length * step
        rest -= length * image
        before, error = error, (rest * rest).sum(0)
        step = rest + (error / (before + 1e-12)) * step
    return table


def _cosine(found: Floats, wanted: Floats) -> float:
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    return float(((found * wanted).sum(1) / (lengths + 1e-9)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("texts", "vectors", "table"))
    parser.add_argument("--folder", type=Path, default=Path("build/meaning"))
    parser.add_argument("--dimension", type=int, default=128)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    match chosen.step:
        case "texts":
            gather(chosen.folder)
        case "vectors":
            embed(chosen.folder)
        case _:
            train(chosen.folder, chosen.dimension)


if __name__ == "__main__":
    main()
