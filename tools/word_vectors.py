"""Makes the table of word vectors: static vectors with which questions find statements, distilled from MiniLM.

    python -m tools.word_vectors texts|vectors|table|lexicon [--folder build/word_vectors] [--dimension 128]

Steps, each kept in the folder. `texts`: sentences of WordNet (Debian package wordnet-base: examples, glosses and
synonym sets), of the development conversations, short first-person sentences about WordNet's commonest words, and the
statements and questions of tools/vocabulary/pairs.tsv. `vectors`: all-MiniLM-L6-v2 reads them, quantised, which
takes minutes. `table`: (1) ridge regression, so that the mean of a text's word vectors equals its centred sentence
vector; punctuation has vectors too, which take up what makes a question a question, and are left out of the table;
(2) the principal components; (3) Adam, on three losses at once: similarities among texts as MiniLM has them, each
question closest to its statement among others of the same topic, and nouns close to their hypernyms. The words of
tools/vocabulary/lexicon/*.tsv, of twelve other languages, get the vectors of their English glosses. The result is
stored as signed bytes with a scale per word in recallflow/language/word_vectors.npz. `lexicon`: the words of the other
languages anew, with the vectors that are stored.

No text of benchmarks/everyday_facts or benchmarks/changing_facts is used.
"""

import argparse
import re
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import numpy.typing as npt
import orjson
import regex
from scipy.sparse.linalg import LinearOperator, cg

from benchmarks.locomo import shared
from recallflow.language.scripts import plain
from recallflow.language.tables import EVERY, Table
from recallflow.language.word_vectors import PARTS, TABLE, word_vectors
from recallflow.language.words import latin_stems, stemmer, words

WORDNET = Path("/usr/share/wordnet")
TABLES = {table.code: table for table in EVERY}
VOCABULARY = Path(__file__).parent / "vocabulary"
CONVERSATIONS = ("locomo_dev.json", "group_dev.json", "assistant_dev.json")
EXAMPLES, GLOSSES, SENTENCES, COMMON = 70_000, 60_000, 15_000, 6_000
TOKENS_MAX = 48
BATCH = 64
WORDS = 27_000
SEEN_LEAST = 3  # weighted occurrences of a word in the table
RIDGE, RIDGE_STEPS, RARITY = 0.3, 30, 1e-3
STEPS, WARM_UP, LEARNING_RATE, REPORTED = 1_500, 50, 0.06, 250
TEMPERATURE, HYPERNYM_TEMPERATURE = 0.05, 0.1
TEXTS_AT_ONCE, PAIRS_AT_ONCE, BLOCK, HYPERNYMS_AT_ONCE = 768, 512, 8, 512
TEACHER = 0.5  # share of MiniLM's own ranking in what a question's statement is trained towards
HYPERNYMS = 0.3  # weight of that loss
LEVELS, ROOTS = 4, 4  # hypernyms above a noun; levels of WordNet from the top that say nothing
PERSONAL = {
    "n": ("I have a {}.", "Do I have a {}?", "My {} is new.", "What about my {}?"),
    "v": ("I {} every week.", "When did I {}?", "We used to {} together."),
    "a": ("I feel {} today.", "Why am I so {}?"),
    "s": ("It was very {}.",),
    "r": ("I {} go there.",),
}
_PUNCTUATION = re.compile(r"[?.!,:;]")
_WORD = regex.compile(r"[\w\p{M}]+")
_GLOSS = re.compile(r"^[^,]{2,40}: ")
Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Pair = tuple[str, Sequence[str]]


# ---------------------------------------------------------------------- texts


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
    counts: Counter[tuple[str, str]] = Counter()
    for line in (WORDNET / "cntlist.rev").read_text("utf-8", "replace").splitlines():
        key, _, count = line.split()[:3]
        lemma, _, rest = key.partition("%")
        counts[lemma.replace("_", " "), kinds[rest[0]]] += int(count)
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


def pairs() -> list[Pair]:
    """Return statements with the questions that they answer, topic by topic."""
    rows = [line.split("\t") for line in (VOCABULARY / "pairs.tsv").read_text("utf-8").splitlines()]
    return [(statement, questions) for statement, *questions in rows]


