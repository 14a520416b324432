"""The embedder whose table of word vectors is part of the package."""

import numpy as np
import pytest

from recallflow.connectors.embedders import MeaningEmbedder
from recallflow.language.tables import EVERY
from recallflow.language.word_vectors import TABLE
from recallflow.language.words import stemmer

PETS, DOG, RENT = "Do I have any pets?", "We have a dog called Bolt.", "The rent is due on the first."


@pytest.fixture(scope="module")
def embedder() -> MeaningEmbedder:
    return MeaningEmbedder()


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


@pytest.mark.parametrize(
    ("question", "fact", "other"),
    [
        (PETS, DOG, RENT),
        ("Katarzyna", "Katarzina", "Bartholomew"),
        ("Habe ich Haustiere?", "Unser Hund heißt Bolt.", "Die Miete ist am Ersten fällig."),
        ("¿Tengo mascotas?", "Nuestro perro se llama Bolt.", "El alquiler se paga el día uno."),
        ("where do I live?", "vivo en madrid", "toco el piano"),  # English knows each word: names, loan words
        ("Where do I live?", "J'habite à Paris.", "J'étudie le droit."),
        ("Where is my home?", "I live in Ghzk", "I study in Ghzk"),  # "i" and "in" are Italian too
        ("Где я работаю?", "Я устроился в больницу медбратом.", "Вчера весь день шёл дождь."),
        ("我养宠物吗？", "我家的狗叫波特。", "房租每月一号交。"),
        ("ペットを飼っていますか？", "うちの犬はボルトという名前です。", "家賃は一日に払います。"),
    ],
)
def test_synonym_translation_or_misspelling_is_closer_than_another_text(
    embedder: MeaningEmbedder, question: str, fact: str, other: str
) -> None:
    asked, told, unrelated = embedder.embed([question, fact, other])
    assert asked @ told > asked @ unrelated + 0.15


def test_stored_stems_equal_those_of_the_stemmers() -> None:
    with TABLE.open("rb") as file, np.load(file) as stored:
        for table in EVERY[1:]:
            forms = stored[f"{table.code}_forms"].tobytes().decode().split("\n")
            stems = [stemmer(table)(forms[at]) for at in stored[f"{table.code}_stemmed"]]
            assert forms[len(stored[f"{table.code}_rows"]) :] == stems


def test_table_fits_five_megabytes() -> None:
    assert len(TABLE.read_bytes()) < 5_000_000
