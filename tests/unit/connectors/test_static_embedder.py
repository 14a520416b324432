"""The static embedder on a real model2vec model."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.locomo import shared
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.static_embedder import StaticEmbedder
from recallflow.errors import EmbedderError

TEXTS = ["a red bike", "my bicycle is red", "the tax office closes at noon", "", "🚲", "Bo", "the the the"]


@pytest.fixture(scope="module")
def embedder() -> StaticEmbedder:
    return StaticEmbedder(shared("models", "static-minilm-256"))


@pytest.mark.models
def test_meaning_counts_beyond_spelling(embedder: StaticEmbedder) -> None:
    bike, bicycle, tax = embedder.embed(TEXTS[:3])
    assert bike @ bicycle > 0.5 > bike @ tax


@pytest.mark.models
@given(batch=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=9))
def test_a_vector_does_not_depend_on_its_batch(embedder: StaticEmbedder, batch: list[str]) -> None:
    alone = [embedder.embed([text])[0].tobytes() for text in batch]
    assert [row.tobytes() for row in embedder.embed(batch)] == alone


@pytest.mark.models
def test_rows_are_unit_vectors_or_zero(embedder: StaticEmbedder) -> None:
    rows = embedder.embed(TEXTS)
    assert rows.dtype == np.float32
    assert rows.shape == (len(TEXTS), embedder.dimension)
    norms = np.linalg.norm(rows, axis=1)
    assert np.all((np.abs(norms - 1) < 1e-6) | (norms == 0))
    assert norms[TEXTS.index("")] == 0
    assert embedder.embed([]).shape == (0, embedder.dimension)


@pytest.mark.models
def test_the_name_tells_the_model(embedder: StaticEmbedder) -> None:
    loaded = load_embedder("static", shared("models", "static-minilm-256"))
    assert loaded.name == embedder.name
    assert embedder.name.startswith("static-256-")


def test_a_folder_that_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError, match=r"has no model\.safetensors: give the folder of a model2vec model"):
        load_embedder("static", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(EmbedderError, match="cannot load"):
        load_embedder("static", tmp_path)