def gather(folder: Path) -> None:
    """Write texts.json: those of `pairs` last, statements before questions."""
    draw = Random(1)
    every = sorted(set(wordnet_texts()))
    draw.shuffle(every)
    texts = [text for is_gloss, text in every if not is_gloss][:EXAMPLES]
    texts += [text for is_gloss, text in every if is_gloss][:GLOSSES]
    for name in CONVERSATIONS:
        texts += [*dict.fromkeys(sentences(orjson.loads((shared("data") / name).read_bytes())))][:SENTENCES]
    texts += personal_texts()
    draw.shuffle(texts)
    texts += [statement for statement, _ in pairs()]
    texts += [question for _, questions in pairs() for question in questions]
    (folder / "texts.json").write_bytes(orjson.dumps(texts))
    print(f"{len(texts)} texts")


# ---------------------------------------------------------------------- MiniLM


class Teacher:
    """MiniLM with weights in bytes: a cosine of .993 with the exact one, in less than half of the time."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime
        from onnxruntime.quantization import quantize_dynamic
        from tokenizers import Tokenizer

        source, path = shared("models", "all-MiniLM-L6-v2"), folder / "quantised.onnx"
        if not path.exists():
            quantize_dynamic(source / "model.onnx", path, per_channel=True)
        self._model = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self._tokenizer: Any = Tokenizer.from_file(str(source / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TOKENS_MAX)

    def vectors(self, texts: Sequence[str]) -> Floats:
        """Return (texts, 384): the mean of each text's last hidden states, of length 1."""
        ids = [one.ids for one in self._tokenizer.encode_batch([*texts])]
        order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
        found, began = np.zeros((len(texts), 384), np.float32), time.monotonic()
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            given = np.zeros((len(rows), len(ids[rows[-1]])), np.int64)
            mask = np.zeros_like(given)
            for at, row in enumerate(rows):
                given[at, : len(ids[row])], mask[at, : len(ids[row])] = ids[row], 1
            inputs = {"input_ids": given, "attention_mask": mask, "token_type_ids": np.zeros_like(given)}
            (hidden,) = self._model.run(None, inputs)
            found[rows] = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
            if first % (400 * BATCH) == 0:
                print(f"{first} of {len(order)}, {time.monotonic() - began:.0f} s", flush=True)
        return unit(found)[0]


def embed(folder: Path) -> None:
    """Write vectors.npy, in the order of the texts."""
    texts = orjson.loads((folder / "texts.json").read_bytes())
    np.save(folder / "vectors.npy", Teacher(folder).vectors(texts).astype(np.float16))


# ---------------------------------------------------------------------- training


