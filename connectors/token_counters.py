"""tiktoken's encodings, where they are at hand: nothing is downloaded."""

import hashlib
import importlib
import os
import tempfile
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


def load_tiktoken() -> TokenCounter | None:
    """The newest encoding that tiktoken can load from its cache; none without tiktoken or such a file."""
    try:
        tiktoken = importlib.import_module("tiktoken")
    except ImportError:
        return None
    name = next((file.encoding for file in _FILES if file.is_cached()), None)
    return None if name is None else TiktokenCounter(tiktoken.get_encoding(name))
