"""Static, packaged and remote embedders."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.locomo import shared
from recallflow.connectors.embedders import RemoteModel, check_embedder, load_embedder, load_remote
from recallflow.connectors.model_embedders import StaticEmbedder
from recallflow.embedder import TokenEmbedder
from recallflow.errors import EmbedderError
from recallflow.llm import Embedded, RemoteEmbedder
from tests.unit.operators.harness import HASHING

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


def test_invalid_model_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError, match=r"has no model\.safetensors: give the folder of a model2vec model"):
        load_embedder("static", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(EmbedderError, match="cannot load"):
        load_embedder("static", tmp_path)


class Service:
    name = "e-1"

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embedded:
        raise AssertionError(tenant_id, texts)


def test_remote_embedder_has_name_and_dimension_of_its_service() -> None:
    found = load_remote(Service(3))
    assert isinstance(found, RemoteEmbedder)
    assert not isinstance(found, TokenEmbedder)
    assert (found.name, found.dimension, found.kind) == ("e-1", 3, "contextual")
    assert not isinstance(HASHING, RemoteEmbedder)


def test_without_a_copy_nothing_is_embedded_here() -> None:
    with pytest.raises(EmbedderError, match="--model-path"):
        RemoteModel(Service(3)).embed(["tea"])


def test_a_copy_embeds_here() -> None:
    found = RemoteModel(Service(HASHING.dimension), HASHING)
    np.testing.assert_array_equal(found.embed(["tea"]), HASHING.embed(["tea"]))


def test_a_model_of_another_size_is_no_copy() -> None:
    with pytest.raises(EmbedderError, match=r"gives 384 floats, and embedding\.dimension is 3"):
        RemoteModel(Service(3), HASHING)


def test_missing_model_folder_is_reported(tmp_path: Path) -> None:
    check_embedder("openai")
    with pytest.raises(EmbedderError, match="is no folder"):
        load_remote(Service(3), tmp_path / "none")
    with pytest.raises(EmbedderError, match=r"no model\.onnx"):
        load_remote(Service(3), tmp_path)


def test_remote_embedder_cannot_be_loaded_locally() -> None:
    with pytest.raises(EmbedderError, match="asks a service"):
        load_embedder("openai")
