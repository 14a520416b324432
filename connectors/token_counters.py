"""Token counters: tiktoken's encodings, where they are cached already, and a model's own tokenizer."""

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
    """The file of an encoding, as tiktoken's registry names it."""

    encoding: str
    sha256: str

    def is_cached(self) -> bool:
        """Whether tiktoken accepts the file in its cache as it is: it would fetch a broken one anew."""
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
    """Counts by one of tiktoken's encodings. Special tokens in a text are text."""

    def __init__(self, encoding: Any) -> None:
        self.counted_by = f"tiktoken {encoding.name}"
        self._encoding = encoding

    def count_tokens(self, text: str) -> int:
        return len(self._encoding.encode_ordinary(text))


class ModelTokenCounter:
    """The counting part of an embedder that has a tokenizer of Hugging Face's `tokenizers`."""

    name: str
    _tokenizer: Any

    @property
    def counted_by(self) -> str:
        return self.name

    def count_tokens(self, text: str) -> int:
        return len(self._unlimited.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _unlimited(self) -> Any:
        """The tokenizer without its limit: a counted text may be longer than an embedded one."""
        return unlimited(self._tokenizer)


def unlimited(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer that neither cuts nor pads, whatever is set on the original later."""
    made = type(tokenizer).from_str(tokenizer.to_str())
    made.no_truncation()
    made.no_padding()
    return made


def load_tiktoken() -> TokenCounter | None:
    """The newest encoding that tiktoken can load from its cache; none without tiktoken or such a file."""
    try:
        tiktoken = importlib.import_module("tiktoken")
    except ImportError:
        return None
    name = next((file.encoding for file in _FILES if file.is_cached()), None)
    return None if name is None else TiktokenCounter(tiktoken.get_encoding(name))
