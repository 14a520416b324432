"""The embedder whose table of token vectors is part of the package."""

import sys

import numpy as np
import pytest

from recallflow.connectors.meaning_embedder import TABLE, TOKENIZER, MeaningEmbedder
from recallflow.errors import EmbedderError

PETS, DOG, RENT = "Do I have any pets?", "We have a dog called Bolt.", "The rent is due on the first."


@pytest.fixture(scope="module")
def embedder() -> MeaningEmbedder:
    return MeaningEmbedder()


def test_synonym_is_closer_than_an_unrelated_text(embedder: MeaningEmbedder) -> None:
    question, dog, rent = embedder.embed([PETS, DOG, RENT])
    assert question @ dog > question @ rent + 0.2


def test_misspelt_name_is_closer_than_another(embedder: MeaningEmbedder) -> None:
    asked, told, other = embedder.embed(["Katarzyna", "Katarzina", "Bartholomew"])
    assert asked @ told > asked @ other + 0.2


@pytest.mark.parametrize("text", ["我上周搬到了北京。", "Я живу в Казани.", DOG])
def test_vector_has_length_one_in_any_script(embedder: MeaningEmbedder, text: str) -> None:
    (row,) = embedder.embed([text])
    assert row.shape == (embedder.dimension,)
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6)


def test_vector_does_not_depend_on_the_batch(embedder: MeaningEmbedder) -> None:
    together = embedder.embed([PETS, "", DOG, RENT * 50])
    alone = np.concatenate([embedder.embed([text]) for text in (PETS, "", DOG, RENT * 50)])
    assert together.tobytes() == alone.tobytes()
    assert not together[1].any()


def test_tokens_of_a_long_text_are_all_counted(embedder: MeaningEmbedder) -> None:
    assert embedder.count_tokens("rent " * 2_000) == 2_000


def test_table_and_tokenizer_fit_five_megabytes() -> None:
    assert TABLE.stat().st_size + TOKENIZER.stat().st_size < 5_000_000


def test_missing_tokenizers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(EmbedderError, match=r"recallflow\[meaning\]"):
        MeaningEmbedder()