def unit(rows: Floats) -> tuple[Floats, Floats]:
    """Return the rows with length 1, and the lengths they had."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True) + 1e-8
    return rows / lengths, lengths


def softmax(scores: Floats) -> Floats:
    shares: Floats = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return shares


def through_unit(units: Floats, lengths: Floats, gradient: Floats) -> Floats:
    """Return the gradient by rows of that by their units."""
    found: Floats = (gradient - (gradient * units).sum(1, keepdims=True) * units) / lengths
    return found


@dataclass(slots=True)
class Trainer:
    """Adam over the table, `table` (words, dimension). `counts`: (texts, words), how often each text holds each word;
    `wanted`: (texts, 384) MiniLM's centred vectors of length 1; `questions`: by statement, the numbers of its
    questions; `hypernyms`: (pairs, 2) a noun's row and a hypernym's; `plain_texts`: how many texts are of no pair."""

    table: Floats
    counts: Any
    wanted: Floats
    plain_texts: int
    questions: Sequence[tuple[int, Sequence[int]]]
    hypernyms: Ints
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def run(self) -> None:
        first, second = np.zeros_like(self.table), np.zeros_like(self.table)
        pace = LEARNING_RATE * float(np.sqrt((self.table**2).mean()))
        for step in range(STEPS):
            gradient = self._similarities() + self._answers() + HYPERNYMS * self._hypernyms()
            first = 0.9 * first + 0.1 * gradient
            second = 0.98 * second + 0.02 * gradient * gradient
            rate = pace * min(1.0, (step + 1) / WARM_UP) * (0.5 + 0.5 * np.cos(np.pi * step / STEPS))
            mean, spread = first / (1 - 0.9 ** (step + 1)), np.sqrt(second / (1 - 0.98 ** (step + 1)))
            self.table -= np.float32(rate) * mean / (spread + 1e-8)
            if (step + 1) % REPORTED == 0:
                print(f"step {step + 1}: questions closest to their statement {self._closest():.3f}", flush=True)

    def _similarities(self) -> Floats:
        """Cosines of texts with each other, as MiniLM has them: which are the nearest, and how near each is."""
        chosen = self.random.choice(self.plain_texts, TEXTS_AT_ONCE, replace=False)
        counts = self.counts[chosen]
        units, lengths = unit(counts @ self.table)
        wanted, found = self.wanted[chosen] @ self.wanted[chosen].T, units @ units.T
        apart = 1.6 * (found - wanted) / TEXTS_AT_ONCE
        np.fill_diagonal(apart, 0)
        np.fill_diagonal(wanted, -9)
        np.fill_diagonal(found, -9)
        apart += (softmax(found / TEMPERATURE) - softmax(wanted / TEMPERATURE)) / TEMPERATURE / TEXTS_AT_ONCE
        gradient: Floats = counts.T @ through_unit(units, lengths, (apart + apart.T) @ units)
        return gradient

    def _answers(self) -> Floats:
        """Questions and their statements, among others of the same topics."""
        starts = self.random.choice(len(self.questions) - BLOCK, PAIRS_AT_ONCE // BLOCK, replace=False)
        chosen = [self.questions[at] for at in np.unique(starts[:, None] + np.arange(BLOCK))]
        asked = [questions[self.random.integers(len(questions))] for _, questions in chosen]
        told = [statement for statement, _ in chosen]
        (asking, asking_lengths), (telling, telling_lengths) = (
            unit(self.counts[rows] @ self.table) for rows in (asked, told)
        )
        ideal = softmax(self.wanted[asked] @ self.wanted[told].T / TEMPERATURE) * TEACHER
        ideal[np.diag_indices(len(ideal))] += 1 - TEACHER
        apart = (softmax(asking @ telling.T / TEMPERATURE) - ideal) / TEMPERATURE / len(ideal)
        gradient: Floats = self.counts[asked].T @ through_unit(asking, asking_lengths, apart @ telling)
        gradient += self.counts[told].T @ through_unit(telling, telling_lengths, apart.T @ asking)
        return gradient

    def _hypernyms(self) -> Floats:
        """Nouns and what they are kinds of."""
        nouns, kinds = self.hypernyms[self.random.choice(len(self.hypernyms), HYPERNYMS_AT_ONCE, replace=False)].T
        (of_nouns, noun_lengths), (of_kinds, kind_lengths) = unit(self.table[nouns]), unit(self.table[kinds])
        found, own = of_nouns @ of_kinds.T, np.eye(len(nouns), dtype=np.float32)
        found[(kinds[:, None] == kinds) & (own == 0)] = -9
        apart = (softmax(found / HYPERNYM_TEMPERATURE) - own) / HYPERNYM_TEMPERATURE / len(nouns)
        gradient = np.zeros_like(self.table)
        np.add.at(gradient, nouns, through_unit(of_nouns, noun_lengths, apart @ of_kinds))
        np.add.at(gradient, kinds, through_unit(of_kinds, kind_lengths, apart.T @ of_nouns))
        return gradient

    def _closest(self) -> float:
        """The share of questions whose statement is the closest of sixteen neighbours."""
        told = unit(self.counts[[statement for statement, _ in self.questions]] @ self.table)[0]
        asked = unit(self.counts[[questions[0] for _, questions in self.questions]] @ self.table)[0]
        blocks = range(0, len(told) - 16, 16)
        return float(
            np.mean([(asked[at : at + 16] @ told[at : at + 16].T).argmax(1) == np.arange(16) for at in blocks])
        )


def ridge(means: Any, wanted: Floats, start: Floats) -> Floats:
    """Return the table nearest to `start` whose means are the wanted vectors."""
    size = means.shape[1]
    normal = LinearOperator((size, size), matvec=lambda table: means.T @ (means @ table) + RIDGE * table)
    aim = means.T @ wanted + RIDGE * start
    columns = [cg(normal, aim[:, one], x0=start[:, one], maxiter=RIDGE_STEPS)[0] for one in range(aim.shape[1])]
    return np.stack(columns, axis=1).astype(np.float32)


def hypernyms(at: Mapping[str, int]) -> Ints:
    """Return the rows of nouns, by their commonest sense, and of up to four hypernyms each."""
    above: dict[str, tuple[list[str], list[str]]] = {}
    for line in (WORDNET / "data.noun").read_text("utf-8", "replace").splitlines():
        if not line.startswith("  "):
            fields = line.partition(" | ")[0].split()
            count = int(fields[3], 16)
            pointers = fields[5 + 2 * count :]
            kinds = [pointers[i + 1] for i in range(0, len(pointers) - 3, 4) if pointers[i] in ("@", "@i")]
            above[fields[0]] = [fields[4 + 2 * i].lower() for i in range(count)], kinds

    def depth(sense: str) -> int:
        levels = 0
        while above[sense][1] and levels < ROOTS:
            sense, levels = above[sense][1][0], levels + 1
        return levels

    found = []
    for line in (WORDNET / "index.noun").read_text("utf-8", "replace").splitlines():
        fields = line.split()
        if line.startswith("  ") or fields[0] not in at:
            continue
        sense = fields[6 + int(fields[3])]
        for _ in range(LEVELS):
            if not above[sense][1]:
                break
            sense = above[sense][1][0]
            named = next((name for name in above[sense][0] if name in at and name != fields[0]), None)
            if depth(sense) == ROOTS and named:
                found.append((at[fields[0]], at[named]))
    return np.array(found, np.int64)


def train(folder: Path, dimension: int) -> None:
    """Write the table."""
    from scipy import sparse

    texts: list[str] = orjson.loads((folder / "texts.json").read_bytes())
    every = pairs()
    plain_texts = len(texts) - len(every) - sum(len(questions) for _, questions in every)
    read = [words(text) + _PUNCTUATION.findall(text) for text in texts]
    counted: Counter[str] = Counter()
    for number, found in enumerate(read):
        weight = 12 if number >= plain_texts else 1 if _GLOSS.match(texts[number]) else 3
        for word in found:
            counted[word] += weight
    vocabulary = [word for word, count in counted.most_common(WORDS) if count >= SEEN_LEAST]
    at = {word: row for row, word in enumerate(vocabulary)}
    rows = [[at[word] for word in found if word in at] for found in read]
    ends = np.cumsum([0, *map(len, rows)])
    counts = sparse.csr_matrix((np.ones(ends[-1], np.float32), np.concatenate(rows), ends), (len(texts), len(at)))
    wanted = np.load(folder / "vectors.npy").astype(np.float32)
    wanted -= wanted.mean(0)
    means = (sparse.diags((1 / np.maximum(np.diff(ends), 1)).astype(np.float32)) @ counts).tocsr()
    start = Teacher(folder).vectors(vocabulary)
    start = unit(start - start.mean(0))[0]
    seen = np.asarray((counts > 0).sum(0)).ravel() + 1
    start *= (RARITY / (RARITY + seen / seen.sum()))[:, None].astype(np.float32)
    start *= np.sqrt((wanted**2).sum(1).mean() / ((means @ start) ** 2).sum(1).mean()).astype(np.float32)
    whole = ridge(means, wanted, start)
    directions = np.linalg.svd(np.cov((means @ whole).T))[0][:, :dimension].astype(np.float32)
    numbers = iter(range(plain_texts + len(every), len(texts)))
    questions = [(plain_texts + row, [next(numbers) for _ in asked]) for row, (_, asked) in enumerate(every)]
    trainer = Trainer(whole @ directions, counts, unit(wanted)[0], plain_texts, questions, hypernyms(at))
    trainer.run()
    kept = [row for row, word in enumerate(vocabulary) if not _PUNCTUATION.fullmatch(word)]
    store([vocabulary[row] for row in kept], trainer.table[kept])


# ---------------------------------------------------------------------- the file


def translations(code: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each form of a language's lexicon as the lookup reads it, and its gloss in words.

    A form of several words is left out: the lookup sees its parts.
    """
    for line in (VOCABULARY / "lexicon" / f"{code}.tsv").read_text("utf-8").splitlines():
        gloss, _, forms = line.partition("\t")
        for form in map(plain, forms.split()):
            if _WORD.fullmatch(form):
                yield form, words(gloss)


