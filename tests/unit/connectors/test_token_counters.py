"""tiktoken's encodings are taken from its cache, or not at all; the model's tokenizer counts whole texts."""

import hashlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from benchmarks.locomo import shared
from recallflow.connectors import model_embedders
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.model_embedders import load_tiktoken
from recallflow.embedder import TokenCounter


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
    files = [
        file._replace(sha256=hashlib.sha256(content).hexdigest()) if file.encoding == encoding else file
        for file in model_embedders._FILES
    ]
    monkeypatch.setattr(model_embedders, "_FILES", files)


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
