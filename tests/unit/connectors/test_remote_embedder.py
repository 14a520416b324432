"""An embedder whose model is behind an API, with and without a copy of it in this process."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from recallflow.connectors.embedders import check_embedder, load_embedder, load_remote
from recallflow.connectors.remote_embedder import RemoteModel
from recallflow.embedder import TokenEmbedder
from recallflow.errors import EmbedderError
from recallflow.llm import Embedded, RemoteEmbedder
from tests.unit.operators.harness import HASHING


class Service:
    name = "e-1"

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embedded:
        raise AssertionError(tenant_id, texts)


def test_it_has_the_name_and_the_size_of_its_service() -> None:
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


def test_a_folder_that_there_is_not_is_told_of(tmp_path: Path) -> None:
    check_embedder("openai")
    with pytest.raises(EmbedderError, match="is no folder"):
        load_remote(Service(3), tmp_path / "none")
    with pytest.raises(EmbedderError, match=r"no model\.onnx"):
        load_remote(Service(3), tmp_path)


def test_it_is_not_loaded_as_those_in_this_process() -> None:
    with pytest.raises(EmbedderError, match="asks a service"):
        load_embedder("openai")