def store(vocabulary: Sequence[str], table: Floats) -> None:
    """Write the npz file: the vectors as bytes, and which words, stems and forms have which."""
    at = {word: row for row, word in enumerate(vocabulary)}
    stems: dict[str, int] = {}
    for row, word in enumerate(vocabulary):
        stem = latin_stems[0][word]
        if stem and stem not in at:
            stems.setdefault(stem, row)
    more: dict[tuple[int, ...], int] = {}  # of glosses of several words
    forms: defaultdict[str, dict[tuple[str, int], None]] = defaultdict(dict)
    codes = sorted(path.stem for path in (VOCABULARY / "lexicon").glob("*.tsv"))
    for code in codes:
        for form, gloss in translations(code):
            rows = tuple(dict.fromkeys(at[word] for word in gloss if word in at))
            if rows:
                row = rows[0] if len(rows) == 1 else more.setdefault(rows, len(vocabulary) + len(more))
                forms[code][form, row] = None
    whole = np.concatenate([table, [table[[*rows]].mean(0) for rows in more]]) if more else table
    scales = np.abs(whole).max(1) / 127
    packed: dict[str, Any] = {
        "codes": np.round(whole / np.maximum(scales, 1e-9)[:, None]).astype(np.int8),
        "scales": scales.astype(np.float16),
        "words": _packed(vocabulary),
        "marks": _marks(at, more),
        "stems": _packed([*stems]),
        "stem_rows": np.array([*stems.values()], np.uint16),
    }
    for code in codes:
        packed |= zip((f"{code}_{part}" for part in PARTS), _lexicon(TABLES[code], forms[code]), strict=True)
    with ZipFile(str(TABLE), "w") as file:
        for name, array in packed.items():
            member = ZipInfo(f"{name}.npy")
            # Compressed codes are hardly smaller, and each process would take 15 ms to read them.
            member.compress_type = ZIP_STORED if name == "codes" else ZIP_DEFLATED
            with file.open(member, "w") as stored:
                np.lib.format.write_array(stored, array, allow_pickle=False)
    size = Path(str(TABLE)).stat().st_size
    print(f"{size / 1e6:.2f} MB, {len(vocabulary)} words, {sum(map(len, forms.values()))} forms of other languages")


