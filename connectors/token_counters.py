"""Token counters: cached encodings of tiktoken, and a model's own tokenizer."""

import hashlib
import importlib
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from recallflow.embedder import TokenCounter

_SITE = "https://openaipublic.blob.core.windows.net/encodings"


class _File(NamedTuple):
    """File of an encoding, as named in tiktoken's registry."""

    encoding: str
    sha256: str

    def is_cached(self) -> bool:
        """Return whether tiktoken would accept the cached file; it downloads a broken one again."""
        default = str(Path(tempfile.gettempdir()) / "data-gym-cache")
        folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default))
        name = hashlib.sha1(f"{_SITE}/{self.encoding}.tiktoken".encode()).hexdigest()  # noqa: S324 a file's name
        try:  # an empty folder means that the cache is off
            return folder != "" and hashlib.sha256((Path(folder) / name).read_bytes()).hexdigest() == self.sha256
        except OSError:
            return False


_FILES = (
    _File("o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    _File("cl100k_base", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
)


class TiktokenCounter:
    """Counter of a tiktoken encoding. Special tokens in a text count as text."""

    def __init__(self, encoding: Any) -> None:
        self.counted_by = f"tiktoken {encoding.name}"
        self._encoding = encoding

    def count_tokens(self, text: str) -> int:
        return len(self._encoding.encode_ordinary(text))


class ModelTokenCounter:
    """Counter of an embedder with a tokenizer of Hugging Face's `tokenizers`."""

    name: str
    _tokenizer: Any

    @property
    def counted_by(self) -> str:
        return self.name

    def count_tokens(self, text: str) -> int:
        return len(self._unlimited.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _unlimited(self) -> Any:
        """Return the tokenizer without its limit: a counted text may be longer than an embedded one."""
        return unlimited(self._tokenizer)


def unlimited(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer that neither cuts nor pads. Later changes of the original do not affect it."""
    made = type(tokenizer).from_str(tokenizer.to_str())
    made.no_truncation()
    made.no_padding()
    return made


def load_tiktoken() -> TokenCounter | None:
    """Return the newest encoding in tiktoken's cache; None without tiktoken or such a file."""
    try:
        tiktoken = importlib.import_module("tiktoken")
    except ImportError:
        return None
    name = next((file.encoding for file in _FILES if file.is_cached()), None)
    return None if name is None else TiktokenCounter(tiktoken.get_encoding(name))
