"""Embedders of any ONNX model and static ones, and token counters."""

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import onnx
import orjson
import pytest
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from benchmarks.locomo import shared
from recallflow.connectors import model_embedders
from recallflow.connectors.embedders import RemoteModel, check_embedder, load_embedder, load_remote
from recallflow.connectors.model_embedders import OnnxEmbedder, StaticEmbedder, load_tiktoken
from recallflow.embedder import QuestionEmbedder, TokenCounter, TokenEmbedder
from recallflow.errors import EmbedderError
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.llm import Embeddings, RemoteEmbedder
from recallflow.state.directory import StateDirectory
from tests.unit.operators.harness import HASHING

WORDS = ["[UNK]", "[CLS]", "[SEP]", "cat", "gatto", "dog", "rain", "query", "passage", ":", ".", "sleeps"]
# A cat means the same in two languages.
TABLE = np.eye(len(WORDS), 8, dtype=np.float32) + np.float32(0.01)
TABLE[WORDS.index("gatto")] = TABLE[WORDS.index("cat")]
TABLE[WORDS.index("rain")] = TABLE[WORDS.index("query")] * 2

Make = Callable[..., Path]


def network(extra_input: str | None, pooled: bool) -> Any:
    names = ["input_ids", "attention_mask", *([extra_input] if extra_input else [])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in names]
    hidden = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "tokens", 8])
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"], axis=0)]
    outputs = [hidden]
    if pooled:
        outputs.append(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", 8]))
        nodes.append(helper.make_node("ReduceMax", ["last_hidden_state"], ["sentence_embedding"], axes=[1], keepdims=0))
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, [numpy_helper.from_array(TABLE, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Create a model folder; keyword arguments are the contents of configuration files."""

    def made(
        name: str = "tiny", *, extra_input: str | None = None, pooled: bool = False, inside: str = ".", **said: Any
    ) -> Path:
        folder = tmp_path / name
        (folder / inside).mkdir(parents=True)
        onnx.save(network(extra_input, pooled), str(folder / inside / "model.onnx"))
        tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, "[UNK]"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
        tokenizer.post_processor = TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
        tokenizer.add_special_tokens(WORDS[:3])
        tokenizer.save(str(folder / "tokenizer.json"))
        for file, content in said.items():
            path = folder / FILES[file]
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
        return folder

    return made


FILES = {
    "pooling": "1_Pooling/config.json", "read": "sentence_bert_config.json",
    "prompts": "config_sentence_transformers.json", "modules": "modules.json", "config": "config.json",
    "tokenizer_config": "tokenizer_config.json", "special": "special_tokens_map.json",
}  # fmt: skip


def load(folder: Path) -> OnnxEmbedder:
    embedder = load_embedder("onnx", folder)
    assert isinstance(embedder, OnnxEmbedder)
    return embedder


def rows(*words: str) -> Any:
    return TABLE[[WORDS.index(word) for word in words]]


def is_like(vector: Any, expected: Any) -> bool:
    return bool(np.allclose(vector, expected / np.linalg.norm(expected), atol=1e-6))


CAT = ("[CLS]", "cat", "sleeps", "[SEP]")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, rows(*CAT).mean(axis=0)), ({"pooling_mode_mean_tokens": True}, rows(*CAT).mean(axis=0)),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, rows("[CLS]")[0]),
        ({"pooling_mode_max_tokens": True}, rows(*CAT).max(axis=0)),
        ({"pooling_mode_lasttoken": True}, rows("[SEP]")[0]),
    ],
)  # fmt: skip
def test_a_texts_vector_is_pooled_as_the_folder_says(make: Make, said: Any, expected: Any) -> None:
    folder = make() if said is None else make(pooling=said)
    embedder = load(folder)
    (vector,) = embedder.embed(["Cat sleeps"])
    assert (embedder.dimension, embedder.kind) == (8, "contextual")
    assert is_like(vector, expected)


def test_pooled_output_is_used_without_a_pooling_file(make: Make) -> None:
    embedder = load(make(pooled=True, inside="onnx"))
    assert is_like(embedder.embed(["cat sleeps"])[0], rows(*CAT).max(axis=0))
    assert len(embedder.embed_tokens(["cat sleeps"])[0].tokens) == 2


def test_tokens_are_those_that_carry_meaning(make: Make) -> None:
    (read,) = load(make()).embed_tokens(["cat . dog"])
    assert len(read.tokens) == 2
    assert all(is_like(token, row) for token, row in zip(read.tokens, rows("cat", "dog"), strict=True))
    assert is_like(read.vector, rows("[CLS]", "cat", ".", "dog", "[SEP]").mean(axis=0))


def test_prompts_precede_texts_and_give_no_tokens(make: Make) -> None:
    embedder = load(make(prompts={"prompts": {"query": "query: ", "passage": "passage: "}}))
    assert isinstance(embedder, QuestionEmbedder)
    asked, (told,) = embedder.embed_question("cat"), embedder.embed_tokens(["cat"])
    assert is_like(asked.vector, rows("[CLS]", "query", ":", "cat", "[SEP]").mean(axis=0))
    assert is_like(told.vector, rows("[CLS]", "passage", ":", "cat", "[SEP]").mean(axis=0))
    assert len(asked.tokens) == len(told.tokens) == 1
    assert is_like(asked.tokens[0], rows("cat")[0])


def test_no_more_is_read_than_the_folder_says(make: Make) -> None:
    embedder = load(make(read={"max_seq_length": 3}))
    assert is_like(embedder.embed(["cat dog dog"])[0], rows("[CLS]", "cat", "[SEP]").mean(axis=0))
    assert embedder.count_tokens("cat dog dog") == 3


def test_a_vector_does_not_depend_on_the_texts_beside_it(make: Make) -> None:
    embedder = load(make())
    texts = ["cat", "dog sleeps . rain", ""]
    assert [row.tobytes() for row in embedder.embed(texts)] == [embedder.embed([text])[0].tobytes() for text in texts]


def test_model_name_depends_on_file_contents(make: Make) -> None:
    names = {
        load(folder).name
        for folder in (
            make("a"), make("b"), make("c", pooling={"pooling_mode_cls_token": True}), make("d", pooled=True),
        )
    }  # fmt: skip
    assert len({name.partition("-")[2] for name in names}) == 3  # a and b hold the same
    assert {name.partition("-")[0] for name in names} == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"modules": [{"type": "sentence_transformers.models.Dense"}]}, "has a layer Dense outside of model.onnx"),
        ({"pooling": {"pooling_mode_weightedmean_tokens": True}}, "sets pooling_mode_weightedmean_tokens"),
        ({"extra_input": "pixel_values"}, "needs the inputs pixel_values"),
    ],
)
def test_unusable_model_is_refused(make: Make, said: dict[str, Any], problem: str) -> None:
    with pytest.raises(EmbedderError, match=problem):
        load(make(**said))


@pytest.mark.parametrize("file", ["model.onnx", "tokenizer.json"])
def test_missing_or_broken_model_file_is_named(make: Make, file: str) -> None:
    folder = make()
    (folder / file).write_bytes(b"no model")
    with pytest.raises(EmbedderError, match="cannot load"):
        load(folder)
    (folder / file).unlink()
    with pytest.raises(EmbedderError, match=f"has no {file}"):
        load(folder)


def test_a_model_of_fastembeds_is_loaded_by_its_name(make: Make) -> None:
    folder = make(
        config={"pad_token_id": 0}, tokenizer_config={"model_max_length": 16, "pad_token": "[UNK]"}, special={}
    )
    TextEmbedding.add_custom_model(
        "test/tiny", PoolingType.MEAN, True, ModelSource(hf="test/tiny"), dim=8, model_file="model.onnx"
    )
    embedder = load_embedder("test/tiny", folder)
    assert embedder.name.startswith("tiny-")
    (theirs,) = TextEmbedding("test/tiny", specific_model_path=str(folder)).embed(["cat sleeps"])
    assert is_like(embedder.embed(["cat sleeps"])[0], np.asarray(theirs))


def test_question_finds_a_memory_in_another_language(make: Make, tmp_path: Path) -> None:
    settings = Settings(partitions=1, embedder="onnx", model_path=make())
    who = {"tenant_id": "acme", "user_id": "ann", "timestamp": "2026-01-31T12:00:00Z"}
    told = [who | {"type": "memory", "id": text, "content": text} for text in ("dog sleeps", "cat sleeps", "rain")]
    lines = [orjson.dumps(event) for event in [*told, who | {"type": "recall", "id": "q", "query": "gatto", "k": 1}]]
    (answer,) = process(lines, settings, tmp_path / "state").responses
    assert [memory["id"] for memory in answer["memories"]] == ["cat sleeps"]
    with StateDirectory.existing(tmp_path / "state") as directory:
        assert directory.fingerprint.embedder == load(tmp_path / "tiny").name


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
    assert (norms[TEXTS.index("")], embedder.embed([]).shape) == (0, (0, embedder.dimension))


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

    async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embeddings:
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
    with pytest.raises(EmbedderError, match=r"has 384 dimensions, and embedding\.dimension is 3"):
        RemoteModel(Service(3), HASHING)


def test_missing_model_folder_is_reported(tmp_path: Path) -> None:
    check_embedder("openai")
    with pytest.raises(EmbedderError, match="is not a folder"):
        load_remote(Service(3), tmp_path / "none")
    with pytest.raises(EmbedderError, match=r"no model\.onnx"):
        load_remote(Service(3), tmp_path)


def test_remote_embedder_cannot_be_loaded_locally() -> None:
    with pytest.raises(EmbedderError, match="calls a service"):
        load_embedder("openai")


class Encoding(NamedTuple):
    name: str

    def encode_ordinary(self, text: str) -> list[str]:
        return text.split()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tiktoken that writes down which encodings it is asked for."""
    asked: list[str] = []
    module: Any = ModuleType("tiktoken")

    def get_encoding(name: str) -> Encoding:
        asked.append(name)
        return Encoding(name)

    module.get_encoding = get_encoding
    monkeypatch.setitem(sys.modules, "tiktoken", module)
    return asked


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path


def put(cache: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, content: bytes) -> None:
    """Makes this the content of the encoding's file, and the right one."""
    url = f"https://openaipublic.blob.core.windows.net/encodings/{encoding}.tiktoken"
    (cache / hashlib.sha1(url.encode()).hexdigest()).write_bytes(content)
    monkeypatch.setitem(model_embedders._SHA256, encoding, hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_an_encoding_in_the_cache_counts(
    cache: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[str], encoding: str
) -> None:
    put(cache, monkeypatch, encoding, b"ranks")
    counter = load_tiktoken()
    assert counter is not None
    assert (counter.counted_by, counter.count_tokens("three small words")) == (f"tiktoken {encoding}", 3)
    assert loaded == [encoding]


def test_the_newer_encoding_comes_first(cache: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[str]) -> None:
    put(cache, monkeypatch, "cl100k_base", b"old")
    put(cache, monkeypatch, "o200k_base", b"new")
    load_tiktoken()
    assert loaded == ["o200k_base"]


def test_missing_file_keeps_tiktoken_unasked(cache: Path, loaded: list[str]) -> None:
    assert [*cache.iterdir()] == []
    assert load_tiktoken() is None
    assert loaded == []


def test_a_broken_file_counts_for_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[str]) -> None:
    put(cache, monkeypatch, "o200k_base", b"ranks")
    (file,) = cache.iterdir()
    file.write_bytes(b"rank")
    assert load_tiktoken() is None
    assert loaded == []


def test_without_tiktoken_there_is_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)  # what Python keeps of a module that cannot be imported
    assert load_tiktoken() is None


@pytest.mark.models
def test_minilm_counts_whole_texts_by_its_own_tokenizer() -> None:
    minilm = load_embedder("minilm", shared("models", "all-MiniLM-L6-v2"))
    assert isinstance(minilm, TokenCounter)
    counts = [minilm.count_tokens(text) for text in ("", "Hello world, unbelievable!", "tea " * 3_000)]
    assert (minilm.counted_by, counts) == ("all-MiniLM-L6-v2", [0, 5, 3_000])