def _lexicon(table: Table, pairs: Iterable[tuple[str, int]]) -> tuple[npt.NDArray[Any], ...]:
    """Return the arrays of a language in the order of `PARTS`. `pairs` are distinct forms and rows."""
    first: dict[str, int] = {}
    further: list[tuple[str, int]] = []
    for form, row in pairs:
        if first.setdefault(form, row) != row:
            further.append((form, row))
    at = {form: number for number, form in enumerate(first)}
    stems: dict[str, int] = {}
    for form in first if table.has_spaces else ():
        stem = stemmer(table)(form)
        if stem and stem not in at:
            stems.setdefault(stem, at[form])
    rows = np.array([*first.values()], np.uint16)
    pairs_at = np.array([(at[form], row) for form, row in further], np.uint16).reshape(-1, 2)
    return _packed([*first, *stems]), rows, pairs_at, np.array([*stems.values()], np.uint16)


def _marks(at: Mapping[str, int], more: Mapping[tuple[int, ...], int]) -> npt.NDArray[np.uint16]:
    """Return the marks of each row: those of its word, or of any word of its gloss."""
    found = np.zeros(len(at) + len(more), np.uint16)
    lists: dict[str, str] = tomllib.loads((VOCABULARY / "marks.toml").read_text("utf-8"))
    for bit, listed in enumerate(lists.values()):
        found[[at[word] for word in listed.split() if word in at]] |= np.uint16(1 << bit)
    for parts, row in more.items():
        found[row] = np.bitwise_or.reduce(found[[*parts]])
    return found


def _packed(strings: Sequence[str]) -> npt.NDArray[np.uint8]:
    return np.frombuffer("\n".join(strings).encode(), np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("texts", "vectors", "table", "lexicon"))
    parser.add_argument("--folder", type=Path, default=Path("build/word_vectors"))
    parser.add_argument("--dimension", type=int, default=128)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    match chosen.step:
        case "texts":
            gather(chosen.folder)
        case "vectors":
            embed(chosen.folder)
        case "lexicon":
            known = word_vectors()
            store([*known.english], known.codes[: len(known.english)] * known.scales[: len(known.english)])
        case _:
            train(chosen.folder, chosen.dimension)


if __name__ == "__main__":
    main()
